//! The first half of a block: norm, multi-head attention, residual addition; in some models the norm comes last.

use super::cache::{Layer, Place};
use super::dropout::Dropout;
use super::linear::linear;
use super::norm::{after_half, before_half, head_norm};
use super::tables::{Tables, mask};
use crate::numerics::Numerics;
use crate::state::UnitParameters;
use tch::Tensor;
use varuna_api::Packing;
use varuna_model::Transformer;
use varuna_model::attention::{KEY_NORM, NORM, PROJECTION, QKV, QUERY_NORM};
use varuna_torch::{Angles, AttentionShape, Seen, TorchError};

/// The shape of attention, for which libtorch is asked once how to compute it. Heads that share keys and values get copies of them: on the
/// CPU only the backend with all scores in memory accepts fewer keys than queries.
#[must_use]
pub fn attention_shape(model: &Transformer, packing: Packing, numerics: Numerics) -> AttentionShape {
    AttentionShape {
        heads: model.heads.into(),
        sequence: model.sequence_length.into(),
        width: model.head_size().into(),
        kind: numerics.compute(),
        seen: match model.window().is_some() || packing.block_mask {
            true => Seen::Masked,
            false if model.features.bidirectional => Seen::All,
            false => Seen::Before,
        },
    }
}

/// `block` counts from 1 for the dropout's masks.
pub(super) fn forward(
    model: &Transformer,
    unit: &UnitParameters,
    x_btd: &Tensor,
    dropout: &Dropout<'_>,
    tables: &Tables,
    block: u32,
) -> Result<Tensor, TorchError> {
    let tables = tables.of(model, unit.backend())?;
    let (normed, around) = before_half(&model.features, unit, NORM, x_btd)?;
    let [q, k, v] = heads(model, unit, &normed, tables.angles.as_ref())?;
    let heads = i64::from(model.heads);
    let (k, v) = (shared(&k, heads), shared(&v, heads));
    let mask = tables.mask.as_ref();
    let is_causal = mask.is_none() && !model.features.bidirectional;
    // Attention dropout stays 0: on a CPU anything else leaves the flash path.
    let attended =
        Tensor::scaled_dot_product_attention(&q, &k, &v, mask, 0.0, is_causal, None, false).transpose(1, 2);
    let [b, t, h, e] = <[i64; 4]>::try_from(attended.size()).unwrap_or_default();
    let a_btd = linear(unit, PROJECTION, &attended.reshape([b, t, h * e]))?;
    let sum_btd = around + dropout.apply(unit.kernels(), &a_btd, block, 0)?;
    after_half(&model.features, unit, NORM, sum_btd)
}

/// The same for tokens after those whose keys and values the layer has, without dropout. The layer then also has the keys and values of the
/// new tokens. This does not work for a model that sees both sides.
pub(super) fn forward_after(
    model: &Transformer,
    unit: &UnitParameters,
    x_btd: &Tensor,
    tables: &Tables,
    layer: &mut Layer,
    new: Place,
) -> Result<Tensor, TorchError> {
    let tables = tables.of(model, unit.backend())?;
    let (normed, around) = before_half(&model.features, unit, NORM, x_btd)?;
    let angles = tables.angles.as_ref().map(|all| all.part(new.first, new.count));
    let [q, k, v] = heads(model, unit, &normed, angles.transpose()?.as_ref())?;
    let (k, v) = layer.append(&k, &v, new)?;
    let attended = match new.count {
        _ if model.features.bidirectional => {
            let heads = i64::from(model.heads);
            let (k, v) = (shared(&k, heads), shared(&v, heads));
            Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, false, None, false)
        }
        1 => attend_one(&q, &k, &v, model.window()),
        _ => {
            let heads = i64::from(model.heads);
            let (k, v) = (shared(&k, heads), shared(&v, heads));
            // The usual mask is that of as many keys as queries.
            let is_usual = new.first == 0 && model.window().is_none();
            let mask = (!is_usual).then(|| mask(new, model.window(), unit.backend()));
            let mask = mask.transpose()?;
            Tensor::scaled_dot_product_attention(&q, &k, &v, mask.as_ref(), 0.0, is_usual, None, false)
        }
    };
    let [b, h, t, e] = <[i64; 4]>::try_from(attended.size()).unwrap_or_default();
    let a_btd = linear(unit, PROJECTION, &attended.transpose(1, 2).reshape([b, t, h * e]))?;
    after_half(&model.features, unit, NORM, around + a_btd)
}

/// Attention (b, h, 1, e) of one token, which sees all earlier tokens or those in the window. Heads of a group are rows of one product, so
/// keys and values (b, g, n, e) need no copies for them.
fn attend_one(q: &Tensor, k: &Tensor, v: &Tensor, window: Option<u32>) -> Tensor {
    let [b, g, n, e] = <[i64; 4]>::try_from(k.size()).unwrap_or_default();
    let seen = window.map_or(n, |window| n.min(window.into()));
    let (k, v) = (k.narrow(2, n - seen, seen), v.narrow(2, n - seen, seen));
    let heads = q.size().get(1).copied().unwrap_or(g);
    let rows = q.reshape([b, g, heads / g, e]);
    Tensor::scaled_dot_product_attention(&rows, &k, &v, None::<Tensor>, 0.0, false, None, false)
        .reshape([b, heads, 1, e])
}

/// Queries (b, h, t, e), keys and values (b, g, t, e) of each head, from what attention is given (b, t, d).
fn heads(
    model: &Transformer,
    unit: &UnitParameters,
    normed: &Tensor,
    angles: Option<&Angles>,
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
        if let Some(angles) = angles {
            *part = angles.rotate(part)?;
        }
    }
    let of = |part: usize| parts[part].transpose(1, 2);
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
