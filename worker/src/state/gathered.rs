//! The tensors with which a worker computes a segment of whose state it holds only a part: all parameters, which their owners send in each
//! step, and all gradients. Also those of a unit whose state is still on its way, in a plan's first step (ADR 43).
//!
//! Moments are with the ranges of the state that a worker holds (ZeRO-1, Rajbhandari et al. 2020). In a narrower format the parameters here
//! are a copy, which is made anew in each step. In single precision the masters of the ranges that are held lie here themselves: they would
//! have the same bits as the copy. Each range keeps the memory alive, so that no state goes with what is dropped here.

use super::gradients::Gradients;
use super::{TAIL, UnitBuffers, UnitParameters, UnitSpec, Units, size};
use crate::backend::Backend;
use std::collections::BTreeMap;
use std::ops::Range;
use tch::Tensor;
use varuna_model::Unit;
use varuna_plan::Plan;
use varuna_torch::{FlatBuffer, PartedBuffer, TorchError};

/// Parameters and gradients of a unit of the undivided layout.
pub struct GatheredUnit {
    parameters: UnitParameters,
    /// The parameters one after the other, where they are computed with in single precision; else without elements. Nothing but the parameters
    /// themselves lies in between, so a range of them is in one piece.
    values: Tensor,
    /// The memory of `values`. Each part of it has the masters of a range.
    memory: PartedBuffer,
    gradients: Gradients,
}

impl GatheredUnit {
    /// Zeros.
    ///
    /// # Errors
    /// libtorch refuses (out of memory).
    pub fn new(spec: &UnitSpec, backend: Backend) -> Result<GatheredUnit, TorchError> {
        let list = &spec.parameters;
        let elements = spec.elements();
        let own = if backend.numerics.has_copy() { 0 } else { elements };
        let memory = PartedBuffer::zeros(own, backend.device, backend.streams)?;
        let values = memory.tensor()?;
        let gradients = Gradients::zeros(elements, backend)?;
        let parameters = UnitParameters::over(list, backend, &values).with_gradients(gradients.tensor())?;
        Ok(GatheredUnit {
            parameters,
            values,
            memory,
            gradients,
        })
    }

    /// Whether the masters of ranges that are held lie here.
    #[must_use]
    pub fn has_masters(&self) -> bool {
        !self.parameters.backend().numerics.has_copy()
    }

    /// Whether the masters of this unit lie here.
    #[must_use]
    pub fn has(&self, unit: &UnitBuffers) -> bool {
        self.memory.has(unit.masters_memory())
    }

    /// Memory for the masters of a range; none where former state of the range is still read there, or held.
    pub(super) fn place(&mut self, range: Range<usize>) -> Result<Option<FlatBuffer>, TorchError> {
        self.memory.part(range)
    }

    /// How many ranges have masters here that are held, or still read.
    pub fn occupied(&mut self) -> usize {
        self.memory.parts()
    }

    /// How many parameters there are.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.gradients.memory().len() - TAIL
    }

    /// The gradients of all parameters.
    #[must_use]
    pub fn gradients(&self) -> &Gradients {
        &self.gradients
    }

    /// The gradients alone: the parameters are not computed with any more.
    #[must_use]
    pub fn into_gradients(self) -> Gradients {
        self.gradients
    }

    /// Takes the parameters of a range, in any format. The masters of the range must not lie here.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn take(&self, range: Range<usize>, values: &Tensor) -> Result<(), TorchError> {
        let _guard = tch::no_grad_guard();
        let (start, end) = (size(range.start), size(range.end));
        for (part, copy) in self.parameters.pieces(start..end) {
            let length = part.end - part.start;
            let own = match copy {
                Some(copy) => copy,
                None => self.values.f_narrow(0, part.start, length).map_err(refused)?,
            };
            let from = values.f_narrow(0, part.start - start, length).map_err(refused)?;
            own.detach().f_copy_(&from).map_err(refused)?;
        }
        Ok(())
    }

    /// The memory of a range's parameters, as they are computed with: in pieces, none of which is empty if the range is not.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn parts(&self, range: Range<usize>) -> Result<Vec<Tensor>, TorchError> {
        let pieces = self
            .parameters
            .pieces(size(range.start)..size(range.end))
            .into_iter();
        let parts = pieces.map(|(part, copy)| match copy {
            Some(copy) => Ok(copy),
            None => self.values.f_narrow(0, part.start, part.end - part.start),
        });
        parts.collect::<Result<Vec<Tensor>, _>>().map_err(refused)
    }

    /// The parameters of a range, one after the other, as they are computed with.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn give(&self, range: Range<usize>) -> Result<Tensor, TorchError> {
        let parts = self.parts(range)?;
        match parts.as_slice() {
            [one] => Ok(one.shallow_clone()),
            several => Tensor::f_cat(several, 0).map_err(refused),
        }
    }
}

/// What a step computes with.
#[derive(Clone, Copy)]
pub struct Computing<'a> {
    /// Units that are held as a whole; none if their state is divided.
    held: Option<&'a BTreeMap<Unit, UnitBuffers>>,
    /// Units of the undivided layout whose parameters others send, wholly or in part. What is here is computed with, also if the unit is held.
    gathered: &'a BTreeMap<Unit, GatheredUnit>,
}

impl<'a> Computing<'a> {
    /// What a plan's steps compute with.
    #[must_use]
    pub fn of(
        plan: &Plan,
        held: &'a BTreeMap<Unit, UnitBuffers>,
        gathered: &'a BTreeMap<Unit, GatheredUnit>,
    ) -> Computing<'a> {
        let held = (plan.layout.ranges == 1).then_some(held);
        Computing { held, gathered }
    }

    /// The units whose parameters others send.
    #[must_use]
    pub fn gathered(self) -> &'a BTreeMap<Unit, GatheredUnit> {
        self.gathered
    }

    /// The state of a unit that is held as a whole.
    #[must_use]
    pub fn held(self, unit: Unit) -> Option<&'a UnitBuffers> {
        self.held?.get(&unit)
    }

    /// The gradients of a unit of the undivided layout; none if it is not here.
    #[must_use]
    pub fn gradients(self, whole: Unit) -> Option<&'a Gradients> {
        match self.gathered.get(&whole) {
            Some(gathered) => Some(gathered.gradients()),
            None => self.held(whole)?.gradients(),
        }
    }
}

impl Units for Computing<'_> {
    fn parameters_of(&self, unit: Unit) -> &UnitParameters {
        match (self.gathered.get(&unit), self.held) {
            (None, Some(held)) => held[&unit].parameters(),
            _ => &self.gathered[&unit].parameters,
        }
    }
}

fn refused(error: tch::TchError) -> TorchError {
    TorchError(error.to_string())
}
