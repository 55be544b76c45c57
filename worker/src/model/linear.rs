//! A linear layer, with a bias where the model has one.

use crate::state::UnitParameters;
use tch::Tensor;
use varuna_model::LayerNames;
use varuna_torch::TorchError;

/// `x` (.., inputs) to (.., outputs) with the unit's parameters of these names.
pub(super) fn linear(unit: &UnitParameters, names: LayerNames, x: &Tensor) -> Result<Tensor, TorchError> {
    let bias = unit.optional_parameter(names.bias);
    unit.kernels().linear(x, unit.parameter(names.weight)?, bias)
}

/// A linear layer followed by GELU.
pub(super) fn linear_gelu(
    unit: &UnitParameters,
    names: LayerNames,
    x: &Tensor,
) -> Result<Tensor, TorchError> {
    let bias = unit.optional_parameter(names.bias);
    unit.kernels().linear_gelu(x, unit.parameter(names.weight)?, bias)
}
