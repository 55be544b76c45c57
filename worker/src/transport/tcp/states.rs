//! States and gradients that are sent part by part.

use crate::state::UnitSnapshot;
use varuna_torch::TorchError;

/// A state or a gradient that is read part by part while it is sent. It must not change meanwhile.
pub trait StateSource: Send {
    /// How many elements it has.
    fn elements(&self) -> usize;
    /// A copy of some of them.
    ///
    /// # Errors
    /// The elements cannot be read from the device.
    fn range(&self, start: usize, end: usize) -> Result<Vec<f32>, TorchError>;
}

impl StateSource for Vec<f32> {
    fn elements(&self) -> usize {
        self.len()
    }
    fn range(&self, start: usize, end: usize) -> Result<Vec<f32>, TorchError> {
        Ok(self[start..end].to_vec())
    }
}

impl StateSource for UnitSnapshot {
    fn elements(&self) -> usize {
        UnitSnapshot::elements(self)
    }
    fn range(&self, start: usize, end: usize) -> Result<Vec<f32>, TorchError> {
        UnitSnapshot::range(self, start, end)
    }
}
