//! Bytes per parameter in memory and on the network.

use super::SINGLE_BYTES;
use crate::moments::Moments;
use serde::{Deserialize, Serialize};

/// Temporary memory of Muon's step per element of a matrix, in addition to what is kept: gradient, change, two temporaries and the result
/// of the momentum in single precision. The following iteration needs no more for a square matrix, and less on a GPU
/// (`worker/torch/src/kernels/muon.rs`).
const MUON_STEP_BYTES: u64 = 5 * SINGLE_BYTES;

/// Bytes per parameter, depending on the number formats of the training.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParameterBytes {
    /// Bytes in a worker's memory during the whole training.
    pub resident: u64,
    /// Transferred to a worker that is missing it: the master and its moments.
    pub moved: u64,
    /// Sent for its gradient in a ring.
    pub gradient: u64,
    /// Temporary, during the optimizer's step, for an element of a matrix that the optimizer treats as a whole; the largest such matrix of
    /// a worker counts. Not in a profile, which must suit jobs with any optimizer.
    #[serde(skip)]
    pub matrix_step: u64,
}

impl ParameterBytes {
    /// Master, gradient and two moments in single precision.
    pub const FP32: ParameterBytes = ParameterBytes {
        resident: 16,
        moved: 12,
        gradient: 4,
        matrix_step: 0,
    };
    /// The same, and a 16-bit copy for computing.
    pub const MIXED: ParameterBytes = ParameterBytes {
        resident: 18,
        ..ParameterBytes::FP32
    };

    /// The numbers of bytes for training whose activations have elements of `element_bytes` bytes.
    #[must_use]
    pub fn computing_in(element_bytes: u64) -> ParameterBytes {
        if element_bytes < 4 {
            ParameterBytes::MIXED
        } else {
            ParameterBytes::FP32
        }
    }

    /// The same if a worker holds `held` of `ranges` ranges of the state: all parameters in the compute format, and all gradients, but only
    /// those ranges of masters and moments (ZeRO-1, Rajbhandari et al. 2020). In single precision the masters are among the parameters.
    #[must_use]
    pub fn sharded(self, held: u64, ranges: u64) -> ParameterBytes {
        let (parameters, divided) = match self.copy() {
            0 => (SINGLE_BYTES, self.moved.saturating_sub(SINGLE_BYTES)),
            copy => (copy, self.moved),
        };
        ParameterBytes {
            resident: parameters + self.gradient + (divided * held).div_ceil(ranges.max(1)),
            ..self
        }
    }

    /// A parameter in the compute format and its gradient: what a step needs without the state.
    #[must_use]
    pub fn without_state(self) -> u64 {
        let parameter = match self.copy() {
            0 => SINGLE_BYTES,
            copy => copy,
        };
        parameter + self.gradient
    }

    /// The copy in a 16-bit compute format; 0 if steps compute with the master.
    fn copy(self) -> u64 {
        self.resident.saturating_sub(self.moved + self.gradient)
    }

    /// The same with these moments in place of Adam's.
    #[must_use]
    pub fn keeping(self, moments: Moments) -> ParameterBytes {
        let fewer = SINGLE_BYTES * (Moments::Adam.of_parameter() - moments.of_parameter()) as u64;
        ParameterBytes {
            resident: self.resident.saturating_sub(fewer),
            moved: self.moved.saturating_sub(fewer),
            matrix_step: match moments {
                Moments::Muon => MUON_STEP_BYTES,
                Moments::Adam | Moments::Momentum => 0,
            },
            ..self
        }
    }
}

impl Default for ParameterBytes {
    fn default() -> Self {
        ParameterBytes::FP32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharded_state_takes_6_plus_24_over_n_bytes() {
        let of = |bytes: ParameterBytes, held| bytes.sharded(held, 12).resident;
        assert_eq!(of(ParameterBytes::MIXED, 12), 6 + 12);
        assert_eq!(of(ParameterBytes::MIXED, 6), 6 + 24 / 4);
        assert_eq!(of(ParameterBytes::MIXED, 2), 6 + 24 / 12);
        let sgd = ParameterBytes::MIXED.keeping(Moments::Momentum);
        assert_eq!(of(sgd, 6), 6 + 16 / 4);
    }

    #[test]
    fn in_single_precision_only_moments_are_divided() {
        let of = |bytes: ParameterBytes, held| bytes.sharded(held, 12).resident;
        assert_eq!(of(ParameterBytes::FP32, 12), ParameterBytes::FP32.resident);
        assert_eq!(
            of(ParameterBytes::FP32, 8),
            14,
            "8 + 16/3, rounded up: three pipelines save memory"
        );
        assert_eq!(of(ParameterBytes::FP32, 6), 8 + 16 / 4);
        assert_eq!(of(ParameterBytes::FP32, 3), 8 + 2);
        let sgd = ParameterBytes::FP32.keeping(Moments::Momentum);
        assert_eq!([12, 6].map(|held| of(sgd, held)), [12, 8 + 8 / 4]);
    }
}
