//! States and gradients that are sent part by part.

use crate::state::UnitSnapshot;

/// A state or a gradient that is read part by part while it is sent. It must not change meanwhile.
pub trait StateSource: Send {
    /// How many elements it has.
    fn elements(&self) -> usize;
    /// A copy of some of them.
    fn range(&self, start: usize, end: usize) -> Vec<f32>;
}

impl StateSource for Vec<f32> {
    fn elements(&self) -> usize {
        self.len()
    }
    fn range(&self, start: usize, end: usize) -> Vec<f32> {
        self[start..end].to_vec()
    }
}

impl StateSource for UnitSnapshot {
    fn elements(&self) -> usize {
        UnitSnapshot::elements(self)
    }
    fn range(&self, start: usize, end: usize) -> Vec<f32> {
        UnitSnapshot::range(self, start, end)
    }
}
