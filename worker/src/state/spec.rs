//! What a unit consists of, and the initial values of its parameters.

use super::size;
use crate::backend::Backend;
use std::ops::Range;
use tch::{Kind, Tensor};
use varuna_model::layout::part_in_range;
use varuna_model::{Initial, Parameter, Transformer, Unit};
use varuna_plan::state::mix;
use varuna_torch::{TorchError, fill_normal};

/// What a unit consists of.
#[derive(Clone, PartialEq, Debug)]
pub struct UnitSpec {
    /// The unit's parameters, in the order of flat buffers.
    pub parameters: Vec<Parameter>,
    /// The matrices of a block as an optimizer sees them that treats a matrix as one: (rows, columns), in the order of flat buffers, whose first
    /// elements they are.
    pub matrices: Vec<[usize; 2]>,
}

impl UnitSpec {
    /// A unit of a transformer.
    #[must_use]
    pub fn of(model: &Transformer, unit: Unit) -> UnitSpec {
        UnitSpec {
            parameters: model.parameters(unit),
            matrices: model.block_matrices(unit),
        }
    }

    /// How many parameters there are, one after the other.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.parameters.iter().map(Parameter::elements).sum()
    }

    /// What a range of these elements consists of: of each parameter that lies in it, at least in part, that part as a row.
    #[must_use]
    pub fn range(&self, range: &Range<usize>) -> UnitSpec {
        let (mut start, all) = (0, self.elements());
        let parts = self.parameters.iter().filter_map(|parameter| {
            let own = start..start + parameter.elements();
            start = own.end;
            let part = part_in_range(&own, range, all)?;
            Some(Parameter {
                shape: vec![part.len()],
                ..parameter.clone()
            })
        });
        UnitSpec {
            parameters: parts.collect(),
            matrices: Vec::new(),
        }
    }

    /// The initial values of parameters from the job's seed, one after the other: the same on every worker.
    ///
    /// # Errors
    /// libtorch fails (out of memory).
    pub fn initial_values(&self, backend: Backend, seed: u64) -> Result<Tensor, TorchError> {
        let on = (Kind::Float, backend.device.tensors());
        let values = Tensor::f_zeros([size(self.elements())], on).map_err(|e| TorchError(e.to_string()))?;
        self.set_initial(&values, seed)?;
        Ok(values)
    }

    /// Writes them over zeros.
    pub(super) fn set_initial(&self, zeros: &Tensor, seed: u64) -> Result<(), TorchError> {
        let _guard = tch::no_grad_guard();
        let mut at = 0;
        for parameter in &self.parameters {
            let own = size(parameter.elements());
            let shape: Vec<i64> = parameter.shape.iter().map(|s| size(*s)).collect();
            let mut view = zeros.narrow(0, at, own).view(shape.as_slice());
            at += own;
            match parameter.initial {
                Initial::Normal(deviation) => {
                    let [block, number] = parameter.stream;
                    let own = [0x1717, block, number].into_iter().fold(seed, mix);
                    fill_normal(&view, own, deviation)?;
                }
                Initial::Ones => drop(view.fill_(1.0)),
                Initial::Zeros => {}
            }
        }
        Ok(())
    }
}
