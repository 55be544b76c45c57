//! Measures how long recoveries take, by phase and cause. Pure: it is fed with the coordinator's events.
//!
//! A recovery begins with a fence and ends with the first step that a newer generation commits: until all members have answered, steps of
//! fenced generations may still be reported. A planned change begins when its plan is persisted and ends with the switch: training
//! continues meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::coordinator::Event;

/// What a recovery spends its time on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// From the fence to the inventories of the workers that answer.
    Collect,
    /// Until the new plan is persisted.
    Plan,
    /// Until all members are connected to their peers.
    Connect,
    /// Until all members have the state they need.
    Transfer,
    /// Until the first step is committed.
    Step,
    /// From the fence to the first committed step; for a planned change, from its plan to the switch.
    Total,
}

impl Phase {
    /// The name of the phase in labels.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Phase::Collect => "collect",
            Phase::Plan => "plan",
            Phase::Connect => "connect",
            Phase::Transfer => "transfer",
            Phase::Step => "step",
            Phase::Total => "total",
        }
    }
}

/// The cause of a new plan. If several apply, the first one in this order counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A worker was lost without notice.
    Lost,
    /// A worker was notified that it will be stopped.
    Notice,
    /// Another coordinator has taken over.
    Takeover,
    /// Workers joined.
    Joined,
    /// Something else: a false suspicion, a better plan.
    Other,
}

impl Cause {
    /// The name of the cause in labels.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Cause::Lost => "lost",
            Cause::Notice => "notice",
            Cause::Takeover => "takeover",
            Cause::Joined => "joined",
            Cause::Other => "other",
        }
    }
}

impl Cause {
    /// The cause as part of a sentence, after "after".
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Cause::Lost => "the loss of a worker",
            Cause::Notice => "notice to a worker",
            Cause::Takeover => "a change of the coordinator",
            Cause::Joined => "workers had come",
            Cause::Other => "a change of plan",
        }
    }
}

/// One completed phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// The phase.
    pub phase: Phase,
    /// The cause of the recovery.
    pub cause: Cause,
    /// Duration of the phase.
    pub took: Duration,
    /// Number of workers that were lost or notified until then.
    pub workers: usize,
}

/// A completed recovery or planned change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletedRecovery {
    /// Cause of the recovery.
    pub cause: Cause,
    /// Number of workers that were lost or notified.
    pub workers: usize,
    /// Time without training.
    pub pause: Duration,
    /// Steps that are trained again.
    pub lost: u64,
}

impl Measured {
    /// The recovery or change that this phase completes; none if it only completes a part. `event` and `lost` as for the sentence.
    #[must_use]
    pub fn completed(&self, event: &Event, lost: u64) -> Option<CompletedRecovery> {
        let pause = match (self.phase, event) {
            (Phase::Total, Event::Committed { .. }) => self.took,
            (Phase::Total, Event::Switched { .. }) => Duration::ZERO,
            _ => return None,
        };
        let Measured { cause, workers, .. } = *self;
        Some(CompletedRecovery {
            cause,
            workers,
            pause,
            lost,
        })
    }

    /// A sentence about a completed recovery or change; none for a part of one. `event`: the event that ended it. `lost`: steps that are
    /// trained again.
    #[must_use]
    pub fn sentence(&self, event: &Event, lost: u64) -> Option<String> {
        let (took, why) = (self.took.as_secs_f64(), self.cause.description());
        match (self.phase, event) {
            (Phase::Total, Event::Committed { step, .. }) => Some(format!(
                "training goes on {took:.2} s after {why}, with step {step}; {lost} steps lost"
            )),
            (Phase::Total, Event::Switched { generation }) => Some(format!(
                "plan {generation} has taken over after {why}; training did not stop"
            )),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Generations up to this one are fenced: their commits do not end it.
    Recovery {
        fenced: Generation,
    },
    Change,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RecoveryStart {
    at: Duration,
    /// End of the last phase.
    last: Duration,
    kind: Kind,
}

impl RecoveryStart {
    fn is_recovery(&self) -> bool {
        matches!(self.kind, Kind::Recovery { .. })
    }
}

/// Measures the recoveries of one job, and tracks their possible causes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recoveries {
    begun: Option<RecoveryStart>,
    /// Whether an earlier coordinator began it.
    inherited: bool,
    /// Whether steps were committed: everything before that is the start of the job and not a recovery.
    trained: bool,
    /// Workers that were lost without notice.
    lost: BTreeSet<WorkerId>,
    /// Workers that were notified of their end.
    notice: BTreeSet<WorkerId>,
    /// Workers that were notified and that are not in the plan in force: the end of their stream is no loss.
    left: BTreeSet<WorkerId>,
    takeover: bool,
    joined: bool,
}

impl Recoveries {
    /// Takes the event that happened at the time `at`. Returns the phases that it ends.
    pub fn observe(&mut self, at: Duration, event: &Event) -> Vec<Measured> {
        match event {
            Event::WorkerLost { worker, .. } if self.left.remove(worker) => {}
            Event::WorkerLost { worker, .. } => drop(self.lost.insert(*worker)),
            Event::WorkerDraining { worker, .. } => drop(self.notice.insert(*worker)),
            Event::WorkerJoined { worker, .. } => {
                self.left.remove(worker);
                self.joined = true;
            }
            Event::TookOver { term } => {
                self.takeover = true;
                // The first coordinator of a job starts it; a later one finds it already trained. Workers that left in an earlier
                // coordinator's time are no cause of what this one does.
                self.trained |= *term > 1;
                self.lost.clear();
                self.notice.clear();
                self.inherited = self.begun.is_some();
            }
            Event::Fenced { upto, .. } => self.fenced(at, *upto),
            Event::Planned { change: true, .. } => self.begin(at, Kind::Change),
            Event::Cancelled { .. } if self.begun.is_some_and(|b| !b.is_recovery()) => self.begun = None,
            Event::Collected { .. } => return self.phase(at, Phase::Collect),
            Event::Planned { .. } => return self.phase(at, Phase::Plan),
            Event::Connected { .. } => return self.phase(at, Phase::Connect),
            Event::Running { .. } => return self.phase(at, Phase::Transfer),
            Event::Switched { .. } if self.begun.is_some_and(|b| !b.is_recovery()) => return self.end(at),
            Event::Committed { generation, .. } => return self.committed(at, *generation),
            _ => {}
        }
        vec![]
    }

    fn fenced(&mut self, at: Duration, upto: Generation) {
        // The earlier coordinator did not end its recovery. The run may have been stopped since, which is no part of this one.
        if std::mem::take(&mut self.inherited) {
            self.begun = None;
        }
        match &mut self.begun {
            // A recovery that is interrupted by another loss continues.
            Some(RecoveryStart {
                last,
                kind: Kind::Recovery { fenced },
                ..
            }) => (*last, *fenced) = (at, upto.max(*fenced)),
            _ => self.begin(at, Kind::Recovery { fenced: upto }),
        }
    }

    fn committed(&mut self, at: Duration, generation: Generation) -> Vec<Measured> {
        match self.begun.map(|begun| begun.kind) {
            Some(Kind::Recovery { fenced }) if generation > fenced => {
                let mut measured = self.phase(at, Phase::Step);
                measured.extend(self.end(at));
                self.trained = true;
                measured
            }
            Some(Kind::Recovery { .. }) => {
                self.trained = true;
                vec![]
            }
            Some(Kind::Change) | None => {
                // Workers that joined at the start, or under another leader, are no cause of what follows.
                if !self.trained || self.takeover {
                    self.joined = false;
                }
                (self.trained, self.takeover) = (true, false);
                vec![]
            }
        }
    }

    fn begin(&mut self, at: Duration, kind: Kind) {
        self.begun = Some(RecoveryStart { at, last: at, kind });
    }

    /// Whether a planned change is measured. Training goes on, so no worker that trains was lost; one that the plan left out may have been,
    /// and is no cause of the change.
    fn is_change(&self) -> bool {
        self.begun.is_some_and(|begun| !begun.is_recovery())
    }

    fn cause(&self) -> Cause {
        match self {
            Recoveries { lost, .. } if !lost.is_empty() && !self.is_change() => Cause::Lost,
            Recoveries { notice, .. } if !notice.is_empty() => Cause::Notice,
            Recoveries { takeover: true, .. } => Cause::Takeover,
            Recoveries { joined: true, .. } => Cause::Joined,
            _ => Cause::Other,
        }
    }

    fn workers(&self) -> usize {
        if self.is_change() {
            return self.notice.len();
        }
        self.lost.union(&self.notice).count()
    }

    fn phase(&mut self, at: Duration, phase: Phase) -> Vec<Measured> {
        let (cause, workers, trained) = (self.cause(), self.workers(), self.trained);
        let Some(begun) = self.begun.as_mut().filter(|b| b.is_recovery()) else {
            return vec![];
        };
        let took = at.saturating_sub(begun.last);
        begun.last = at;
        trained
            .then_some(Measured {
                phase,
                cause,
                took,
                workers,
            })
            .into_iter()
            .collect()
    }

    fn end(&mut self, at: Duration) -> Vec<Measured> {
        let (cause, workers) = (self.cause(), self.workers());
        let Some(begun) = self.begun.take() else {
            return vec![];
        };
        let trained = self.trained;
        (self.takeover, self.joined, self.inherited) = (false, false, false);
        let lost = std::mem::take(&mut self.lost);
        let notice = std::mem::take(&mut self.notice);
        self.left.extend(notice.difference(&lost));
        let took = at.saturating_sub(begun.at);
        let total = Measured {
            phase: Phase::Total,
            cause,
            took,
            workers,
        };
        trained.then_some(total).into_iter().collect()
    }
}

#[cfg(test)]
mod tests;
