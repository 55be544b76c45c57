//! The first segment: token embedding and positions.

use crate::features::Positions;
use crate::parameter::Parameter;
use crate::piece::{Piece, Sizes};

/// Token table (v, d); a unit of its own where the head is tied.
pub const TOKENS: &str = "wte.weight";
/// Position table (t, d).
pub const POSITIONS: &str = "wpe.weight";

/// The token table.
pub(crate) fn table(sizes: Sizes) -> Parameter {
    sizes.table(TOKENS, sizes.vocabulary)
}

impl Positions {
    /// The whole segment: one operation for each element of its output, which is all that is kept.
    #[expect(clippy::cast_precision_loss, reason = "costs are estimates")]
    pub(crate) fn piece(self, sizes: Sizes) -> Piece {
        let mut parameters = Vec::new();
        if !sizes.tied {
            parameters.push(table(sizes));
        }
        match self {
            Positions::Learned => parameters.push(sizes.table(POSITIONS, sizes.tokens)),
            Positions::Rotary(_) => {}
        }
        let piece = Piece {
            parameters,
            saved_elements: sizes.activation(),
            working_elements: sizes.activation(),
            ..Piece::default()
        };
        piece.taking(sizes.activation() as f64)
    }
}
