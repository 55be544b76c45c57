//! The first half of a block: norm, causal multi-head attention, residual addition.

use super::dropout::Dropout;
use super::linear::linear;
use super::norm::{head_norm, norm};
use super::tables::{Made, Tables};
use crate::numerics::Numerics;
use crate::state::UnitBuffers;
use tch::Tensor;
use varuna_model::Model;
use varuna_model::attention::{KEY_NORM, NORM, PROJECTION, QKV, QUERY_NORM};
use varuna_torch::{AttentionShape, TorchError};

/// What attention is computed of: libtorch is asked how, once. Heads that share keys and values get copies of them, since no way of the
/// processor but that with all scores in memory takes fewer keys than queries.
#[must_use]
pub fn attention_shape(model: &Model, numerics: Numerics) -> AttentionShape {
    AttentionShape {
        heads: model.heads.into(),
        sequence: model.sequence_length.into(),
        width: model.head_size().into(),
        kind: numerics.compute(),
        masked: model.window().is_some(),
    }
}

/// `block` counts from 1 for the dropout's masks.
pub(super) fn forward(
    model: &Model,
    unit: &UnitBuffers,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    tables: &Tables,
    block: u32,
) -> Result<Tensor, TorchError> {
    let tables = tables.of(model, unit.backend())?;
    let (normed, around) = norm(&model.features, unit, NORM, x_btd)?;
    let [q, k, v] = heads(model, unit, &normed, tables)?;
    let mask = tables.mask.as_ref();
    // Attention dropout stays 0: on a CPU anything else leaves the flash path.
    let attended = Tensor::scaled_dot_product_attention(&q, &k, &v, mask, 0.0, mask.is_none(), None, false)
        .transpose(1, 2);
    let [b, t, h, e] = <[i64; 4]>::try_from(attended.size()).unwrap_or_default();
    let a_btd = linear(unit, PROJECTION, &attended.reshape([b, t, h * e]))?;
    Ok(around + dropout.apply(&a_btd, block, 0)?)
}

/// Queries, keys and values of each head, (b, h, t, e), from what attention is given (b, t, d).
fn heads(
    model: &Model,
    unit: &UnitBuffers,
    normed: &Tensor,
    tables: &Made,
) -> Result<[Tensor; 3], TorchError> {
    let [h, g, e] = [model.heads, model.kv_heads(), model.head_size()].map(i64::from);
    let size = normed.size();
    let product = linear(unit, QKV, normed)?.view([size[0], size[1], h + 2 * g, e]);
    let mut parts = product.split_with_sizes([h, g, g], 2);
    let turned = parts.iter_mut().zip([QUERY_NORM, KEY_NORM]);
    for (part, name) in turned {
        if model.features.qk_norm {
            *part = head_norm(&model.features, unit, name, part)?;
        }
        if let Some(angles) = &tables.angles {
            *part = angles.rotate(part)?;
        }
    }
    let of = |part: usize| shared(&parts[part].transpose(1, 2), h);
    Ok([of(0), of(1), of(2)])
}

/// (b, g, t, e) with a copy for each of `heads` heads, those of a group one after the other.
fn shared(x: &Tensor, heads: i64) -> Tensor {
    let [b, g, t, e] = <[i64; 4]>::try_from(x.size()).unwrap_or_default();
    if g == heads {
        return x.shallow_clone();
    }
    let copies = x.unsqueeze(2).expand([b, g, heads / g, t, e], false);
    copies.reshape([b, heads, t, e])
}
