//! The event log as sentences for people. Tools read the same events from `events.jsonl`; nothing may depend on the wording.
//!
//! All sentences are listed in `event_text/sentences.txt`, and a test compares them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::{Generation, Layout, StateId, Step, Unit, WorkerId};
use varuna_protocol::coordinator::Event;

mod checkpoints;
mod numbers;

pub(crate) use checkpoints::of_checkpoint;
use numbers::{count, significant, time};

/// How many workers a sentence names; others are counted. Losing a node takes eight.
const NAMES_MAX: usize = 8;

/// Maximum number of workers that have gone and whose names are still known. A sentence about a loss comes soon after it, and may be about
/// all workers of a run; every process that is started is another worker.
const GONE_MAX: usize = 8192;

/// Where a new plan resumes.
#[derive(Clone, Copy, Debug)]
struct Resume {
    generation: Generation,
    step: Step,
    steps_lost: u64,
}

/// Turns events into sentences. It remembers from earlier events what later sentences refer to.
#[derive(Debug)]
pub(crate) struct EventText {
    layout: Layout,
    /// Names of the workers that have joined, under this coordinator or an earlier one.
    names: BTreeMap<WorkerId, String>,
    /// Those of them that have gone, the last one last.
    gone: VecDeque<WorkerId>,
    /// Workers that were released: their end is no loss.
    released: BTreeSet<WorkerId>,
    /// When training stopped; none while it runs.
    stopped: Option<Duration>,
    resume: Option<Resume>,
}

impl EventText {
    /// `names`: of the workers that had joined before, which have gone or join again.
    pub(crate) fn new(layout: Layout, names: BTreeMap<WorkerId, String>) -> EventText {
        EventText {
            layout,
            gone: names.keys().copied().collect(),
            names,
            released: BTreeSet::new(),
            stopped: None,
            resume: None,
        }
    }

    /// The sentence about an event. `at`: time since the coordinator's start; `steps_lost`: steps that are run again because of it.
    #[expect(
        clippy::too_many_lines,
        reason = "one sentence for each kind of event, all in one place"
    )]
    pub(crate) fn sentence(&mut self, at: Duration, event: &Event, steps_lost: u64) -> String {
        self.remember(at, event, steps_lost);
        match event {
            Event::TookOver { term } => format!("this coordinator leads the run now (term {term})"),
            Event::WorkerJoined { name, address, .. } => format!("worker {name} joined from {address}"),
            Event::WorkerLost { worker, name } if self.released.remove(worker) => {
                format!("worker {name} has ended")
            }
            Event::WorkerLost { name, .. } => {
                format!("lost worker {name}: its connection closed or timed out")
            }
            Event::WorkerDraining { name, .. } => {
                format!("worker {name} is about to end: the next plan does without it")
            }
            Event::WorkerReleased { name, .. } => format!("worker {name} is no longer needed and may end"),
            Event::Planned {
                generation,
                plan,
                workers,
                predicted_ms,
                change,
                reason,
            } => {
                let what = planned(plan, *workers, *generation, *predicted_ms, *change);
                format!("{what}: {reason}")
            }
            Event::Fenced { upto, because } => format!("training is stopped under plan {upto}: {because}"),
            Event::Collected { answered, missing } => self.collected(answered.len(), missing),
            Event::Resumed {
                generation,
                base,
                finished,
                restored,
            } => plan_start(*generation, *base, *finished, *restored, steps_lost),
            Event::Connected { generation } => {
                format!("the workers of plan {generation} are connected to each other")
            }
            Event::Running { generation } => self.running(at, *generation),
            Event::Switched { generation } => {
                format!("switched to plan {generation} without stopping the training")
            }
            Event::FollowersCaughtUp { generation, workers } => format!(
                "plan {generation} can begin: {} followed the run and hold its state",
                self.names(workers)
            ),
            Event::FollowersLate { generation, workers } => format!(
                "plan {generation} is not held up for {} any longer, which did not catch up with the run: what is missing moves after the switch",
                self.names(workers)
            ),
            Event::SpareCopies {
                generation,
                verdict,
                kept,
            } => spare_copies(*generation, *verdict, *kept),
            Event::CheckpointInterval { seconds } => checkpoint_interval(*seconds),
            Event::Cancelled { generation, because } => {
                format!("plan {generation} is cancelled before its start: {because}")
            }
            Event::Committed {
                step, overflow: true, ..
            } => {
                format!("step {step} is committed and was skipped: a gradient or the loss is not finite")
            }
            Event::Committed {
                step,
                loss: Some(loss),
                ..
            } => {
                format!("step {step} is committed, loss {loss:.4} nats per token")
            }
            Event::Committed { step, loss: None, .. } => {
                format!("step {step} is committed, without a loss: its batch has no token to predict")
            }
            Event::StepTimeOff {
                generation,
                predicted_ms,
                observed_ms,
                calibrated,
            } => step_time_off(*generation, *predicted_ms, *observed_ms, *calibrated),
            Event::CostsCorrected {
                generation,
                predicted_ms,
                observed_ms,
                factor,
            } => costs_corrected(*generation, *predicted_ms, *observed_ms, *factor),
            Event::BelowMinimum { have, need } => {
                format!("training waits for workers: {have} of at least {need} are attached")
            }
            Event::NoPlan { reason } => {
                format!("training waits: no plan is possible with these workers: {reason}")
            }
            Event::WriteFailed { version } => {
                format!(
                    "could not write version {version} of the run's record: no new plan until it is written"
                )
            }
            Event::StatesDiffer {
                step,
                units,
                replaced,
            } => self.states_differ(*step, units, replaced),
            Event::FinalCheckpointDamaged { state, again } => final_checkpoint_damaged(state.step, *again),
            Event::Lost { units } => {
                let what = self.layout.name(units);
                format!("the state of {what} is lost: no worker and no checkpoint holds it")
            }
            Event::Diverged(divergence) => format!("training ends: {divergence}"),
            Event::Done { step } => format!("training has finished with step {step}"),
            Event::Deposed { by_term } => {
                format!("another coordinator leads the run now (term {by_term}): this one ends")
            }
        }
    }

    /// The run ends: all workers end with it, so that their end is no loss.
    pub(crate) fn note_stop(&mut self) {
        self.released.extend(self.names.keys());
    }

    fn remember(&mut self, at: Duration, event: &Event, steps_lost: u64) {
        match event {
            Event::WorkerJoined { worker, name, .. } => {
                if self.names.insert(*worker, name.clone()).is_some() {
                    self.gone.retain(|gone| gone != worker);
                }
                self.released.remove(worker);
            }
            Event::WorkerLost { worker, .. } => {
                self.gone.push_back(*worker);
                if self.gone.len() > GONE_MAX
                    && let Some(oldest) = self.gone.pop_front()
                {
                    self.names.remove(&oldest);
                }
            }
            Event::WorkerReleased { worker, .. } => {
                self.released.insert(*worker);
            }
            // All workers end with the run.
            Event::Done { .. } => self.note_stop(),
            // A further loss during a recovery prolongs that recovery.
            Event::Fenced { .. } => self.stopped = self.stopped.or(Some(at)),
            Event::Resumed { generation, base, .. } => {
                self.resume = Some(Resume {
                    generation: *generation,
                    step: base.step,
                    steps_lost,
                });
            }
            _ => {}
        }
    }

    fn collected(&self, answered: usize, missing: &[WorkerId]) -> String {
        let hold = if answered == 1 { "it holds" } else { "they hold" };
        let answered = count(answered as u64, "worker");
        if missing.is_empty() {
            return format!("{answered} reported what state {hold}; none is missing");
        }
        let missing = self.names(missing);
        format!("{answered} reported what state {hold}; no report from {missing}")
    }

    fn names(&self, workers: &[WorkerId]) -> String {
        let name = |w: &WorkerId| self.names.get(w).cloned().unwrap_or_else(|| w.to_string());
        let names: Vec<String> = workers.iter().take(NAMES_MAX).map(name).collect();
        let more = match workers.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}{more}", names.join(", "))
    }

    fn states_differ(&self, step: Step, units: &[Unit], replaced: &[WorkerId]) -> String {
        let what = self.layout.name(units);
        if replaced.is_empty() {
            return format!(
                "workers that hold {what} have different bits of it at step {step}, and no majority agrees: the run goes back to the \
                 newest checkpoint whose state was compared, or else to the seed"
            );
        }
        format!(
            "{} had other bits of {what} at step {step} than most of its holders: training goes on without",
            self.names(replaced)
        )
    }

    fn running(&mut self, at: Duration, generation: Generation) -> String {
        let resume = self.resume.take().filter(|r| r.generation == generation);
        match (resume, self.stopped.take()) {
            (Some(resume), Some(since)) => format!(
                "training resumed at step {} after {}, {} lost (plan {generation})",
                resume.step,
                time(at.saturating_sub(since).as_secs_f64() * 1e3),
                count(resume.steps_lost, "step")
            ),
            (Some(resume), None) => format!("training starts at step {} (plan {generation})", resume.step),
            (None, _) => format!("all workers train under plan {generation}"),
        }
    }
}

fn planned(shape: &str, workers: usize, generation: Generation, predicted_ms: f64, change: bool) -> String {
    let workers = count(workers as u64, "worker");
    let what = if change { "planned a change to" } else { "planned" };
    format!(
        "{what} {shape} for {workers} (plan {generation}, predicted step time {})",
        time(predicted_ms)
    )
}

/// At which interval checkpoints are made because of losses.
fn checkpoint_interval(seconds: Option<f64>) -> String {
    match seconds {
        Some(seconds) => format!(
            "workers are lost so often that a checkpoint is made about every {}, in addition to those of the job's interval",
            time(seconds * 1e3)
        ),
        None => {
            "checkpoints are made at the job's interval alone again: more of them would not repay their cost"
                .to_owned()
        }
    }
}

/// Whether spare copies are kept, and why not.
fn spare_copies(generation: Generation, verdict: SpareCopyDecision, kept: usize) -> String {
    let from = format!("from plan {generation} on");
    match verdict {
        SpareCopyDecision::Kept => format!(
            "{from} {} that one worker alone holds {} a spare copy on another",
            count(kept as u64, "unit"),
            if kept == 1 { "has" } else { "have" }
        ),
        SpareCopyDecision::KeptInPart => format!(
            "{from} only {} of those that one worker alone holds {} a spare copy: no worker has room for the others",
            count(kept as u64, "unit"),
            if kept == 1 { "has" } else { "have" }
        ),
        SpareCopyDecision::KeptWhereLinksAllow => format!(
            "{from} only {} of those that one worker alone holds {} a spare copy: the gradients of the others would take more than half of a step \
             on some link",
            count(kept as u64, "unit"),
            if kept == 1 { "has" } else { "have" }
        ),
        SpareCopyDecision::NotWanted => format!("{from} no spare copies are wanted"),
        SpareCopyDecision::NothingAlone => {
            format!("{from} no spare copy is needed: several workers hold each unit")
        }
        SpareCopyDecision::NoKeeper => {
            format!("{from} there are no spare copies: no worker that could keep one has room")
        }
        SpareCopyDecision::LinksTooSlow => {
            format!(
                "{from} there are no spare copies: their gradients would take more than half of a step on some link"
            )
        }
        SpareCopyDecision::LossesTooRare => {
            format!("{from} there are no spare copies: losses are too rare to repay them")
        }
        SpareCopyDecision::Unknown => format!("{from} {kept} units have a spare copy"),
    }
}

fn plan_start(
    generation: Generation,
    base: StateId,
    finished: bool,
    restored: bool,
    steps_lost: u64,
) -> String {
    let step = base.step;
    let from = match (restored, base) {
        (true, StateId::INITIAL) => "the job's seed",
        // Also at step 0: with another job's parameters.
        (true, _) => "a checkpoint",
        (false, _) => "the workers' memory",
    };
    let finished = if finished {
        ", after finishing the interrupted step,"
    } else {
        ""
    };
    let again = match steps_lost {
        0 => String::new(),
        lost => format!("; {} will be run again", count(lost, "step")),
    };
    format!("plan {generation} starts at step {step}{finished} from {from}{again}")
}

fn step_time_off(generation: Generation, predicted_ms: f64, observed_ms: f64, calibrated: bool) -> String {
    let from = if calibrated { "measured" } else { "estimated" };
    let (observed, predicted) = (time(observed_ms), time(predicted_ms));
    format!("steps of plan {generation} take {observed}; {predicted} were predicted from {from} costs")
}

fn final_checkpoint_damaged(step: Step, again: bool) -> String {
    let then = if again {
        "it is deleted, and the workers put the state again"
    } else {
        "so was each that was put in its place: the run ends without it"
    };
    format!("the checkpoint of step {step}, the last one, was found damaged: {then}")
}

fn costs_corrected(generation: Generation, predicted_ms: f64, observed_ms: f64, factor: f64) -> String {
    let (observed, predicted) = (time(observed_ms), time(predicted_ms));
    format!(
        "steps of plan {generation} take {observed}; {predicted} were predicted from estimated costs: plans from now on count with {} times \
         the compute that was estimated at first",
        significant(factor)
    )
}

#[cfg(test)]
mod tests;
