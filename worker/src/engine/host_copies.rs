//! Spare copies in the host's memory, for workers that compute on a GPU (ADR 27): a copy takes no memory of training. The processor's optimizer
//! updates it beside the steps, with the bits of the device's (ADR 22). Nothing here decides which units are copies.

use super::{Engine, EngineConfig, EngineError};
use crate::memory::make_room;
use varuna_plan::Unit;

impl Engine {
    /// From now on these units are spare copies, and all others are computed with. Where copies are kept in the host's memory, what is held of
    /// them moves there, and what is no copy any more to the device. What segments were computed with of which only copies are held is dropped. All
    /// units must have been recalled.
    ///
    /// # Errors
    /// Out of memory, or the device's driver reports an error: a unit may be lost, and the process must end.
    pub fn keep_copies(&mut self, copies: &[Unit]) -> Result<(), EngineError> {
        let EngineConfig {
            backend, training, ..
        } = &self.config;
        let device = backend.device;
        if !backend.keeps_copies_on_host(training.optimizer.rule) {
            self.drop_gathered_of_copies(copies);
            return Ok(make_room(device)?);
        }
        let former = std::mem::replace(&mut self.copies, copies.iter().copied().collect());
        let (mut to_host, mut to_device) = (Vec::new(), Vec::new());
        for (unit, held) in &self.units {
            match (held.is_on_host(), self.copies.contains(unit)) {
                (false, true) => to_host.push(*unit),
                // Another one lies in the host's memory because the device had no room: the next step that computes with it brings it there.
                (true, false) if former.contains(unit) => to_device.push(*unit),
                _ => {}
            }
        }
        // What comes to the device finds the room of what leaves it.
        to_host.into_iter().try_for_each(|unit| self.load_again(unit))?;
        self.drop_gathered_of_copies(copies);
        make_room(device)?;
        to_device.into_iter().try_for_each(|unit| self.load_again(unit))
    }

    /// Whether the unit is held in the host's memory, also where the device's is the same.
    ///
    /// # Errors
    /// The unit is not held.
    pub fn is_on_host(&self, unit: Unit) -> Result<bool, EngineError> {
        Ok(self.held_unit(unit)?.is_on_host())
    }
}
