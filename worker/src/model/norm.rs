//! Normalisation over the width.

use crate::state::UnitParameters;
use tch::Tensor;
use varuna_model::{Features, LayerNames, Norm};
use varuna_torch::{TorchError, rms_norm};

/// `x_btd` normalised with the unit's parameters of these names; and `x_btd` for the residual connection around this half of the block, so
/// that one pass of the backward computes the gradient of both.
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

/// The input of half of a block, and the residual connection around it. The input is normalised, unless the norm comes last.
pub(super) fn before_half(
    features: &Features,
    unit: &UnitParameters,
    names: LayerNames,
    x_btd: &Tensor,
) -> Result<(Tensor, Tensor), TorchError> {
    match features.post_norm {
        true => Ok((x_btd.shallow_clone(), x_btd.shallow_clone())),
        false => norm(features, unit, names, x_btd),
    }
}

/// The output of half of a block: the sum of its result and the residual connection, normalised if the norm comes last.
pub(super) fn after_half(
    features: &Features,
    unit: &UnitParameters,
    names: LayerNames,
    sum_btd: Tensor,
) -> Result<Tensor, TorchError> {
    match features.post_norm {
        true => Ok(norm(features, unit, names, &sum_btd)?.0),
        false => Ok(sum_btd),
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
