//! Normalisation over the width.

use crate::state::UnitParameters;
use tch::Tensor;
use varuna_model::{Features, LayerNames, Norm};
use varuna_torch::{TorchError, rms_norm};

/// `x_btd` normalised with the unit's parameters of these names; and `x_btd` for what goes around the half of the block that begins
/// here, so that one pass of the backward makes the gradient of both.
pub(super) fn norm(
    features: &Features,
    unit: &UnitParameters,
    names: LayerNames,
    x_btd: &Tensor,
) -> Result<(Tensor, Tensor), TorchError> {
    let weight = unit.parameter(names.weight)?;
    let epsilon = features.epsilon.get();
    match features.norm {
        Norm::LayerNorm => {
            let bias = unit.parameter(names.bias)?;
            unit.kernels().layer_norm(x_btd, weight, bias, epsilon)
        }
        Norm::RmsNorm => rms_norm(x_btd, weight, epsilon),
    }
}

/// Each head's part (b, t, h, e), queries or keys, normalised with the unit's weight (e) of this name.
pub(super) fn head_norm(
    features: &Features,
    unit: &UnitParameters,
    name: &str,
    x_bthe: &Tensor,
) -> Result<Tensor, TorchError> {
    let weight = unit.parameter(name)?;
    Ok(rms_norm(x_bthe, weight, features.epsilon.get())?.0)
}
