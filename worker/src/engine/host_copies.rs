//! Spare copies in the host's memory, for workers that compute on a GPU (ADR 27): a copy takes no memory of training. The processor's optimizer
//! updates it beside the steps, with the bits of the device's (ADR 22). Nothing here decides which units are copies.

use super::{Engine, EngineConfig, EngineError};
use varuna_plan::Unit;

impl Engine {
    /// From now on these units are spare copies, and all others are computed with. Where copies are kept in the host's memory, what is held of
    /// them moves there, and everything else to the device. All units must have been recalled.
    ///
    /// # Errors
    /// Out of memory, or the device's driver reports an error: a unit may be lost, and the process must end.
    pub fn keep_copies(&mut self, copies: &[Unit]) -> Result<(), EngineError> {
        let EngineConfig {
            backend, training, ..
        } = &self.config;
        if !backend.keeps_copies_on_host(training.optimizer.rule) {
            return Ok(());
        }
        self.copies = copies.iter().copied().collect();
        let held: Vec<Unit> = self.units.keys().chain(self.on_host.keys()).copied().collect();
        held.into_iter().try_for_each(|unit| self.settle(unit))
    }

    /// Moves a unit to where it belongs, if it is not there.
    fn settle(&mut self, unit: Unit) -> Result<(), EngineError> {
        let is_copy = self.copies.contains(&unit);
        let is_settled = match self.units.get(&unit) {
            Some(held) => held.is_on_host() == is_copy,
            // Where the device had no room, the next step that computes with the unit brings it there.
            None => !is_copy,
        };
        if is_settled {
            return Ok(());
        }
        let state = self.export(unit)?;
        self.import(unit, &state)
    }

    /// Whether the unit is held in the host's memory, also where the device's is the same.
    ///
    /// # Errors
    /// The unit is not held.
    pub fn is_on_host(&self, unit: Unit) -> Result<bool, EngineError> {
        Ok(self.held_unit(unit)?.is_on_host())
    }
}
