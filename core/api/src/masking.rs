//! Masked language modelling (Devlin et al. 2019): some tokens of a sample are masked, and the model learns to fill them in.

use serde::{Deserialize, Serialize};
use varuna_plan::state::mix;

/// Default probability with which a token is chosen (Devlin et al. 2019).
pub const DEFAULT_PROBABILITY: f64 = 0.15;
/// Of ten chosen tokens, this many are replaced by the mask token, and [`RANDOM_IN_TEN`] by a random token; the rest stay (Devlin et al.
/// 2019).
const MASKED_IN_TEN: u64 = 8;
const RANDOM_IN_TEN: u64 = 1;

/// How tokens are masked.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Masking {
    /// Probability that a token is chosen, independently of others; 0 < p < 1. The loss is the mean over the chosen tokens of the batch.
    pub probability: f64,
    /// Replaces masked tokens; below the model's vocabulary size.
    pub mask_token: u32,
}

/// Which tokens of one sample are masked, and what replaces them. The mask is the same under every plan and on every worker.
#[derive(Clone, Copy, Debug)]
pub struct SampleMask {
    masking: Masking,
    vocabulary_size: u32,
    key: u64,
}

/// Held-out samples are masked independently of the seed, so that losses of different jobs can be compared.
const HELD_OUT: u64 = 0x4845_4c44;
const TRAINED: u64 = 0x5452_4149;

impl Masking {
    /// The mask of a training sample, by its number in the seeded order: a different one in each pass over the data (Liu et al. 2019).
    #[must_use]
    pub fn of_trained(self, vocabulary_size: u32, seed: u64, sample: u64) -> SampleMask {
        self.of(vocabulary_size, mix(mix(seed, TRAINED), sample))
    }

    /// The mask of a held-out sample.
    #[must_use]
    pub fn of_held_out(self, vocabulary_size: u32, sample: u64) -> SampleMask {
        self.of(vocabulary_size, mix(HELD_OUT, sample))
    }

    fn of(self, vocabulary_size: u32, key: u64) -> SampleMask {
        SampleMask {
            masking: self,
            vocabulary_size,
            key,
        }
    }
}

impl SampleMask {
    /// Whether the model has to predict the token at this position.
    #[must_use]
    pub fn is_chosen(&self, place: u64) -> bool {
        fraction(mix(mix(self.key, place), 0)) < self.masking.probability
    }

    /// The token that the model sees at this position.
    #[must_use]
    pub fn seen(&self, place: u64, token: i64) -> i64 {
        if !self.is_chosen(place) {
            return token;
        }
        let key = mix(self.key, place);
        match mix(key, 1) % 10 {
            in_ten if in_ten < MASKED_IN_TEN => self.masking.mask_token.into(),
            in_ten if in_ten < MASKED_IN_TEN + RANDOM_IN_TEN => {
                let random = mix(key, 2) % u64::from(self.vocabulary_size.max(1));
                i64::try_from(random).unwrap_or(0)
            }
            _ => token,
        }
    }
}

/// A number in 0..1, from the 53 bits that a double has.
#[expect(clippy::cast_precision_loss, reason = "53 bits")]
fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKENS: u64 = 100_000;
    const TOKEN: i64 = 7;
    const MASK: u32 = 999;

    fn masking(probability: f64) -> Masking {
        Masking {
            probability,
            mask_token: MASK,
        }
    }

    #[test]
    fn tokens_are_chosen_and_replaced_in_the_published_shares() {
        let of_sample = masking(0.15).of_trained(1000, 5, 3);
        let chosen: Vec<u64> = (0..TOKENS).filter(|place| of_sample.is_chosen(*place)).collect();
        let share = |count: usize, of: usize| count as f64 / of as f64;
        assert!((share(chosen.len(), TOKENS as usize) - 0.15).abs() < 0.005);
        let seen = |wanted: fn(i64) -> bool| {
            let tokens = chosen.iter().map(|place| of_sample.seen(*place, TOKEN));
            share(tokens.filter(|token| wanted(*token)).count(), chosen.len())
        };
        assert!((seen(|t| t == i64::from(MASK)) - 0.8).abs() < 0.015);
        assert!((seen(|t| t == TOKEN) - 0.1).abs() < 0.01);
        assert!((seen(|t| t != TOKEN && t != i64::from(MASK)) - 0.1).abs() < 0.01);
    }

    #[test]
    fn masks_depend_on_seed_sample_and_split() {
        let chosen = |mask: SampleMask| (0..200).map(|place| mask.is_chosen(place)).collect::<Vec<_>>();
        let masking = masking(0.15);
        let one = chosen(masking.of_trained(1000, 5, 3));
        assert_eq!(one, chosen(masking.of_trained(1000, 5, 3)));
        for other in [
            masking.of_trained(1000, 6, 3),
            masking.of_trained(1000, 5, 4),
            masking.of_held_out(1000, 3),
        ] {
            assert_ne!(one, chosen(other));
        }
        assert_ne!(
            chosen(masking.of_held_out(1000, 3)),
            chosen(masking.of_held_out(1000, 4))
        );
    }

    proptest! {
        #[test]
        fn what_is_seen_is_a_token_and_only_chosen_ones_are_replaced(
            seed: u64, sample: u64, place: u64, vocabulary in 1..100_000u32, share in 0.001..0.999f64, token in 0..100i64
        ) {
            let masking = Masking { probability: share, mask_token: vocabulary - 1 };
            let mask = masking.of_trained(vocabulary, seed, sample);
            let seen = mask.seen(place, token);
            prop_assert!(seen == token || (0..i64::from(vocabulary)).contains(&seen));
            prop_assert!(mask.is_chosen(place) || seen == token);
        }
    }
}
