//! Normalisation over the width.

use crate::state::UnitBuffers;
use tch::Tensor;
use varuna_model::{LayerNames, Norm};
use varuna_torch::TorchError;

/// Added to the variance or the mean square (GPT-2's).
const EPSILON: f64 = 1e-5;

/// `x_btd` normalised with the unit's parameters of these names.
pub(super) fn norm(
    kind: Norm,
    unit: &UnitBuffers,
    names: LayerNames,
    x_btd: &Tensor,
) -> Result<Tensor, TorchError> {
    let weight = unit.parameter(names.weight)?;
    Ok(match kind {
        Norm::LayerNorm => {
            let bias = unit.optional_parameter(names.bias);
            x_btd.layer_norm(weight.size(), Some(weight), bias, EPSILON, true)
        }
        Norm::RmsNorm => x_btd.rms_norm(weight.size(), Some(weight), EPSILON),
    })
}
