//! The parameters of a unit as the forward reads them: by name, in the format that is computed in.

use super::compute_copy::ComputeCopy;
use super::{UnitBuffers, UnitSpec, on_device, size};
use crate::ablation::Ablation;
use crate::backend::Backend;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use tch::{Kind, Tensor};
use varuna_model::{Parameter, Unit};
use varuna_torch::{HeadTable, Kernels, TorchError, set_grad};

/// The parameters of one unit.
pub struct UnitParameters {
    /// The parameters by name: views of `copy`, or else of the masters.
    leaves: Vec<(Cow<'static, str>, Tensor)>,
    /// The parameters in the format that is computed in, where that is not the masters' own.
    copy: Option<ComputeCopy>,
    backend: Backend,
}

/// Where the forward finds the parameters of the units that it needs.
pub trait Units {
    /// The parameters of a unit, which must be one of the units that are there.
    fn parameters_of(&self, unit: Unit) -> &UnitParameters;
}

impl Units for BTreeMap<Unit, UnitBuffers> {
    fn parameters_of(&self, unit: Unit) -> &UnitParameters {
        self[&unit].parameters()
    }
}

impl Units for BTreeMap<Unit, UnitParameters> {
    fn parameters_of(&self, unit: Unit) -> &UnitParameters {
        &self[&unit]
    }
}

impl UnitParameters {
    /// Parameters of `list` as views of the masters, or of a copy that is all zeros until it is renewed. They have no gradients.
    pub(super) fn over(list: &[Parameter], backend: Backend, masters: &Tensor) -> UnitParameters {
        let copy = || ComputeCopy::new(list, backend);
        let copy = backend.numerics.has_copy().then(copy);
        let mut at = 0;
        let mut leaves = Vec::new();
        for (number, p) in list.iter().enumerate() {
            let computed = match &copy {
                Some(copy) => copy.parameter(number),
                None => view(masters, at, p),
            };
            leaves.push((p.name.clone(), computed.detach()));
            at += size(p.elements());
        }
        UnitParameters {
            leaves,
            copy,
            backend,
        }
    }

    /// Parameters that do not change any more, for a forward without a backward: `values` are all of the unit's, in their order. They use
    /// only the memory that the format of the computation needs.
    ///
    /// # Errors
    /// There are more or fewer values than the unit has, or libtorch refuses (out of memory).
    pub fn fixed(spec: &UnitSpec, backend: Backend, values: Vec<f32>) -> Result<UnitParameters, TorchError> {
        let list = &spec.parameters;
        let (given, own) = (values.len(), spec.elements());
        if given != own {
            return Err(TorchError(format!("{given} values for a unit of {own}")));
        }
        let masters = on_device(values, backend)?;
        let parameters = UnitParameters::over(list, backend, &masters);
        parameters.renew_copy(&masters);
        // The layers ask for gradients, to which nothing is added: a single zero, expanded to their shape, takes no memory.
        let zero = Tensor::zeros([1], (Kind::Float, backend.device.tensors()));
        for (_, leaf) in &parameters.leaves {
            let seen = zero.f_expand(leaf.size(), false);
            set_grad(leaf, &seen.map_err(|e| TorchError(e.to_string()))?)?;
        }
        Ok(parameters)
    }

    /// The masters themselves, which nobody computes with: without a copy and without gradients.
    pub(super) fn masters(list: &[Parameter], backend: Backend, masters: &Tensor) -> UnitParameters {
        let mut at = 0;
        let leaves = list.iter().map(|p| {
            let own = view(masters, at, p).detach();
            at += size(p.elements());
            (p.name.clone(), own)
        });
        UnitParameters {
            leaves: leaves.collect(),
            copy: None,
            backend,
        }
    }

    /// The same parameters as views of other masters, of which there are as many.
    pub(super) fn move_to(&mut self, masters: &Tensor) {
        let mut at = 0;
        for (_, leaf) in &mut self.leaves {
            let own = size(leaf.numel());
            *leaf = masters.narrow(0, at, own).view(leaf.size().as_slice()).detach();
            at += own;
        }
    }

    /// Makes the parameters trainable: leaves of autograd, whose gradients are views of `gradients`.
    pub(super) fn with_gradients(mut self, gradients: &Tensor) -> Result<UnitParameters, TorchError> {
        let mut at = 0;
        for (_, leaf) in &mut self.leaves {
            *leaf = leaf.set_requires_grad(true);
            let own = size(leaf.numel());
            set_grad(leaf, &gradients.narrow(0, at, own).view(leaf.size().as_slice()))?;
            at += own;
        }
        Ok(self)
    }

    /// Rounds the masters into the copy, where there is one.
    pub(super) fn renew_copy(&self, masters: &Tensor) {
        if let Some(copy) = &self.copy {
            copy.renew(masters);
        }
    }

    /// Names and shapes in their order.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (&str, Vec<i64>)> {
        self.leaves.iter().map(|(name, leaf)| (&**name, leaf.size()))
    }

    /// A range of the masters in pieces, each with its place in the copy, where there is one.
    pub(super) fn pieces(&self, range: Range<i64>) -> Vec<(Range<i64>, Option<Tensor>)> {
        match &self.copy {
            Some(copy) => copy.pieces(range).map(|(part, of)| (part, Some(of))).collect(),
            None => vec![(range, None)],
        }
    }

    /// A parameter of the model's description.
    ///
    /// # Errors
    /// The unit has none of this name.
    pub fn parameter(&self, name: &str) -> Result<&Tensor, TorchError> {
        self.optional_parameter(name)
            .ok_or_else(|| TorchError(format!("the unit has no parameter {name}")))
    }

    /// A parameter that not every model has.
    #[must_use]
    pub fn optional_parameter(&self, name: &str) -> Option<&Tensor> {
        let found = self.leaves.iter().find(|(own, _)| *own == name);
        found.map(|(_, tensor)| tensor)
    }

    /// All of them, in their order.
    pub fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.leaves.iter().map(|(_, leaf)| leaf)
    }

    /// A vocabulary's table with what its products need.
    ///
    /// # Errors
    /// As [`UnitParameters::parameter`].
    pub fn head_table(&self, name: &str) -> Result<HeadTable, TorchError> {
        let gradient = self.parameter(name)?.grad();
        let number = self.leaves.iter().position(|(own, _)| *own == name);
        let rows = match (&self.copy, number) {
            (Some(copy), Some(number)) => copy.padded(number),
            _ => self.parameter(name)?.detach(),
        };
        let whole = self.backend.without.has(Ablation::Chunks);
        Ok(HeadTable {
            rows,
            gradient,
            whole,
            bias: None,
            cap: None,
            kernels: self.backend.kernels,
        })
    }

    /// What the parameters are made for.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whose code computes with them.
    #[must_use]
    pub fn kernels(&self) -> Kernels {
        self.backend.kernels
    }
}

/// A parameter in a flat tensor of all of a unit's, which begins there.
fn view(flat: &Tensor, at: i64, parameter: &Parameter) -> Tensor {
    let shape: Vec<i64> = parameter.shape.iter().map(|s| size(*s)).collect();
    flat.narrow(0, at, size(parameter.elements()))
        .view(shape.as_slice())
}
