//! The last segment: final norm, projection onto the vocabulary and loss.

use crate::parameter::{DEVIATION, LayerNames, Parameter};
use crate::piece::{Piece, Sizes};

/// The norm before it.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_f.weight",
    bias: "ln_f.bias",
};
/// The table (v, d) of an untied head. A tied head keeps it with no rows: checkpoints have it.
pub const TABLE: &str = "lm_head.weight";

/// The forward is the norm's. The products with the table come with the loss, in the backward, some rows at a time: logits and both
/// gradients. They count here, whoever owns the table; nothing is kept of them. They are made of a chunk of rows at a time: logits and their
/// logarithmic softmax, in single precision, beside the gradient of the output. Here all rows of a sample count; how many rows there are
/// at once is the device's (`varuna_plan::cost`). Logits under a soft cap stay until their gradient is made.
#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
pub(crate) fn piece(sizes: Sizes) -> Piece {
    let own_rows = if sizes.tied { 0 } else { sizes.vocabulary };
    let logits = if sizes.features.logit_softcap.is_some() {
        3
    } else {
        2
    };
    let table = Piece {
        parameters: vec![Parameter::matrix(TABLE, own_rows, sizes.width, DEVIATION)],
        backward_flops: 3.0 * sizes.tokens as f64 * 2.0 * (sizes.vocabulary * sizes.width) as f64,
        working_elements: logits * (sizes.tokens * sizes.vocabulary) as u64 + sizes.activation(),
        ..Piece::default()
    };
    sizes.features.norm.piece(sizes, NORM).then(table)
}
