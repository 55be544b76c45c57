//! The driver's side of checkpoints: what the store shows goes to the machine and to people. The store is asked elsewhere.

use super::{Driver, STALE_INTERVALS};
use crate::checkpoints::Known;
use crate::narrator::Stored;
use std::time::Instant;
use varuna_plan::{Base, StateId, Step};
use varuna_protocol::coordinator::CoordinatorInput;

impl Driver {
    pub(super) fn save(&mut self) -> Result<u64, String> {
        if self.checkpoints.is_none() {
            return Err("the job names no place for checkpoints (spec.checkpoint)".into());
        }
        self.feed(CoordinatorInput::Save);
        Ok(self.machine.snapshot().step.0)
    }

    /// The store has answered: for the machine, and for people what is new.
    pub(super) fn checkpoints(&mut self, known: Known) {
        let newest = known.usable.iter().max();
        if let Some(id) = newest.filter(|id| Some(*id) > self.known.usable.iter().max()) {
            self.tell_stored(&Stored::Checkpointed {
                step: id.step,
                state: *id,
            });
            self.saved_at = Instant::now();
        }
        if let (Some(why), None) = (&known.failing, &self.known.failing) {
            self.tell_stored(&Stored::CheckpointsFail {
                why: why.clone(),
                newest_step: newest.map(|id| id.step),
            });
        }
        let answered = known.answered;
        self.known = known;
        if !answered {
            // Whether there is a checkpoint is not known: nothing may start from nothing.
            return;
        }
        self.note_staleness();
        let record = self.machine.record();
        let bases: Vec<StateId> = [&record.plan, &record.next]
            .into_iter()
            .flatten()
            .filter_map(|plan| match plan.base {
                Base::Fixed { id, .. } => Some(id),
                Base::AtSwitch { .. } => None,
            })
            .collect();
        if let Some(watch) = &self.checkpoints {
            watch.protect(bases);
        }
        let usable = self.known.usable.clone();
        self.feed(CoordinatorInput::Checkpoints(usable));
    }

    /// Says once that checkpoints fall behind, whatever the reason, until they do not any more.
    fn note_staleness(&mut self) {
        let Some(settings) = &self.options.job.checkpoint else {
            return;
        };
        let newest = self.known.usable.iter().max().map_or(Step(0), |id| id.step);
        let behind = self.machine.snapshot().step.0.saturating_sub(newest.0);
        let steps = STALE_INTERVALS.saturating_mul(settings.regular_steps());
        let old = |seconds: u64| self.saved_at.elapsed().as_secs() > STALE_INTERVALS.saturating_mul(seconds);
        let stale = behind > 0 && (behind > steps || settings.interval_seconds.is_some_and(old));
        if stale && !self.stale {
            self.tell_stored(&Stored::CheckpointStale {
                newest_step: newest,
                steps_behind: behind,
            });
        }
        self.stale = stale;
    }

    /// Of two runs the one that came later writes there: this one ends.
    pub(super) fn taken(&mut self, run: String) {
        if self.taken.is_some() {
            return;
        }
        self.tell_stored(&Stored::CheckpointsTaken { by: run.clone() });
        self.taken = Some(run);
        self.feed(CoordinatorInput::Stop);
    }
}
