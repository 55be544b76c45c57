//! Rotary positions: queries and keys are rotated by an angle that grows with their position (Su et al. 2021).

use crate::real::Real;
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// The angles by which they are rotated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rotary {
    /// Base of the angles: the slowest pair of elements rotates about this many times slower than the fastest.
    pub theta: Real,
    /// Slower rotation, for sequences that are longer than those of the first training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// Llama 3's scaling of the angles (`rope_type: llama3`): pairs that rotate often within the original length are unchanged, pairs that
/// rotate rarely become slower by the factor, and those between are interpolated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scaling {
    /// Factor by which the slow pairs become slower.
    pub factor: Real,
    /// Rotations within the original length up to which a pair counts as slow.
    pub low_turns: Real,
    /// Rotations within the original length from which on a pair is unchanged; greater than `low_turns`.
    pub high_turns: Real,
    /// Tokens of a sample of the first training.
    pub original_length: u32,
}

impl Scaling {
    /// The values of Llama 3.1 and 3.2, which differ in `factor`; their first training was on samples of 8192 tokens.
    #[must_use]
    pub const fn llama3(factor: f64) -> Scaling {
        Scaling {
            factor: Real::new(factor),
            low_turns: Real::new(1.0),
            high_turns: Real::new(4.0),
            original_length: 8192,
        }
    }

    fn apply(&self, frequency: f64) -> f64 {
        let turns = f64::from(self.original_length) * frequency / TAU;
        let (low, high) = (self.low_turns.get(), self.high_turns.get());
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        frequency * (kept + (1.0 - kept) / self.factor.get())
    }
}

impl Rotary {
    /// The angles of the paper, which are also the default of the library `transformers`.
    pub const ORIGINAL: Rotary = Rotary {
        theta: Real::new(10_000.0),
        scaling: None,
    };

    /// Radians of rotation per position, for each pair of a head's elements: element `i` of the first half and element `i` of the second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "sizes of heads")]
    pub fn frequencies(&self, head_size: usize) -> Vec<f64> {
        let plain = |pair: usize| self.theta.get().powf(-2.0 * pair as f64 / head_size as f64);
        let frequencies = (0..head_size / 2).map(plain);
        match self.scaling {
            Some(scaling) => frequencies.map(|f| scaling.apply(f)).collect(),
            None => frequencies.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Rotary = Rotary {
        theta: Real::new(500_000.0),
        scaling: None,
    };
    const SCALED: Rotary = Rotary {
        scaling: Some(Scaling::llama3(32.0)),
        ..PLAIN
    };

    #[test]
    fn first_rotary_pair_turns_by_one_radian_per_token() {
        let found = PLAIN.frequencies(8);
        let expected = [1.0, 0.037_606, 0.001_414_2, 0.000_053_183];
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            assert!((a / b - 1.0).abs() < 1e-4, "{found:?}");
        }
    }

    #[test]
    fn llama3_scaling_keeps_fast_pairs_and_slows_slow_ones() {
        let (plain, scaled) = (PLAIN.frequencies(64), SCALED.frequencies(64));
        let mut kinds = [0; 3];
        for (plain, scaled) in plain.iter().zip(&scaled) {
            let turns = 8192.0 * plain / TAU;
            let ratio = plain / scaled;
            let kind = match turns {
                t if t >= 4.0 => 0,
                t if t <= 1.0 => 1,
                _ => 2,
            };
            kinds[kind] += 1;
            match kind {
                0 => assert!((ratio - 1.0).abs() < 1e-12, "{turns} turns: {ratio}"),
                1 => assert!((ratio - 32.0).abs() < 1e-9, "{turns} turns: {ratio}"),
                // 1/32 at one turn, 1 at four turns, and linear in between.
                _ => {
                    let kept = (turns - 1.0) / 3.0;
                    let expected = kept + (1.0 - kept) / 32.0;
                    assert!((1.0 / ratio - expected).abs() < 1e-12, "{turns} turns: {ratio}");
                }
            }
        }
        assert!(kinds.iter().all(|count| *count > 0), "{kinds:?}");
    }
}
