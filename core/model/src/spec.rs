//! What planning needs to know about a model: amounts, no architecture.

use serde::{Deserialize, Serialize};

/// Kind of a segment, by what it computes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SegmentKind {
    /// The embedding.
    Embedding,
    /// The first half of a block: norm, attention, residual addition.
    Attention,
    /// The second half of a block: norm, MLP, residual addition.
    Mlp,
    /// A whole block, or an unknown kind.
    #[default]
    Block,
    /// Final norm and head.
    Head,
}

impl SegmentKind {
    /// Whether selective recomputation runs its forward again: attention is cheap to recompute for the memory that it keeps (Korthikanti et
    /// al. 2022).
    #[must_use]
    pub fn is_recomputed_selectively(self) -> bool {
        self == SegmentKind::Attention
    }

    /// Whether it computes attention between tokens.
    #[must_use]
    pub fn attends(self) -> bool {
        matches!(self, SegmentKind::Attention | SegmentKind::Block)
    }
}

/// One segment. Operations and elements are those of one sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SegmentSpec {
    /// Kind of the segment.
    pub kind: SegmentKind,
    /// Parameters of its own unit, without a tied weight.
    pub parameters: u64,
    /// Floating-point operations of the forward.
    pub forward_flops: f64,
    /// Floating-point operations of the backward, without recompute.
    pub backward_flops: f64,
    /// Elements that are kept from the forward to the backward. This includes its output but not its input, which is the output of the
    /// segment before.
    pub saved_elements: u64,
    /// Maximum number of single-precision elements that the backward needs in addition.
    pub working_elements: u64,
    /// Elements of its input: what crosses the cut before it; tokens at the first segment.
    pub input_elements: u64,
}

/// A model's segments in order, and the weight that the first and the last may share.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelSpec {
    /// Segments.
    pub segments: Vec<SegmentSpec>,
    /// Parameters of the tied weight; 0 if nothing is tied.
    pub tied_parameters: u64,
}

impl ModelSpec {
    /// Number of segments if blocks are not cut: attention and MLP of a block are then one segment.
    #[must_use]
    pub fn whole_block_segments(&self) -> usize {
        let cut = self.segments.iter().filter(|s| s.kind == SegmentKind::Attention);
        self.segments.len() - cut.count()
    }
}
