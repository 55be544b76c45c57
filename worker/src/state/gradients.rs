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

    /// These gradients, in their own memory on the host, without a tail.
    fn of_host(values: Vec<f32>) -> Result<Gradients, TorchError> {
        let memory = FlatBuffer::of_host(values);
        let all = 0..memory.len();
        Gradients::within(memory, all)
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

    /// Whether these are a buffer of their own for a unit of this many elements, and lie not within what a segment's workers sum.
    pub(super) fn is_own_of(&self, elements: usize) -> bool {
        self.memory.len() == elements + TAIL
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
    /// Uses gradients that another worker has computed for the next update. On the host they stay where they lie, and the unit's own buffer is
    /// put aside, for [`UnitBuffers::restore_gradients`] after the update; elsewhere they are copied to that.
    ///
    /// # Errors
    /// As [`UnitBuffers::set_gradient`].
    pub fn use_gradient(&mut self, gradient: Vec<f32>) -> Result<Option<Gradients>, LeaseError> {
        let elements = self.memory[0].len();
        let on_host = self.parameters.backend().device.is_host();
        let has_own = self.gradients.as_ref().is_some_and(|g| g.is_own_of(elements));
        if !on_host || gradient.len() != elements || !has_own {
            self.set_gradient(&gradient)?;
            return Ok(None);
        }
        Ok(self.gradients.replace(Gradients::of_host(gradient)?))
    }

    /// Gives the unit its own buffer back. What that holds is not defined.
    pub fn restore_gradients(&mut self, aside: Option<Gradients>) {
        self.gradients = aside.or_else(|| self.gradients.take());
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::Unit;

    #[test]
    fn a_gradient_of_another_worker_is_used_where_it_lies() {
        let mut unit = UnitBuffers::of_small_model(Unit(1));
        let elements = unit.gradient().unwrap().len();
        let gradient: Vec<f32> = (0..u16::MAX).map(f32::from).take(elements).collect();
        let aside = unit.use_gradient(gradient.clone()).unwrap();
        assert_eq!(unit.gradient().unwrap(), gradient);
        assert_eq!(
            unit.gradients().unwrap().memory().len(),
            elements,
            "it was not copied"
        );
        unit.restore_gradients(aside);
        let own = unit.gradients().unwrap().memory().len();
        assert_eq!(own, elements + TAIL, "a step needs the unit's own buffer");
        assert_eq!(unit.gradient().unwrap(), vec![0.0; elements]);
    }

    #[test]
    fn a_unit_without_a_buffer_of_its_own_gets_one() {
        let mut unit = UnitBuffers::of_small_model(Unit(1));
        let elements = unit.gradient().unwrap().len();
        unit.gradients = None;
        let aside = unit.use_gradient(vec![1.0; elements]).unwrap();
        assert!(aside.is_none());
        unit.restore_gradients(aside);
        assert_eq!(unit.gradient().unwrap(), vec![1.0; elements]);
        let wrong = unit.use_gradient(vec![1.0; elements + 1]);
        assert!(wrong.is_err_and(|why| why.to_string().contains("a gradient of")));
    }
}
