//! How long recoveries take, by phase and cause. Pure: fed with the coordinator's events.
//!
//! A recovery begins with a fence and ends with the first step that is committed after it. A planned change begins when its plan
//! is persisted and ends with the switch: training goes on meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;
use varuna_plan::WorkerId;
use varuna_protocol::coordinator::Event;

/// What a recovery spends its time on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// From the fence to the inventories of those who answer.
    Collect,
    /// Until the new plan is persisted.
    Plan,
    /// Until all members have reached their peers.
    Connect,
    /// Until all members have the state they need.
    Transfer,
    /// Until the first step is committed.
    Step,
    /// From the fence to the first committed step; of a planned change, from its plan to the switch.
    Total,
}

impl Phase {
    /// As a label.
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

/// Why there was a new plan. Where several apply, the first one counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A worker was lost without notice.
    Lost,
    /// A worker had notice.
    Notice,
    /// Another coordinator has taken over.
    Takeover,
    /// Workers joined.
    Joined,
    /// Something else: a false suspicion, a better plan.
    Other,
}

impl Cause {
    /// As a label.
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
    /// As part of a sentence, after "after".
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

/// One phase that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Which.
    pub phase: Phase,
    /// Of which kind of recovery.
    pub cause: Cause,
    /// How long it took.
    pub took: Duration,
    /// Workers that were lost or had notice until then.
    pub workers: usize,
}

/// A whole recovery, or a planned change, that is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Over {
    /// Why there was one.
    pub cause: Cause,
    /// Workers that were lost or had notice.
    pub workers: usize,
    /// Time without training.
    pub pause: Duration,
    /// Steps that are trained again.
    pub lost: u64,
}

impl Measured {
    /// The recovery or change that is over with this; none where a part of one is. `event` and `lost` as for the sentence.
    #[must_use]
    pub fn over(&self, event: &Event, lost: u64) -> Option<Over> {
        let pause = match (self.phase, event) {
            (Phase::Total, Event::Committed { .. }) => self.took,
            (Phase::Total, Event::Switched { .. }) => Duration::ZERO,
            _ => return None,
        };
        let Measured { cause, workers, .. } = *self;
        Some(Over {
            cause,
            workers,
            pause,
            lost,
        })
    }

    /// A sentence about a whole recovery or change; none about a part of one. `event`: what ended it. `lost`: steps that are trained
    /// again.
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
struct Begun {
    at: Duration,
    /// End of the last phase.
    last: Duration,
    planned: bool,
}

/// The recovery of one job that is being measured, and what may have caused it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recoveries {
    begun: Option<Begun>,
    /// Steps were committed: what comes before is the start of the job and no recovery.
    trained: bool,
    /// Lost without notice.
    lost: BTreeSet<WorkerId>,
    /// They had notice.
    notice: BTreeSet<WorkerId>,
    /// They had notice, and a plan without them is in force: that their streams end is no loss.
    left: BTreeSet<WorkerId>,
    takeover: bool,
    joined: bool,
}

impl Recoveries {
    /// Takes an event at a time; returns the phases that it ends.
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
                // The first coordinator of a job starts it; a later one finds it trained.
                self.trained |= *term > 1;
            }
            Event::Fenced { .. } => match &mut self.begun {
                // A recovery that is overtaken by another loss goes on.
                Some(begun) if !begun.planned => begun.last = at,
                _ => self.begin(at, false),
            },
            Event::Planned { change: true, .. } => self.begin(at, true),
            Event::Cancelled { .. } if self.begun.is_some_and(|b| b.planned) => self.begun = None,
            Event::Collected { .. } => return self.phase(at, Phase::Collect),
            Event::Planned { .. } => return self.phase(at, Phase::Plan),
            Event::Connected { .. } => return self.phase(at, Phase::Connect),
            Event::Running { .. } => return self.phase(at, Phase::Transfer),
            Event::Switched { .. } if self.begun.is_some_and(|b| b.planned) => return self.end(at),
            Event::Committed { .. } if self.begun.is_some_and(|b| !b.planned) => {
                let mut measured = self.phase(at, Phase::Step);
                measured.extend(self.end(at));
                self.trained = true;
                return measured;
            }
            Event::Committed { .. } => {
                // Who came with the start, or under another leader, is no cause of what follows.
                if !self.trained || self.takeover {
                    self.joined = false;
                }
                (self.trained, self.takeover) = (true, false);
            }
            _ => {}
        }
        vec![]
    }

    fn begin(&mut self, at: Duration, planned: bool) {
        self.begun = Some(Begun {
            at,
            last: at,
            planned,
        });
    }

    fn cause(&self) -> Cause {
        match self {
            Recoveries { lost, .. } if !lost.is_empty() => Cause::Lost,
            Recoveries { notice, .. } if !notice.is_empty() => Cause::Notice,
            Recoveries { takeover: true, .. } => Cause::Takeover,
            Recoveries { joined: true, .. } => Cause::Joined,
            _ => Cause::Other,
        }
    }

    fn workers(&self) -> usize {
        self.lost.union(&self.notice).count()
    }

    fn phase(&mut self, at: Duration, phase: Phase) -> Vec<Measured> {
        let (cause, workers, trained) = (self.cause(), self.workers(), self.trained);
        let Some(begun) = self.begun.as_mut().filter(|b| !b.planned) else {
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
        (self.takeover, self.joined) = (false, false);
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
