//! The second half of a block: norm, MLP, residual addition.

use super::dropout::Dropout;
use super::linear::linear;
use super::norm::norm;
use crate::state::UnitBuffers;
use tch::Tensor;
use varuna_model::mlp::{DOWN, GATE, NORM, UP};
use varuna_model::{Mlp, Model};
use varuna_torch::TorchError;

/// `block` counts from 1 for the dropout's masks.
pub(super) fn forward(
    model: &Model,
    unit: &UnitBuffers,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    block: u32,
) -> Result<Tensor, TorchError> {
    let normed = norm(model.features.norm, unit, NORM, x_btd)?;
    let up = linear(unit, UP, &normed)?;
    let inner = match model.features.mlp {
        Mlp::Gelu => up.gelu("tanh"),
        Mlp::SwiGlu => linear(unit, GATE, &normed)?.silu() * up,
    };
    let m_btd = linear(unit, DOWN, &inner)?;
    Ok(x_btd + dropout.apply(&m_btd, block, 1)?)
}
