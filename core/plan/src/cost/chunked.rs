//! Memory of which a backward uses only one chunk at a time, however many samples there are.

use super::{Device, SINGLE_BYTES, SegmentKind};
use serde::{Deserialize, Serialize};
use varuna_model::SegmentSpec;

/// Memory that a backward uses one chunk at a time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chunked {
    /// Bytes for one sample, if it were used at once.
    pub bytes: u64,
    /// Bytes of a chunk.
    pub bytes_max: u64,
}

impl Chunked {
    /// The estimate for a segment.
    pub(super) fn of_segment(spec: &SegmentSpec, device: &Device) -> Chunked {
        match elements(spec) {
            0 => Chunked::default(),
            elements => Chunked {
                bytes: elements * SINGLE_BYTES,
                // The logits and their logarithmic softmax each have this size.
                bytes_max: 2 * device.logits_bytes_max,
            },
        }
    }

    /// Peak bytes for `samples` samples.
    pub(crate) fn of(self, samples: u64) -> u64 {
        self.bytes.saturating_mul(samples).min(self.bytes_max)
    }
}

/// Elements that a head computes a chunk of rows at a time: everything except the gradient of its input.
pub(super) fn elements(spec: &SegmentSpec) -> u64 {
    match spec.kind {
        SegmentKind::Head => spec.working_elements.saturating_sub(spec.input_elements),
        _ => 0,
    }
}
