//! What a parameter takes in memory and on the network.

use super::SINGLE_BYTES;
use crate::moments::Moments;
use serde::{Deserialize, Serialize};

/// Bytes that a parameter takes, by the number formats of the training.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParameterBytes {
    /// In a worker's memory, all through the training.
    pub resident: u64,
    /// To a worker that lacks it: the master and its moments.
    pub moved: u64,
    /// Of its gradient in a ring.
    pub gradient: u64,
}

impl ParameterBytes {
    /// Master, gradient and two moments in single precision.
    pub const FP32: ParameterBytes = ParameterBytes {
        resident: 16,
        moved: 12,
        gradient: 4,
    };
    /// The same, and a copy of 16 bits that is computed with.
    pub const MIXED: ParameterBytes = ParameterBytes {
        resident: 18,
        ..ParameterBytes::FP32
    };

    /// Where activations have elements of so many bytes.
    #[must_use]
    pub fn computing_in(element_bytes: u64) -> ParameterBytes {
        if element_bytes < 4 {
            ParameterBytes::MIXED
        } else {
            ParameterBytes::FP32
        }
    }

    /// The same with these moments in place of Adam's.
    #[must_use]
    pub fn keeping(self, moments: Moments) -> ParameterBytes {
        let fewer = SINGLE_BYTES * (Moments::Adam.of_parameter() - moments.of_parameter()) as u64;
        ParameterBytes {
            resident: self.resident.saturating_sub(fewer),
            moved: self.moved.saturating_sub(fewer),
            ..self
        }
    }
}

impl Default for ParameterBytes {
    fn default() -> Self {
        ParameterBytes::FP32
    }
}
