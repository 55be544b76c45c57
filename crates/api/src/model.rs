//! The model that a job trains, with every preset and default resolved.

use serde::{Deserialize, Serialize};
use varuna_plan::Layout;

/// A GPT-2: learned positions, pre-norm blocks, GELU (tanh form), a tied or untied head.
///
/// Segments: 0 = embedding (token and position), 1..=layers = one transformer block each, layers+1 = final norm and head.
/// Where the head is tied, the token embedding is a unit of its own (`Layout::tied_unit`).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Transformer blocks, at least 1.
    pub layers: u32,
    /// Width d, a multiple of `heads`.
    pub hidden_size: u32,
    /// Attention heads.
    pub heads: u32,
    /// Tokens in a sample.
    pub sequence_length: u32,
    /// Size of the embedding table; at least the dataset's vocabulary.
    pub vocabulary_size: u32,
    /// The head shares the token embedding.
    pub tied_head: bool,
    /// Dropout after the embedding, after attention and after the MLP; 0 <= p < 1.
    pub dropout: f64,
}

impl Model {
    /// Segments and units.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout {
            segments: self.layers + 2,
            tied: self.tied_head,
        }
    }

    /// Parameters of a segment without the tied weight, or of the tied unit (number `layers + 2`).
    #[must_use]
    pub fn unit_parameters(&self, unit: u32) -> u64 {
        let (d, v) = (u64::from(self.hidden_size), u64::from(self.vocabulary_size));
        let table = v * d;
        let own_table = if self.tied_head { 0 } else { table };
        if unit == 0 {
            own_table + u64::from(self.sequence_length) * d
        } else if unit <= self.layers {
            12 * d * d + 13 * d
        } else if unit == self.layers + 1 {
            2 * d + own_table
        } else {
            table
        }
    }

    /// Parameters of the whole model, a tied weight counted once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        (0..self.layers + 2 + u32::from(self.tied_head))
            .map(|u| self.unit_parameters(u))
            .sum()
    }
}
