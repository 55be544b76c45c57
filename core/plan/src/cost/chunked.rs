//! Memory of which a backward takes no more than a chunk, however many samples.

use super::{Device, SINGLE_BYTES, SegmentKind};
use serde::{Deserialize, Serialize};
use varuna_model::SegmentSpec;

/// What a backward takes a chunk at a time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chunked {
    /// Of one sample, bytes, if it were taken at once.
    pub bytes: u64,
    /// Of a chunk, bytes.
    pub bytes_max: u64,
}

impl Chunked {
    /// The estimate for a segment.
    pub(super) fn of_segment(spec: &SegmentSpec, device: &Device) -> Chunked {
        match elements(spec) {
            0 => Chunked::default(),
            elements => Chunked {
                bytes: elements * SINGLE_BYTES,
                // Of the logits and of their logarithmic softmax each.
                bytes_max: 2 * device.logits_bytes_max,
            },
        }
    }

    /// What so many samples take at most at once.
    pub(crate) fn of(self, samples: u64) -> u64 {
        self.bytes.saturating_mul(samples).min(self.bytes_max)
    }
}

/// What a head takes some rows at a time: all but the gradient of its input.
pub(super) fn elements(spec: &SegmentSpec) -> u64 {
    match spec.kind {
        SegmentKind::Head => spec.working_elements.saturating_sub(spec.input_elements),
        _ => 0,
    }
}
