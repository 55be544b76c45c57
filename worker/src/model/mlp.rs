//! The second half of a block: norm, MLP, residual addition; in some models the norm comes last.

use super::dropout::Dropout;
use super::linear::{linear, linear_gelu};
use super::norm::{after_half, before_half};
use crate::state::UnitParameters;
use tch::Tensor;
use varuna_model::mlp::{DOWN, GATE, NORM, UP};
use varuna_model::{Mlp, Transformer};
use varuna_torch::TorchError;

/// `block` counts from 1 for the dropout's masks.
pub(super) fn forward(
    model: &Transformer,
    unit: &UnitParameters,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    block: u32,
) -> Result<Tensor, TorchError> {
    let (normed, around) = before_half(&model.features, unit, NORM, x_btd)?;
    let inner = match model.features.mlp {
        Mlp::Gelu => linear_gelu(unit, UP, &normed)?,
        Mlp::GeluErf => linear(unit, UP, &normed)?.gelu("none"),
        Mlp::SwiGlu => linear(unit, GATE, &normed)?.silu() * linear(unit, UP, &normed)?,
        Mlp::Relu2 => linear(unit, UP, &normed)?.relu().square(),
    };
    let m_btd = linear(unit, DOWN, &inner)?;
    let sum_btd = around + dropout.apply(unit.kernels(), &m_btd, block, 1)?;
    after_half(&model.features, unit, NORM, sum_btd)
}
