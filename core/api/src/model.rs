//! The model that a job trains, with every preset and default resolved.

use serde::{Deserialize, Serialize};
use varuna_plan::Layout;
use varuna_plan::cost::GptSizes;

/// A GPT-2: learned positions, pre-norm blocks, GELU (tanh form), a tied or untied head.
///
/// Segments: the embedding (token and position), then attention and MLP of each block in turn, then final norm and head
/// ([`Model::part`]): a model can be cut inside a block, on the residual stream. Where the head is tied, the token embedding is a unit of its own (`Layout::tied_unit`).
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

/// What a segment computes. Blocks count from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Token and position embedding.
    Embedding,
    /// First half of a block: norm, attention, residual addition.
    Attention(u32),
    /// Second half of a block: norm, MLP, residual addition.
    Mlp(u32),
    /// Final norm and head.
    Head,
}

impl Model {
    /// What a segment computes.
    #[must_use]
    pub fn part(&self, segment: u32) -> Part {
        match segment.checked_sub(1) {
            None => Part::Embedding,
            Some(half) if half >= 2 * self.layers => Part::Head,
            Some(half) if half.is_multiple_of(2) => Part::Attention(half / 2),
            Some(half) => Part::Mlp(half / 2),
        }
    }

    /// Segments and units.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout {
            segments: 2 * self.layers + 2,
            tied: self.tied_head,
        }
    }

    /// What its costs are estimated from.
    #[must_use]
    pub fn sizes(&self) -> GptSizes {
        GptSizes {
            layers: self.layers,
            hidden: self.hidden_size.into(),
            sequence: self.sequence_length.into(),
            vocabulary: self.vocabulary_size.into(),
            tied: self.tied_head,
        }
    }

    /// Parameters of a segment without the tied weight, or of the tied unit (the number after the last segment's).
    #[must_use]
    pub fn unit_parameters(&self, unit: u32) -> u64 {
        let (d, v) = (u64::from(self.hidden_size), u64::from(self.vocabulary_size));
        let table = v * d;
        let own_table = if self.tied_head { 0 } else { table };
        if unit >= self.layout().segments {
            return table;
        }
        match self.part(unit) {
            Part::Embedding => own_table + u64::from(self.sequence_length) * d,
            Part::Attention(_) => 4 * d * d + 6 * d,
            Part::Mlp(_) => 8 * d * d + 7 * d,
            Part::Head => 2 * d + own_table,
        }
    }

    /// Parameters of the whole model, a tied weight counted once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let units = self.layout().all_units();
        units.map(|u| self.unit_parameters(u.0)).sum()
    }
}
