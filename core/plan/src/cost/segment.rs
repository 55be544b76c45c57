//! The cost of one segment.

use super::{Chunked, SegmentKind};
use crate::document::Recompute;
use serde::{Deserialize, Serialize};

/// The cost of one segment. Times in milliseconds on a worker of speed 1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentCost {
    /// What it computes.
    #[serde(default)]
    pub kind: SegmentKind,
    /// Forward of one more sample.
    pub forward_ms: f64,
    /// Backward of one more sample, without recompute.
    pub backward_ms: f64,
    /// What a forward costs whatever its micro-batch size: launches, and small sizes that do not fill the device.
    pub forward_fixed_ms: f64,
    /// Likewise of a backward.
    pub backward_fixed_ms: f64,
    /// Parameters (of the segment's own unit; a tied weight is in [`Costs::tied_parameters`](super::Costs::tied_parameters)).
    pub parameters: u64,
    /// What stays of one sample's forward until its backward, in bytes: its output too, and not its input, which the segment before keeps.
    pub saved_bytes: u64,
    /// What the backward of one sample takes at most beyond that, in bytes.
    #[serde(default)]
    pub working_bytes: u64,
    /// What the forward of one sample takes at most beyond what it keeps, in bytes, where that is much: it counts where it is run again while all
    /// that comes after it is kept.
    #[serde(default)]
    pub forward_bytes: u64,
    /// What it takes besides, a chunk at a time: a head's logits and their logarithmic softmax.
    #[serde(default)]
    pub chunked: Chunked,
    /// The segment's input of one sample, in bytes: what crosses the cut before it.
    pub input_bytes: u64,
    /// Optimizer, once a step.
    #[serde(default)]
    pub optimizer_ms: f64,
}

impl SegmentCost {
    /// Whether its forward is run again before its backward.
    pub(crate) fn is_recomputed(&self, recompute: Recompute) -> bool {
        match recompute {
            Recompute::None => false,
            Recompute::Selective => self.kind.is_recomputed_selectively(),
            Recompute::Full => true,
        }
    }

    /// Elements that its largest matrix has at most, of those that an optimizer treats as such: in a block's half queries and projection are alike,
    /// and so are the ways up and down. A segment of which no more is known may be one matrix.
    pub(crate) fn matrix_elements_max(&self) -> u64 {
        match self.kind {
            SegmentKind::Attention | SegmentKind::Mlp => self.parameters / 2,
            SegmentKind::Block => self.parameters,
            SegmentKind::Embedding | SegmentKind::Head => 0,
        }
    }

    /// Scales what it computes: forward and backward, fixed parts included.
    pub(crate) fn scale_compute(&mut self, factor: f64) {
        for ms in [
            &mut self.forward_ms,
            &mut self.backward_ms,
            &mut self.forward_fixed_ms,
            &mut self.backward_fixed_ms,
        ] {
            *ms *= factor;
        }
    }

    /// Bytes that stay of one sample's forward under [`Recompute::Selective`].
    pub(crate) fn kept_selectively(&self) -> u64 {
        if self.kind.is_recomputed_selectively() {
            self.input_bytes
        } else {
            self.saved_bytes
        }
    }
}
