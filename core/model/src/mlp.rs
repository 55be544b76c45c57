//! The second half of a block: norm, MLP, residual addition.

use crate::norm::Norm;
use crate::parameter::{DEVIATION, LayerNames};
use crate::piece::{Piece, Sizes};
use serde::{Deserialize, Serialize};

/// Which MLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mlp {
    /// Up to four times the width, GELU (tanh form), down again.
    Gelu,
    /// Up twice, SiLU of one times the other, down again (Shazeer 2020). No job file can ask for it yet.
    SwiGlu,
}

/// The norm before it.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_2.weight",
    bias: "ln_2.bias",
};
/// The gate of a gated MLP: (inner, d).
pub const GATE: LayerNames = LayerNames {
    weight: "mlp.c_gate.weight",
    bias: "mlp.c_gate.bias",
};
/// Up: (inner, d).
pub const UP: LayerNames = LayerNames {
    weight: "mlp.c_fc.weight",
    bias: "mlp.c_fc.bias",
};
/// Down, onto the residual stream: (d, inner).
pub const DOWN: LayerNames = LayerNames {
    weight: "mlp.c_proj.weight",
    bias: "mlp.c_proj.bias",
};

impl Mlp {
    /// Width between up and down. A gated MLP has three matrices instead of two: 2/3 of the width make up for it, rounded up
    /// to a multiple of 64.
    fn inner(self, width: usize) -> usize {
        match self {
            Mlp::Gelu => 4 * width,
            Mlp::SwiGlu => (8 * width).div_ceil(3).next_multiple_of(64),
        }
    }

    /// Kept apart from the norm's: the inner activation before and after GELU; or gate, SiLU of it, up, and their product; and the sum. The
    /// backward takes the gradients of the sum and of what GELU, or the product, was made from.
    pub(crate) fn piece(self, sizes: Sizes, norm: Norm) -> Piece {
        let (width, inner) = (sizes.width, self.inner(sizes.width));
        let up = |names| Piece::linear(sizes, names, width, inner, DEVIATION);
        let (ups, kept, working) = match self {
            Mlp::Gelu => (up(UP), 2, 1),
            Mlp::SwiGlu => (up(GATE).then(up(UP)), 4, 2),
        };
        let inners = |count: u64| count * (sizes.tokens * inner) as u64 + sizes.activation();
        norm.piece(sizes, NORM)
            .then(ups)
            .then(Piece::linear(
                sizes,
                DOWN,
                inner,
                width,
                sizes.residual_deviation(),
            ))
            .saving(inners(kept))
            .working_with(inners(working))
    }
}
