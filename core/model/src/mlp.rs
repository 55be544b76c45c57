//! The second half of a block: norm, MLP, residual addition; or the norm last.

use crate::features::Mlp;
use crate::parameter::{DEVIATION, LayerNames};
use crate::piece::{Piece, Sizes};

/// The norm before it, or after the addition.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_2.weight",
    bias: "ln_2.bias",
};
/// The gate of a gated MLP: (inner, d).
pub const GATE: LayerNames = LayerNames {
    weight: "mlp.c_gate.weight",
    bias: "mlp.c_gate.bias",
};
/// Names of the first linear layer, (inner, d).
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
    /// Width between up and down where a model names none: four times its own. A gated MLP has three matrices instead of two: 2/3 of
    /// the width make up for it, rounded up to a multiple of 64.
    pub(crate) fn inner(self, width: usize) -> usize {
        match self {
            Mlp::Gelu | Mlp::GeluErf | Mlp::Relu2 => 4 * width,
            Mlp::SwiGlu => (8 * width).div_ceil(3).next_multiple_of(64),
        }
    }

    /// Its activation as `transformers` calls it, in families that have several kinds; none for a kind that none of them has.
    pub(crate) fn activation(self) -> Option<&'static str> {
        match self {
            Mlp::GeluErf => Some("gelu"),
            Mlp::Gelu => Some("gelu_new"),
            Mlp::SwiGlu | Mlp::Relu2 => None,
        }
    }

    /// Kept apart from the norm's: the inner activation before and after GELU, or after each half of the squared ReLU; or gate, SiLU of
    /// it, up, and their product; and the sum. The backward takes the gradients of the sum and of what the activation, or the
    /// product, was made from.
    pub(crate) fn piece(self, sizes: Sizes) -> Piece {
        let (width, inner, bias) = (sizes.width, sizes.inner, sizes.features.bias.mlp);
        let up = |names| Piece::linear(sizes, names, (width, inner), bias, DEVIATION);
        let (ups, kept, working) = match self {
            Mlp::Gelu | Mlp::GeluErf | Mlp::Relu2 => (up(UP), 2, 1),
            Mlp::SwiGlu => (up(GATE).then(up(UP)), 4, 2),
        };
        let inners = |count: u64| count * (sizes.tokens * inner) as u64 + sizes.activation();
        let deviation = sizes.residual_deviation();
        let norm = sizes.features.norm.piece(sizes, NORM);
        norm.then(ups)
            .then(Piece::linear(sizes, DOWN, (inner, width), bias, deviation))
            .saving(inners(kept))
            .working_with(inners(working))
    }
}
