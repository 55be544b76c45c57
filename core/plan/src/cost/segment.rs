//! The cost of one segment.

use super::{Chunked, SegmentKind};
use crate::document::Recompute;
use serde::{Deserialize, Serialize};

/// The cost of one segment. Times in milliseconds on a worker of speed 1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SegmentCost {
    /// Kind of the segment.
    #[serde(default)]
    pub kind: SegmentKind,
    /// Forward time per sample.
    pub forward_ms: f64,
    /// Backward time per sample, without recompute.
    pub backward_ms: f64,
    /// Fixed time of a forward: launches, and small sizes that do not fill the device.
    pub forward_fixed_ms: f64,
    /// Fixed time of a backward.
    pub backward_fixed_ms: f64,
    /// Parameters (of the segment's own unit; a tied weight is in [`Costs::tied_parameters`](super::Costs::tied_parameters)).
    pub parameters: u64,
    /// Bytes that are kept of one sample's forward until its backward: its output too, but not its input, which the segment before keeps.
    pub saved_bytes: u64,
    /// Peak bytes that the backward of one sample needs in addition.
    #[serde(default)]
    pub working_bytes: u64,
    /// Peak bytes that the forward of one sample needs in addition to what it keeps, if that is much: it counts if the forward is
    /// recomputed while everything after it is kept.
    #[serde(default)]
    pub forward_bytes: u64,
    /// Memory that it uses one chunk at a time: a head's logits and their logarithmic softmax.
    #[serde(default)]
    pub chunked: Chunked,
    /// Bytes of the segment's input for one sample: what crosses the cut before it.
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

    /// Upper bound of the elements of its largest matrix that an optimizer treats as a whole. In a block's half, queries and projection
    /// have the same size, and so have the up and down projections. A segment of unknown kind may be a single matrix.
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

    /// Bytes that are kept of one sample's forward under [`Recompute::Selective`].
    pub(crate) fn kept_selectively(&self) -> u64 {
        if self.kind.is_recomputed_selectively() {
            self.input_bytes
        } else {
            self.saved_bytes
        }
    }
}
