//! The gradients of a unit: a buffer of its own, or, if workers divide the segment's state among them, a range of the buffer that they sum.

use super::{TAIL, UnitBuffers};
use crate::backend::Backend;
use std::ops::Range;
use tch::Tensor;
use varuna_torch::{FlatBuffer, LeaseError, TorchError};

/// Gradients, one element for each parameter.
pub struct Gradients {
    /// The gradients of the range.
    tensor: Tensor,
    memory: FlatBuffer,
    range: Range<usize>,
}

impl Gradients {
    /// Zeros for this many parameters, followed by a tail.
    ///
    /// # Errors
    /// libtorch refuses (out of memory).
    pub(super) fn zeros(elements: usize, backend: Backend) -> Result<Gradients, TorchError> {
        let memory = FlatBuffer::zeros(elements + TAIL, backend.device, backend.streams)?;
        Gradients::within(memory, 0..elements)
    }

    fn within(memory: FlatBuffer, range: Range<usize>) -> Result<Gradients, TorchError> {
        Ok(Gradients {
            tensor: memory.narrow(range.clone())?,
            memory,
            range,
        })
    }

    /// The gradients of a range of the parameters, in the same memory.
    ///
    /// # Errors
    /// There are not as many.
    pub(super) fn part(&self, range: Range<usize>) -> Result<Gradients, TorchError> {
        let start = self.range.start;
        Gradients::within(self.memory.handle(), start + range.start..start + range.end)
    }

    /// The gradients, without a tail.
    pub(super) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The memory that they lie in, with its tail.
    #[must_use]
    pub fn memory(&self) -> &FlatBuffer {
        &self.memory
    }

    /// Whether the memory is with the reduction.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.memory.is_leased()
    }

    /// A copy.
    ///
    /// # Errors
    /// The buffer is lent out.
    pub fn copy(&self) -> Result<Vec<f32>, LeaseError> {
        self.memory.copy(self.range.clone())
    }

    /// Zeroes the whole memory, also beside the range, in place.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn zero(&self) -> Result<(), TorchError> {
        let _ = self.memory.tensor()?.zero_();
        Ok(())
    }
}

impl UnitBuffers {
    /// Replaces the gradients by these, which were computed with other buffers of the unit; the tail stays.
    ///
    /// # Errors
    /// There are not as many, or one of the two is lent out.
    pub fn take_gradient(&mut self, from: &Gradients) -> Result<(), LeaseError> {
        let Some(own) = self.gradients().filter(|own| own.range.len() == from.range.len()) else {
            return self.set_gradient(&from.copy()?);
        };
        if own.is_leased() || from.is_leased() {
            return Err(LeaseError::Taken);
        }
        let _guard = tch::no_grad_guard();
        let copied = own.tensor.shallow_clone().f_copy_(&from.tensor);
        Ok(copied.map(drop).map_err(|e| TorchError(e.to_string()))?)
    }
}
