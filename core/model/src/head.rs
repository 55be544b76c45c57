//! The last segment: final norm and projection onto the vocabulary.

use crate::norm::Norm;
use crate::parameter::LayerNames;
use crate::piece::{Piece, Sizes};

/// The norm before it.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_f.weight",
    bias: "ln_f.bias",
};
/// The table (v, d) of an untied head. A tied head keeps it with no rows: checkpoints have it.
pub const TABLE: &str = "lm_head.weight";

/// Kept apart from the norm's: the logits and their softmax. The product with the table counts here, whoever owns the table.
#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
pub(crate) fn piece(sizes: Sizes, norm: Norm) -> Piece {
    let own_rows = if sizes.tied { 0 } else { sizes.vocabulary };
    let table = Piece {
        parameters: vec![sizes.table(TABLE, own_rows)],
        flops: sizes.tokens as f64 * 2.0 * (sizes.vocabulary * sizes.width) as f64,
        saved_elements: 2 * (sizes.tokens * sizes.vocabulary) as u64,
    };
    norm.piece(sizes, NORM).then(table)
}
