//! Where the masters of a unit lie that is a range of a segment's state. In single precision the computation reads the very same bits, so while
//! a worker computes with the segment, they lie in the memory that it computes with. Otherwise they have memory of their own.
//!
//! Readers of the state go on to read the memory that they were given, which nobody writes before they end: the former memory after a move.

use super::{GatheredUnit, UnitBuffers};
use std::ops::Range;
use varuna_torch::{FlatBuffer, TorchError};

impl UnitBuffers {
    /// Moves the masters to where the segment is computed with, if it reads masters. True where they lie there now, or need not; false where
    /// former state of these elements is still read there, and they have stayed where they were.
    ///
    /// # Errors
    /// The unit has not as many elements, or libtorch refuses. The masters have stayed where they were.
    pub fn move_within(
        &mut self,
        gathered: &mut GatheredUnit,
        elements: Range<usize>,
    ) -> Result<bool, TorchError> {
        if !gathered.has_masters() || elements.is_empty() || gathered.has(self) {
            return Ok(true);
        }
        match gathered.place(elements)? {
            Some(place) => self.move_masters(place).map(|()| true),
            None => Ok(false),
        }
    }

    /// Gives the masters memory of their own, where they lie in what a segment is computed with.
    ///
    /// # Errors
    /// libtorch refuses (out of memory). The masters have stayed where they were.
    pub fn stand_alone(&mut self) -> Result<(), TorchError> {
        if !self.masters_memory().is_part() {
            return Ok(());
        }
        let backend = self.parameters.backend();
        let elements = self.masters_memory().len();
        self.move_masters(FlatBuffer::zeros(elements, backend.device, backend.streams)?)
    }

    /// The memory of the masters.
    pub(super) fn masters_memory(&self) -> &FlatBuffer {
        let [weights, ..] = &self.memory;
        weights
    }

    fn move_masters(&mut self, to: FlatBuffer) -> Result<(), TorchError> {
        let (own, given) = (self.masters_memory().len(), to.len());
        if own != given {
            return Err(TorchError(format!(
                "a place of {given} elements for {own} masters"
            )));
        }
        let _guard = tch::no_grad_guard();
        let mut weights = to.tensor()?;
        weights
            .f_copy_(&self.weights)
            .map_err(|e| TorchError(e.to_string()))?;
        self.parameters.move_to(&weights);
        self.weights = weights;
        let [memory, ..] = &mut self.memory;
        *memory = to;
        Ok(())
    }
}
