//! The reduced gradients of the last step until the optimizer takes them, wherever they lie and wherever their units are moved.

use super::panics::caught;
use super::without_memory::{give_back, shortage, without_room};
use super::{Engine, EngineError};
use crate::state::Gradients;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Base, Plan, StateId, Step, Unit};

/// Completely reduced gradients of the last step that are not applied yet. A unit that is here has one, in one of two places.
#[derive(Default)]
pub(super) struct Reduced {
    /// The state that the step began with; none if the step computed no unit without its state.
    pub(super) from: Option<StateId>,
    /// Units that have it in their buffers.
    pub(super) in_buffers: BTreeSet<Unit>,
    /// Those of units that were computed without their state.
    pub(super) waiting: BTreeMap<Unit, Gradients>,
}

impl Reduced {
    /// A unit was changed by something else than the step, or its state comes from elsewhere.
    pub(super) fn forget(&mut self, unit: Unit) {
        self.in_buffers.remove(&unit);
        self.waiting.remove(&unit);
    }

    /// Keeps only the gradients of these units.
    pub(super) fn retain(&mut self, keep: &[Unit]) {
        self.in_buffers.retain(|unit| keep.contains(unit));
        self.waiting.retain(|unit, _| keep.contains(unit));
    }

    /// The gradient that waits for the unit's state `id`, if it is of a step from that state.
    pub(super) fn take_waiting(&mut self, unit: Unit, id: StateId) -> Option<Gradients> {
        let is_of_step = self.from == Some(id);
        is_of_step.then(|| self.waiting.remove(&unit)).flatten()
    }
}

/// A gradient on the way from a unit's buffers to others.
enum Moved {
    Waiting(Gradients),
    Copied(Vec<f32>),
}

impl Engine {
    /// After a step: keeps the gradients that are completely reduced, and of the tensors for units without their state nothing else.
    pub(super) fn keep_reduced(&mut self, plan: &Plan, step: Step, prepared: &[(Unit, UnitNorm)]) {
        let mut in_buffers: BTreeSet<Unit> = prepared.iter().map(|(unit, _)| *unit).collect();
        let (mut from, mut waiting) = (None, BTreeMap::new());
        if let (true, Base::Fixed { id, .. }) = (plan.sends_parameters_in(step), &plan.base) {
            from = Some(*id);
            for (unit, here) in std::mem::take(&mut self.gathered) {
                if in_buffers.remove(&unit) {
                    waiting.insert(unit, here.into_gradients());
                }
            }
        }
        self.reduced = Reduced {
            from,
            in_buffers,
            waiting,
        };
    }

    /// Gives a unit whose state was just taken over the gradient that has waited for it. True if there is one. A unit for which the device had no
    /// room gets it only when it is applied: until then the device may get room, as former units are freed before any decision.
    pub(super) fn put_waiting(
        &mut self,
        unit: Unit,
        gradient: Option<Gradients>,
    ) -> Result<bool, EngineError> {
        let Some(gradient) = gradient else {
            return Ok(false);
        };
        self.reduced.waiting.insert(unit, gradient);
        if self.config.backend.device.is_host() || !self.is_on_host(unit)? {
            self.settle(unit)?;
        }
        Ok(true)
    }

    /// Before the optimizer: moves a gradient that waits for the unit's state, which must be here now, to where the optimizer takes it from. A unit
    /// for which the device had no room comes to it now, if the optimizer has other bits elsewhere or there is room.
    ///
    /// # Errors
    /// The unit is not held, has no gradient of the last step, or there is no room for it.
    pub(super) fn settle(&mut self, unit: Unit) -> Result<(), EngineError> {
        let device = self.config.backend.device;
        let held = self.units.get_mut(&unit).ok_or(EngineError::NotHeld(unit))?;
        let Some(gradient) = self.reduced.waiting.remove(&unit) else {
            // Its buffers would have zeros, or the gradient of another step.
            let is_there = self.reduced.in_buffers.contains(&unit);
            return is_there.then_some(()).ok_or(EngineError::NoGradient(unit));
        };
        match device.is_host() || !held.is_on_host() {
            true => {
                let taken = held.take_gradient(&gradient);
                taken.map_err(|e| EngineError::of_buffer(unit, e))?;
            }
            false => self.settle_on_host(unit, gradient)?,
        }
        self.reduced.in_buffers.insert(unit);
        Ok(())
    }

    /// The same for a unit in the host's memory, beside a device with its own.
    fn settle_on_host(&mut self, unit: Unit, gradient: Gradients) -> Result<(), EngineError> {
        let backend = self.config.backend;
        let values = gradient.copy().map_err(|e| EngineError::of_buffer(unit, e))?;
        drop(gradient);
        give_back(&backend);
        if let Err(error) = self.place(&[unit]) {
            let equal_bits = backend.has_equal_bits_on_host(self.config.training.optimizer.rule);
            if !equal_bits || shortage(backend.device, &error).is_none() {
                return Err(without_room(backend.device, unit, error));
            }
        }
        self.set_gradient(unit, &values)
    }

    fn set_gradient(&mut self, unit: Unit, values: &[f32]) -> Result<(), EngineError> {
        let held = self.units.get_mut(&unit).ok_or(EngineError::NotHeld(unit))?;
        let device = held.parameters().backend().device;
        let set = caught(|| {
            let set = held.set_gradient(values);
            set.map_err(|e| EngineError::of_buffer(unit, e))
        });
        set.map_err(|error| without_room(device, unit, error))
    }

    /// Loads a unit that is held to where it belongs now. Its gradient of the last step goes with it, because the decision may still come.
    pub(super) fn load_again(&mut self, unit: Unit) -> Result<(), EngineError> {
        let moved = self.move_gradient(unit)?;
        let state = self.export(unit)?;
        self.import(unit, &state)?;
        match moved {
            Some(Moved::Waiting(gradient)) => self.put_waiting(unit, Some(gradient)).map(drop),
            Some(Moved::Copied(values)) => {
                self.set_gradient(unit, &values)?;
                self.reduced.in_buffers.insert(unit);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn move_gradient(&mut self, unit: Unit) -> Result<Option<Moved>, EngineError> {
        if let Some(gradient) = self.reduced.waiting.remove(&unit) {
            return Ok(Some(Moved::Waiting(gradient)));
        }
        let held = self.held_unit(unit)?;
        if !self.reduced.in_buffers.contains(&unit) || held.gradients().is_none() {
            return Ok(None);
        }
        let values = held.gradient().map_err(|e| EngineError::of_buffer(unit, e))?;
        Ok(Some(Moved::Copied(values)))
    }
}

#[cfg(test)]
mod tests;
