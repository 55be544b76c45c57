//! Samples with masked tokens: what the model sees, and which tokens it must predict.

use super::Split;
use crate::model::Module;
use varuna_api::Training;
use varuna_api::masking::{Masking, SampleMask};
use varuna_torch::NO_TARGET;

/// How the samples of a job are masked.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskedSamples {
    masking: Masking,
    vocabulary_size: u32,
    seed: u64,
}

impl MaskedSamples {
    /// The masking of a job; none if the job masks nothing.
    #[must_use]
    pub(super) fn of(model: &Module, training: &Training) -> Option<MaskedSamples> {
        Some(MaskedSamples {
            masking: training.masking?,
            vocabulary_size: model.vocabulary_size(),
            seed: training.seed,
        })
    }

    #[cfg(test)]
    pub(super) fn with(masking: Masking, vocabulary_size: u32) -> MaskedSamples {
        MaskedSamples {
            masking,
            vocabulary_size,
            seed: 7,
        }
    }

    /// The mask of a sample.
    pub(super) fn mask(&self, split: Split, sample: u64) -> SampleMask {
        match split {
            Split::Train => self.masking.of_trained(self.vocabulary_size, self.seed, sample),
            Split::HeldOut => self.masking.of_held_out(self.vocabulary_size, sample),
        }
    }
}

/// Hides tokens of a sample (t + 1).
pub(crate) fn hide(mask: &SampleMask, row: &mut [i64]) {
    for (place, token) in (0..).zip(row) {
        *token = mask.seen(place, *token);
    }
}

/// Makes targets (t + 1) from a sample's tokens (t + 1). The target of a token is one place after the token, as it is for the next token.
/// Tokens that need not be predicted have no target.
pub(crate) fn leave_targets(mask: &SampleMask, row: &mut [i64]) {
    let inputs = row.len().saturating_sub(1);
    row.copy_within(..inputs, 1);
    for (place, target) in (0..).zip(row.iter_mut().skip(1)) {
        if !mask.is_chosen(place) {
            *target = NO_TARGET;
        }
    }
}

/// How many of a sample's `inputs` tokens are to be filled in.
pub(super) fn chosen(mask: &SampleMask, inputs: usize) -> usize {
    (0u64..)
        .take(inputs)
        .filter(|place| mask.is_chosen(*place))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_hidden_is_what_is_to_be_filled_in_and_counted(sample: u64, tokens in prop::collection::vec(0..50i64, 1..40)) {
            let mask = Masking { probability: 0.4, mask_token: 50 }.of_trained(51, 7, sample);
            let (mut seen, mut targets) = (tokens.clone(), tokens.clone());
            hide(&mask, &mut seen);
            leave_targets(&mask, &mut targets);
            let inputs = tokens.len() - 1;
            for place in 0..inputs {
                let target = targets[place + 1];
                prop_assert!(target == tokens[place] || target == NO_TARGET);
                prop_assert!(seen[place] == tokens[place] || target == tokens[place]);
            }
            let left = targets[1..].iter().filter(|t| **t != NO_TARGET).count();
            prop_assert_eq!(chosen(&mask, inputs), left);
        }
    }
}
