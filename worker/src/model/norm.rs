//! Normalisation over the width.

use crate::state::UnitBuffers;
use tch::Tensor;
use varuna_model::{LayerNames, Norm};
use varuna_torch::TorchError;

/// Added to the variance or the mean square (GPT-2's).
const EPSILON: f64 = 1e-5;

/// `x_btd` normalised with the unit's parameters of these names; and `x_btd` for what goes around the half of the block that begins
/// here, so that one pass of the backward makes the gradient of both.
pub(super) fn norm(
    kind: Norm,
    unit: &UnitBuffers,
    names: LayerNames,
    x_btd: &Tensor,
) -> Result<(Tensor, Tensor), TorchError> {
    let weight = unit.parameter(names.weight)?;
    let normed = match (kind, unit.optional_parameter(names.bias)) {
        (Norm::LayerNorm, Some(bias)) => return unit.kernels().layer_norm(x_btd, weight, bias, EPSILON),
        (Norm::LayerNorm, None) => x_btd.layer_norm(weight.size(), Some(weight), None, EPSILON, true),
        (Norm::RmsNorm, _) => x_btd.rms_norm(weight.size(), Some(weight), EPSILON),
    };
    Ok((normed, x_btd.shallow_clone()))
}
