//! The last segment: final norm, projection onto the vocabulary and loss. Of a masked language model also a layer before the norm.

use crate::parameter::{DEVIATION, LayerNames, Parameter};
use crate::piece::{Piece, Sizes};

/// The layer of a masked language model before the norm: (d, d).
pub const DENSE: LayerNames = LayerNames {
    weight: "head.dense.weight",
    bias: "head.dense.bias",
};
/// The norm before the projection.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_f.weight",
    bias: "ln_f.bias",
};
/// The table (v, d) of an untied head. A tied head keeps it with no rows: checkpoints have it.
pub const TABLE: &str = "lm_head.weight";
/// The bias of a masked language model's head, added to the logits (v).
pub const BIAS: &str = "lm_head.bias";

/// The forward is only the norm's. The products with the table (logits and both gradients) are computed with the loss, in the backward, a
/// chunk of rows at a time, and nothing is kept of them. They count for this segment, whichever unit owns the table. A chunk needs logits
/// and their logarithmic softmax, in single precision, in addition to the gradient of the output. Here all rows of a sample are counted;
/// the device determines how many rows there are at once (`varuna_plan::cost`). Logits under a soft cap are kept until their gradient is
/// computed.
#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
pub(crate) fn piece(sizes: Sizes) -> Piece {
    let own_rows = if sizes.tied { 0 } else { sizes.vocabulary };
    let logits = if sizes.features.logit_softcap.is_some() {
        3
    } else {
        2
    };
    let masked = sizes.features.masked_head;
    let bias = masked.then(|| Parameter::bias(BIAS, sizes.vocabulary));
    let own_table = Parameter::matrix(TABLE, own_rows, sizes.width, DEVIATION);
    let table = Piece {
        parameters: [own_table].into_iter().chain(bias).collect(),
        backward_flops: 3.0 * sizes.tokens as f64 * 2.0 * (sizes.vocabulary * sizes.width) as f64,
        working_elements: logits * (sizes.tokens * sizes.vocabulary) as u64 + sizes.activation(),
        ..Piece::default()
    };
    let norm = sizes.features.norm.piece(sizes, NORM);
    if !masked {
        return norm.then(table);
    }
    // What the layer gives, before and after its activation.
    let dense = Piece::linear(sizes, DENSE, (sizes.width, sizes.width), true, DEVIATION);
    dense.saving(2 * sizes.activation()).then(norm).then(table)
}
