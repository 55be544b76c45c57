//! Normalisation over the width: before or after attention and the MLP, before the head, after the embedding; and over a head's width of queries and keys.

use crate::features::Norm;
use crate::parameter::{Initial, LayerNames, Parameter};
use crate::piece::{Piece, Sizes};

impl Norm {
    /// Its parameters and costs. Its output is kept for the backward; its input is kept by the segment before. Its operations are
    /// negligible compared with those of matrices.
    pub(crate) fn piece(self, sizes: Sizes, names: LayerNames) -> Piece {
        let mut parameters = vec![Parameter::of_norm(names.weight, sizes.width, Initial::Ones)];
        match self {
            Norm::LayerNorm => parameters.push(Parameter::of_norm(names.bias, sizes.width, Initial::Zeros)),
            Norm::RmsNorm => {}
        }
        Piece {
            parameters,
            saved_elements: sizes.activation(),
            ..Piece::default()
        }
    }
}
