//! The first segment: tokens, positions, kinds of tokens, and their norm.

use super::cache::Place;
use super::dropout::Dropout;
use super::norm::norm;
use super::tables::Tables;
use crate::state::UnitParameters;
use tch::Tensor;
use varuna_model::embedding::{NORM, POSITIONS, TYPES};
use varuna_model::{Positions, Transformer};
use varuna_torch::{TorchError, lookup};

/// Tokens (b, t) to (b, t, d), with the token table (v, d).
pub(super) fn forward(
    model: &Transformer,
    unit: &UnitParameters,
    table_vd: &Tensor,
    tokens_bt: &Tensor,
    dropout: &Dropout<'_>,
    tables: &Tables,
) -> Result<Tensor, TorchError> {
    let embedded_btd = lookup(table_vd, tokens_bt)?;
    let x_btd = match model.features.positions {
        Positions::Learned => {
            let positions_td = unit.parameter(POSITIONS)?;
            match &tables.of(model, unit.backend())?.positions {
                Some(rows_bt) => embedded_btd + lookup(positions_td, rows_bt)?,
                None => embedded_btd + positions_td,
            }
        }
        Positions::Rotary(_) => embedded_btd,
    };
    let x_btd = typed_and_normed(model, unit, x_btd)?;
    dropout.apply(unit.kernels(), &x_btd, 0, 0)
}

/// The same for tokens that come after others, without dropout.
pub(super) fn forward_after(
    model: &Transformer,
    unit: &UnitParameters,
    table_vd: &Tensor,
    tokens_bt: &Tensor,
    new: Place,
) -> Result<Tensor, TorchError> {
    let embedded_btd = lookup(table_vd, tokens_bt)?;
    let x_btd = match model.features.positions {
        Positions::Learned => embedded_btd + unit.parameter(POSITIONS)?.narrow(0, new.first, new.count),
        Positions::Rotary(_) => embedded_btd,
    };
    typed_and_normed(model, unit, x_btd)
}

/// Adds the vector of the first kind of tokens, and normalises, if the model has these.
fn typed_and_normed(model: &Transformer, unit: &UnitParameters, x_btd: Tensor) -> Result<Tensor, TorchError> {
    let x_btd = match unit.optional_parameter(TYPES) {
        Some(types) => x_btd + types.narrow(0, 0, 1),
        None => x_btd,
    };
    match model.features.embedding_norm {
        true => Ok(norm(&model.features, unit, NORM, &x_btd)?.0),
        false => Ok(x_btd),
    }
}
