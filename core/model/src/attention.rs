//! The first half of a block: norm, causal multi-head attention, residual addition.

use crate::norm::Norm;
use crate::parameter::{DEVIATION, LayerNames};
use crate::piece::{Piece, Sizes};

/// The norm before it.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_1.weight",
    bias: "ln_1.bias",
};
/// Queries, keys and values, one after the other: (3d, d).
pub const QKV: LayerNames = LayerNames {
    weight: "attn.c_attn.weight",
    bias: "attn.c_attn.bias",
};
/// The projection back onto the residual stream: (d, d).
pub const PROJECTION: LayerNames = LayerNames {
    weight: "attn.c_proj.weight",
    bias: "attn.c_proj.bias",
};

/// Kept apart from the norm's: queries, keys and values, what attention makes of them, and the sum. The backward takes the
/// gradients of queries, keys and values twice: by themselves, and where they came from. The
/// products of scores take 4 operations for each pair of tokens and element of the width (Narayanan et al. 2021, appendix).
#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
pub(crate) fn piece(sizes: Sizes, norm: Norm) -> Piece {
    let (width, deviation) = (sizes.width, sizes.residual_deviation());
    let scores = sizes.tokens as f64 * 4.0 * (sizes.tokens * width) as f64;
    norm.piece(sizes, NORM)
        .then(Piece::linear(sizes, QKV, width, 3 * width, DEVIATION))
        .taking(scores)
        .then(Piece::linear(sizes, PROJECTION, width, width, deviation))
        .saving(5 * sizes.activation())
        .working_with(6 * sizes.activation())
}
