//! The first half of a block: norm, multi-head attention, residual addition; or the norm last.

use crate::features::Positions;
use crate::parameter::{DEVIATION, Initial, LayerNames, Parameter};
use crate::piece::{Piece, Sizes};

/// The norm before it, or after the addition.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_1.weight",
    bias: "ln_1.bias",
};
/// Queries of all heads, then their keys, then their values, one after the other: ((h + 2 g) e, d) of h heads of width e, g of
/// which have keys and values of their own.
pub const QKV: LayerNames = LayerNames {
    weight: "attn.c_attn.weight",
    bias: "attn.c_attn.bias",
};
/// The norm over each head's queries: (e).
pub const QUERY_NORM: &str = "attn.q_norm.weight";
/// The norm over each head's keys: (e).
pub const KEY_NORM: &str = "attn.k_norm.weight";
/// The projection back onto the residual stream: (d, h e).
pub const PROJECTION: LayerNames = LayerNames {
    weight: "attn.c_proj.weight",
    bias: "attn.c_proj.bias",
};

/// Kept apart from the norm's: queries, keys and values as attention takes them, what it makes of them, and the sum. The products of
/// scores take 4 operations for each pair of tokens and element of the queries (Narayanan et al. 2021, appendix).
#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
pub(crate) fn piece(sizes: Sizes) -> Piece {
    let (width, queries, deviation) = (sizes.width, sizes.queries(), sizes.residual_deviation());
    let bias = sizes.features.bias;
    let scores = sizes.tokens as f64 * 4.0 * (sizes.tokens * queries) as f64;
    let product = queries + 2 * sizes.keys();
    let (kept, working) = memory(sizes);
    let mut piece = sizes
        .features
        .norm
        .piece(sizes, NORM)
        .then(Piece::linear(sizes, QKV, (width, product), bias.qkv, DEVIATION))
        .taking(scores)
        .then(Piece::linear(
            sizes,
            PROJECTION,
            (queries, width),
            bias.out,
            deviation,
        ))
        .saving(sizes.tokens as u64 * kept)
        .working_with(sizes.tokens as u64 * working);
    if sizes.features.qk_norm {
        let head = |name| Parameter::of_norm(name, sizes.head, Initial::Ones);
        piece.parameters.extend([head(QUERY_NORM), head(KEY_NORM)]);
    }
    piece
}

/// Elements of a token that are kept, and that the backward takes beyond these.
fn memory(sizes: Sizes) -> (u64, u64) {
    let [width, queries, keys] = [sizes.width, sizes.queries(), sizes.keys()].map(|n| n as u64);
    // The backward has the gradients of queries, keys and values twice: by themselves, and where they came from.
    (queries + width + inputs(sizes), 3 * queries + queries + 2 * keys)
}

/// Elements of a token's queries, keys and values that are kept: as attention takes them, which makes no copies of its own, and as a norm of heads does.
pub(crate) fn inputs(sizes: Sizes) -> u64 {
    let [queries, keys] = [sizes.queries(), sizes.keys()].map(|n| n as u64);
    let features = sizes.features;
    let product = queries + 2 * keys;
    // Of one alone no copies are made: all heads look at the same.
    let is_copied = (2..sizes.heads).contains(&sizes.kv_heads);
    let is_turned = matches!(features.positions, Positions::Rotary(_));
    let is_new = is_turned || features.qk_norm;
    // The product of the three stays where attention, or the norm of a head, looks into it.
    let mut kept = 0;
    if features.qk_norm || !is_copied || !is_new {
        kept += product;
    }
    if is_new {
        kept += queries;
    }
    // Each head of a group gets the keys and values of its own.
    if is_copied {
        kept += 2 * queries;
    } else if is_new {
        kept += keys;
    }
    kept
}
