//! The first segment: tokens and positions.

use super::dropout::Dropout;
use crate::state::UnitBuffers;
use tch::Tensor;
use varuna_model::embedding::POSITIONS;
use varuna_model::{Model, Positions};
use varuna_torch::{TorchError, lookup};

/// Tokens (b, t) to (b, t, d), with the token table (v, d).
pub(super) fn forward(
    model: &Model,
    unit: &UnitBuffers,
    table_vd: &Tensor,
    tokens_bt: &Tensor,
    dropout: &Dropout<'_>,
) -> Result<Tensor, TorchError> {
    let embedded_btd = lookup(table_vd, tokens_bt)?;
    let x_btd = match model.features.positions {
        Positions::Learned => embedded_btd + unit.parameter(POSITIONS)?,
        Positions::Rotary(_) => embedded_btd,
    };
    dropout.apply(&x_btd, 0, 0)
}
