//! Normalisation over the width: before attention, before the MLP and before the head; and over a head's width of queries and keys.

use crate::parameter::{Initial, LayerNames, Parameter};
use crate::piece::{Piece, Sizes};
use serde::{Deserialize, Serialize};

/// Which normalisation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Norm {
    /// Mean 0 and variance 1, then weight and bias (Ba et al. 2016).
    #[default]
    LayerNorm,
    /// Mean square 1, then a weight (Zhang and Sennrich 2019).
    RmsNorm,
}

impl Norm {
    /// Its parameters; its output stays for the backward, and its input is what the segment before keeps. Its operations do not count beside those of matrices.
    pub(crate) fn piece(self, sizes: Sizes, names: LayerNames) -> Piece {
        let mut parameters = vec![Parameter::vector(names.weight, sizes.width, Initial::Ones)];
        match self {
            Norm::LayerNorm => parameters.push(Parameter::vector(names.bias, sizes.width, Initial::Zeros)),
            Norm::RmsNorm => {}
        }
        Piece {
            parameters,
            saved_elements: sizes.activation(),
            ..Piece::default()
        }
    }
}
