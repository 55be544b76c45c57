//! A plan's first step before all state is here (ADR 43): units whose state is still on its way are computed with tensors of their own, for
//! which others send the parameters. Once the step has ended only their reduced gradients are kept, until their state is here and the
//! optimizer, or somebody else, needs them (`reduced`).
//!
//! Which units these are follows from the plan alone. Their state may come before the step, beside it (`adopting`) or after it.

use super::{Engine, EngineError};
use crate::state::{UnitBuffers, UnitState};
use std::collections::BTreeMap;
use varuna_plan::{Plan, StateId, Step, Unit};

impl Engine {
    /// The units of this worker that it computes this step with parameters that others send.
    fn without_state(&self, plan: &Plan, step: Step) -> Vec<Unit> {
        let me = self.config.me;
        let mut units = plan.units(me);
        units.retain(|unit| plan.parameters_sender(me, *unit, step).is_some());
        units
    }

    /// Those that it computes with as they are held.
    pub(super) fn with_state(&self, plan: &Plan, step: Step) -> Vec<Unit> {
        let me = self.config.me;
        let mut units = plan.units(me);
        units.retain(|unit| plan.parameters_sender(me, *unit, step).is_none());
        units
    }

    /// Those whose parameters it sends to others. It need not compute with them itself.
    fn sent(&self, plan: &Plan, step: Step) -> Vec<Unit> {
        let sent = plan.parameters_sent_by(self.config.me, step).iter();
        let mut units: Vec<Unit> = sent.map(|(unit, _)| *unit).collect();
        units.dedup();
        units
    }

    /// Takes back the units whose parameters it sends, which must all be here. The plan may be wrong about that: the worker and its other state
    /// are worth more than the step.
    pub(super) fn recall_sent(&mut self, plan: &Plan, step: Step) -> Result<(), EngineError> {
        let sent = self.sent(plan, step);
        self.recall(&sent)?;
        let mut missing = sent.into_iter().filter(|unit| !self.units.contains_key(unit));
        missing
            .next()
            .map_or(Ok(()), |unit| Err(EngineError::NothingToSend(unit)))
    }

    /// Makes the tensors with which this step computes units without their state.
    pub(super) fn make_without_state(&mut self, plan: &Plan, step: Step) -> Result<(), EngineError> {
        let units = self.without_state(plan, step).into_iter();
        let made = units.map(|unit| Ok((unit, self.new_gathered(unit)?)));
        // All or none: what was made is freed where there is no memory for the rest.
        let made = made.collect::<Result<BTreeMap<_, _>, EngineError>>()?;
        self.gathered.extend(made);
        Ok(())
    }

    /// Takes over the state `id` of a unit. What is held of the unit is given up. True if the gradient of a step from that very state is kept,
    /// which was computed before the state was here.
    ///
    /// # Errors
    /// As [`Engine::import`].
    pub fn adopt(&mut self, unit: Unit, id: StateId, state: &UnitState) -> Result<bool, EngineError> {
        let gradient = self.reduced.take_waiting(unit, id);
        self.import(unit, state)?;
        self.put_waiting(unit, gradient)
    }

    /// Takes over the units that were adopted beside a step ([`Engine::adopter`]), each with whether a gradient of it is kept: see
    /// [`Engine::adopt`]. With `waits`, also those that are just being made.
    ///
    /// # Errors
    /// As [`Engine::recall`], and where the gradient of one has no place.
    pub fn take_adopted(&mut self, waits: bool) -> Result<Vec<(Unit, bool)>, EngineError> {
        let adopted = self.adopted.take(waits).into_iter();
        let adopted = adopted.map(|(unit, id, buffers)| Ok((unit, self.put_adopted((unit, id), buffers)?)));
        adopted.collect()
    }

    fn put_adopted(
        &mut self,
        (unit, id): (Unit, StateId),
        buffers: UnitBuffers,
    ) -> Result<bool, EngineError> {
        self.recall(&[unit])?;
        let gradient = self.reduced.take_waiting(unit, id);
        self.reduced.forget(unit);
        self.units.insert(unit, buffers);
        self.put_waiting(unit, gradient)
    }
}

#[cfg(test)]
mod tests;
