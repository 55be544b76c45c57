//! Memory of attention that makes its scores, of each token for each other one: fused attention, which estimates count with, makes none.

use super::Costs;
use serde::{Deserialize, Serialize};

/// What such attention takes beyond fused attention, of one sample in one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScoreMemory {
    /// Stays from the forward to the backward, bytes.
    pub saved_bytes: u64,
    /// Taken at most beyond that by the forward, bytes.
    pub forward_bytes: u64,
    /// Taken at most beyond what is kept while the backward makes gradients of scores, bytes; what else the segment's backward takes is taken before
    /// or after.
    pub backward_bytes: u64,
}

impl ScoreMemory {
    /// What is left to count of it in costs that count another one already: more that stays, and as much as before that is taken at most.
    pub(crate) fn beyond(self, counted: ScoreMemory) -> ScoreMemory {
        ScoreMemory {
            saved_bytes: self.saved_bytes.saturating_sub(counted.saved_bytes),
            ..self
        }
    }

    /// The most of both.
    pub(crate) fn max(self, other: ScoreMemory) -> ScoreMemory {
        ScoreMemory {
            saved_bytes: self.saved_bytes.max(other.saved_bytes),
            forward_bytes: self.forward_bytes.max(other.forward_bytes),
            backward_bytes: self.backward_bytes.max(other.backward_bytes),
        }
    }
}

impl Costs {
    /// Counts, in each block, what attention that makes its scores takes beyond what an estimate says.
    pub fn add_scores(&mut self, scores: ScoreMemory) {
        for segment in self.segments.iter_mut().filter(|s| s.kind.attends()) {
            segment.saved_bytes += scores.saved_bytes;
            segment.forward_bytes = segment.forward_bytes.max(scores.forward_bytes);
            segment.working_bytes = segment.working_bytes.max(scores.backward_bytes);
        }
    }
}
