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
}

/// The norm before it.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_2.weight",
    bias: "ln_2.bias",
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
    /// Width between up and down.
    fn inner(self, width: usize) -> usize {
        match self {
            Mlp::Gelu => 4 * width,
        }
    }

    /// Kept apart from the norm's: the inner activation before and after GELU.
    pub(crate) fn piece(self, sizes: Sizes, norm: Norm) -> Piece {
        let (width, inner) = (sizes.width, self.inner(sizes.width));
        let up = |names| Piece::linear(sizes, names, width, inner, DEVIATION);
        let (ups, kept) = match self {
            Mlp::Gelu => (up(UP), 2),
        };
        norm.piece(sizes, NORM)
            .then(ups)
            .then(Piece::linear(
                sizes,
                DOWN,
                inner,
                width,
                sizes.residual_deviation(),
            ))
            .saving(kept * (sizes.tokens * inner) as u64)
    }
}
