//! Memory of attention that materialises its scores (one for each pair of tokens). Fused attention, which estimates assume, does not.

use super::Costs;
use serde::{Deserialize, Serialize};

/// Memory that such attention needs in addition to fused attention, for one sample in one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScoreMemory {
    /// Kept from the forward to the backward, bytes.
    pub saved_bytes: u64,
    /// Peak needed in addition by the forward, bytes.
    pub forward_bytes: u64,
    /// Peak needed in addition to what is kept while the backward computes gradients of scores, bytes; the segment's other backward memory
    /// is needed before or after.
    pub backward_bytes: u64,
}

impl ScoreMemory {
    /// The part that costs do not include yet if they already include `counted`: the additional memory that is kept, and the whole
    /// temporary memory.
    pub(crate) fn excess_over(self, counted: ScoreMemory) -> ScoreMemory {
        ScoreMemory {
            saved_bytes: self.saved_bytes.saturating_sub(counted.saved_bytes),
            ..self
        }
    }

    /// The maximum of both, field by field.
    pub(crate) fn max(self, other: ScoreMemory) -> ScoreMemory {
        ScoreMemory {
            saved_bytes: self.saved_bytes.max(other.saved_bytes),
            forward_bytes: self.forward_bytes.max(other.forward_bytes),
            backward_bytes: self.backward_bytes.max(other.backward_bytes),
        }
    }
}

impl Costs {
    /// Adds to each block the memory that attention with materialised scores needs in addition to the estimate.
    pub fn add_scores(&mut self, scores: ScoreMemory) {
        for segment in self.segments.iter_mut().filter(|s| s.kind.attends()) {
            segment.saved_bytes += scores.saved_bytes;
            segment.forward_bytes = segment.forward_bytes.max(scores.forward_bytes);
            segment.working_bytes = segment.working_bytes.max(scores.backward_bytes);
        }
    }
}
