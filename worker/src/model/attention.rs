//! The first half of a block: norm, causal multi-head attention, residual addition.

use super::dropout::Dropout;
use super::linear::linear;
use super::norm::norm;
use crate::numerics::Numerics;
use crate::state::UnitBuffers;
use tch::Tensor;
use varuna_model::Model;
use varuna_model::attention::{NORM, PROJECTION, QKV};
use varuna_torch::{AttentionShape, TorchError};

/// What attention is computed of: libtorch is asked how, once.
#[must_use]
pub fn attention_shape(model: &Model, numerics: Numerics) -> AttentionShape {
    AttentionShape {
        heads: model.heads.into(),
        sequence: model.sequence_length.into(),
        width: i64::from(model.hidden_size / model.heads.max(1)),
        kind: numerics.compute(),
    }
}

/// `block` counts from 1 for the dropout's masks.
pub(super) fn forward(
    model: &Model,
    unit: &UnitBuffers,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    block: u32,
) -> Result<Tensor, TorchError> {
    let size = x_btd.size();
    let (b, t, d) = (size[0], size[1], size[2]);
    let heads = i64::from(model.heads);
    let (normed, around) = norm(model.features.norm, unit, NORM, x_btd)?;
    let qkv = linear(unit, QKV, &normed)?
        .view([b, t, 3, heads, d / heads])
        .permute([2, 0, 3, 1, 4]);
    let (q, k, v) = (qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2));
    // Attention dropout stays 0: on a CPU anything else leaves the flash path.
    let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, true, None, false)
        .transpose(1, 2);
    let a_btd = linear(unit, PROJECTION, &attended.reshape([b, t, d]))?;
    Ok(around + dropout.apply(&a_btd, block, 0)?)
}
