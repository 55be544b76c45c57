//! Invariant (b): there is one state id per (generation, step). Equal id and unit mean equal bits, and equal ids mean the same loss scale
//! and counters of the optimizer, however a worker got them.

use super::{Checker, Violation, broken};
use crate::engine::{SCALING, UnitState, initial_bits};
use varuna_plan::{Decision, OptimizerProgress, StateId, Unit, WorkerId};

/// How a worker got a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// By running the previous step as a holder under the plan.
    Step,
    /// By the gradient of another worker's step, for a copy that only follows: no comparison includes it.
    Forwarded,
    /// From another worker, or from the store.
    Taken,
}

impl Checker {
    /// A worker's unit is at this state.
    pub(crate) fn set(
        &mut self,
        worker: WorkerId,
        unit: Unit,
        id: StateId,
        state: UnitState,
        origin: Origin,
    ) -> Result<(), Violation> {
        let bits = state.bits;
        let known = *self.at_step.entry((id.run_gen, id.step)).or_insert(id);
        if known != id {
            return broken('b', format!("two states of one step: {known} and {id}"));
        }
        self.reached(id);
        if !self.flips.is_rolled_back(id) {
            self.had.insert((worker, unit), id);
        }
        self.counts(id, state.progress)?;
        let sound = self.bits.get(&(id, unit)) == Some(&bits);
        let computed = origin != Origin::Taken;
        if !sound && self.flips.follows((worker, unit), id, bits, computed) {
            return Ok(());
        }
        if origin == Origin::Step {
            self.flips.note_right_holder(id, unit);
        }
        self.flips.end(worker, unit);
        let initial = initial_bits(unit);
        let expected = if id == StateId::INITIAL {
            initial
        } else {
            *self.bits.entry((id, unit)).or_insert(bits)
        };
        if expected != bits {
            return broken('b', format!("{worker:?} {unit:?} differs at {id}"));
        }
        Ok(())
    }

    /// Checks that all units of a state, on all workers and in all checkpoints, have the same loss scale and number of applied steps.
    fn counts(&mut self, id: StateId, progress: OptimizerProgress) -> Result<(), Violation> {
        let first = if id == StateId::INITIAL {
            OptimizerProgress::initial(&SCALING)
        } else {
            *self.progress.entry(id).or_insert(progress)
        };
        if first != progress {
            return broken(
                'b',
                format!("the optimizer counted {first:?} and {progress:?} at {id}"),
            );
        }
        Ok(())
    }

    /// Checks that the optimizer's counters follow from the decisions: an overflow is skipped and halves the loss scale.
    pub(super) fn counted(&mut self, decision: &Decision) -> Result<(), Violation> {
        self.counts(decision.parent, decision.before)?;
        self.counts(decision.id, decision.after(&SCALING))
    }

    /// Somebody has this state.
    pub(super) fn reached(&mut self, id: StateId) {
        if self.top < Some(id) && !self.flips.is_rolled_back(id) {
            self.top = Some(id);
            self.given_up = false;
        }
    }

    /// Given up by the rules, at Go.
    pub(crate) fn freed(&mut self, worker: WorkerId, keep: &[Unit]) {
        self.had
            .retain(|(w, unit), _| *w != worker || keep.contains(unit));
    }
}
