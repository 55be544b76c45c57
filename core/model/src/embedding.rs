//! The first segment: token embedding, positions, kinds of tokens, and their norm.

use crate::features::Positions;
use crate::parameter::{LayerNames, Parameter};
use crate::piece::{Piece, Sizes};

/// Token table (v, d); a unit of its own where the head is tied.
pub const TOKENS: &str = "wte.weight";
/// Position table (t, d).
pub const POSITIONS: &str = "wpe.weight";
/// Table of the kinds of tokens (n, d).
pub const TYPES: &str = "wtt.weight";
/// The norm over their sum.
pub const NORM: LayerNames = LayerNames {
    weight: "ln_e.weight",
    bias: "ln_e.bias",
};

/// The token table.
pub(crate) fn table(sizes: Sizes) -> Parameter {
    sizes.table(TOKENS, sizes.vocabulary)
}

/// The whole segment: one operation for each element of its output, which is all that is kept, but for what a norm makes of it.
#[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
pub(crate) fn piece(sizes: Sizes) -> Piece {
    let features = sizes.features;
    let mut parameters = Vec::new();
    if !sizes.tied {
        parameters.push(table(sizes));
    }
    match features.positions {
        Positions::Learned => parameters.push(sizes.table(POSITIONS, sizes.tokens)),
        Positions::Rotary(_) => {}
    }
    if let Some(types) = features.token_types {
        parameters.push(sizes.table(TYPES, types as usize));
    }
    let piece = Piece {
        parameters,
        saved_elements: sizes.activation(),
        working_elements: sizes.activation(),
        ..Piece::default()
    };
    let sum = piece.taking(sizes.activation() as f64);
    match features.embedding_norm {
        true => sum.then(features.norm.piece(sizes, NORM)),
        false => sum,
    }
}
