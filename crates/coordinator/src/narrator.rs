//! The run's diary in sentences, for people. For tools the same entries are in `events.jsonl`.
//!
//! It must never decide anything, and nothing may depend on its words.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varuna_plan::{Generation, Layout, StateId, Step, WorkerId};
use varuna_protocol::coordinator::Event;

/// So many workers are named; of the others there is a count. A node takes eight with it.
const NAMES_MAX: usize = 8;

/// An entry that the driver makes itself: what the store of the checkpoints shows.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Stored {
    /// There is a newer checkpoint.
    Checkpointed {
        /// Steps done in it.
        step: Step,
        /// Its state.
        state: StateId,
    },
    /// The store does not answer, or refuses.
    CheckpointsFail {
        /// In its words.
        why: String,
        /// Step of the newest one that is known.
        newest_step: Option<Step>,
    },
    /// The newest is far behind.
    CheckpointStale {
        /// Its step; 0: there is none.
        newest_step: Step,
        /// How far.
        steps_behind: u64,
    },
    /// Another run writes at this run's place.
    CheckpointsTaken {
        /// The other one.
        by: String,
    },
}

impl Stored {
    pub(crate) fn sentence(&self) -> String {
        match self {
            Stored::Checkpointed { step, .. } => format!("checkpoint of step {step} is complete"),
            Stored::CheckpointsFail {
                why,
                newest_step: Some(step),
            } => format!("checkpoints fail, the newest is of step {step}: {why}"),
            Stored::CheckpointsFail { why, .. } => format!("checkpoints fail, there is none yet: {why}"),
            Stored::CheckpointStale {
                newest_step: Step(0),
                steps_behind,
            } => format!("there is no checkpoint after {}", count(*steps_behind, "step")),
            Stored::CheckpointStale {
                newest_step,
                steps_behind,
            } => format!(
                "checkpoints fall behind: the newest is of step {newest_step}, {} ago",
                count(*steps_behind, "step")
            ),
            Stored::CheckpointsTaken { by } => {
                format!("the place of the checkpoints is another run's, {by}: this run ends")
            }
        }
    }
}

/// Where a plan takes up.
#[derive(Clone, Copy, Debug)]
struct From {
    generation: Generation,
    step: Step,
    lost: u64,
}

/// Tells a run's story. It remembers what later sentences refer to.
#[derive(Debug)]
pub(crate) struct Narrator {
    layout: Layout,
    /// Workers that have joined, by name.
    names: BTreeMap<WorkerId, String>,
    /// Workers that may go: nobody misses them.
    released: BTreeSet<WorkerId>,
    /// When training was stopped; none while it goes on.
    stopped: Option<Duration>,
    from: Option<From>,
}

impl Narrator {
    pub(crate) fn new(layout: Layout) -> Narrator {
        Narrator {
            layout,
            names: BTreeMap::new(),
            released: BTreeSet::new(),
            stopped: None,
            from: None,
        }
    }

    /// What an event says. `at`: on the coordinator's clock; `lost`: steps that are trained again because of it.
    pub(crate) fn sentence(&mut self, at: Duration, event: &Event, lost: u64) -> String {
        self.remember(at, event, lost);
        match event {
            Event::TookOver { term } => format!("took over as the run's coordinator, term {term}"),
            Event::WorkerJoined { name, address, .. } => format!("{name} has joined from {address}"),
            Event::WorkerLost { worker, name } if self.released.remove(worker) => format!("{name} has gone"),
            Event::WorkerLost { name, .. } => format!("lost {name}: its connection closed or fell silent"),
            Event::WorkerDraining { name, .. } => {
                format!("{name} has notice that it will go: it is planned around")
            }
            Event::WorkerReleased { name, .. } => format!("{name} is released: it may go"),
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
            } => starts(*generation, base.step, *finished, *restored, lost),
            Event::Connected { generation } => {
                format!("the workers of plan {generation} have reached each other")
            }
            Event::Running { generation } => self.running(at, *generation),
            Event::Switched { generation } => {
                format!("plan {generation} has taken over; training did not stop")
            }
            Event::Cancelled { generation, because } => {
                format!("plan {generation} is dropped before it began: {because}")
            }
            Event::Committed { step, loss, .. } => {
                format!("step {step} is committed, loss {loss:.4} nats per token")
            }
            Event::StepTimeOff {
                generation,
                predicted_ms,
                observed_ms,
                calibrated,
            } => step_time_off(*generation, *predicted_ms, *observed_ms, *calibrated),
            Event::BelowMinimum { have, need } => {
                format!("training waits for workers: {have} there, {need} needed")
            }
            Event::NoPlan { reason } => {
                format!("training waits: there is no plan for these workers: {reason}")
            }
            Event::WriteFailed { version } => {
                format!(
                    "version {version} of the run's record could not be written: no plan changes until it can"
                )
            }
            Event::Lost { units } => {
                let what = self.layout.name(units);
                format!("the state of {what} is lost: no worker and no checkpoint holds it")
            }
            Event::Done { step } => format!("training is done with step {step}"),
            Event::Deposed { by_term } => format!("gave way to another coordinator, of term {by_term}"),
        }
    }

    fn remember(&mut self, at: Duration, event: &Event, lost: u64) {
        match event {
            Event::WorkerJoined { worker, name, .. } => {
                self.names.insert(*worker, name.clone());
                self.released.remove(worker);
            }
            Event::WorkerReleased { worker, .. } => {
                self.released.insert(*worker);
            }
            // A recovery that another loss overtakes goes on.
            Event::Fenced { .. } => self.stopped = self.stopped.or(Some(at)),
            Event::Resumed { generation, base, .. } => {
                self.from = Some(From {
                    generation: *generation,
                    step: base.step,
                    lost,
                });
            }
            _ => {}
        }
    }

    fn collected(&self, answered: usize, missing: &[WorkerId]) -> String {
        let hold = if answered == 1 { "it holds" } else { "they hold" };
        let answered = count(answered as u64, "worker");
        if missing.is_empty() {
            return format!("{answered} answered with what {hold}; nobody is missing");
        }
        let name = |w: &WorkerId| self.names.get(w).cloned().unwrap_or_else(|| w.to_string());
        let names: Vec<String> = missing.iter().take(NAMES_MAX).map(name).collect();
        let names = names.join(", ");
        let more = match missing.len().saturating_sub(NAMES_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{answered} answered with what {hold}; {names}{more} did not")
    }

    fn running(&mut self, at: Duration, generation: Generation) -> String {
        let from = self.from.take().filter(|f| f.generation == generation);
        match (from, self.stopped.take()) {
            (Some(from), Some(since)) => format!(
                "resumed at step {} in {} with {} lost, under plan {generation}",
                from.step,
                time(at.saturating_sub(since).as_secs_f64() * 1e3),
                count(from.lost, "step")
            ),
            (Some(from), None) => format!("training begins at step {} under plan {generation}", from.step),
            (None, _) => format!("all workers train under plan {generation}"),
        }
    }
}

fn planned(shape: &str, workers: usize, generation: Generation, predicted_ms: f64, change: bool) -> String {
    let workers = count(workers as u64, "worker");
    let what = if change { "planned a change to" } else { "planned" };
    format!(
        "{what} {shape} for {workers} (plan {generation}, about {} a step)",
        time(predicted_ms)
    )
}

fn starts(generation: Generation, step: Step, finished: bool, restored: bool, lost: u64) -> String {
    let from = match (restored, step) {
        (true, Step(0)) => "the job's seed",
        (true, _) => "a checkpoint",
        (false, _) => "the workers' memory",
    };
    let finished = if finished {
        ", which was interrupted and is finished"
    } else {
        ""
    };
    let again = match lost {
        0 => String::new(),
        lost => format!("; {} are trained again", count(lost, "step")),
    };
    format!("plan {generation} starts at step {step}{finished}, from {from}{again}")
}

fn step_time_off(generation: Generation, predicted_ms: f64, observed_ms: f64, calibrated: bool) -> String {
    let from = if calibrated { "measured" } else { "assumed" };
    let (observed, predicted) = (time(observed_ms), time(predicted_ms));
    format!("steps of plan {generation} take {observed}, not {predicted} as predicted from {from} costs")
}

/// `1 step`, `2 steps`.
fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// A time as people say it: `0.8 s`, `154 ms`, `2.5 ms`.
fn time(ms: f64) -> String {
    if ms >= 500.0 {
        format!("{:.1} s", ms / 1e3)
    } else if ms >= 10.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{ms:.1} ms")
    }
}

#[cfg(test)]
mod tests;
