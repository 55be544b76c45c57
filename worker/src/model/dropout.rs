//! Dropout whose mask depends on the sample: it is the same under every plan, rank and micro-batch size.

use tch::Tensor;
use varuna_plan::Step;
use varuna_plan::state::mix;
use varuna_torch::{Kernels, TorchError};

/// Dropout of one micro-batch; or none, in evaluation.
pub struct Dropout<'a> {
    /// Probability that an element is dropped; 0 = identity.
    pub probability: f64,
    /// The job's seed.
    pub seed: u64,
    /// The step being run.
    pub step: Step,
    /// The samples of the micro-batch, in order, as numbers of the seeded order; none in evaluation.
    pub samples: &'a [u64],
}

impl Dropout<'_> {
    /// No dropout at all.
    pub const OFF: Dropout<'static> = Dropout {
        probability: 0.0,
        seed: 0,
        step: Step(0),
        samples: &[],
    };

    /// Whether this is a forward of training.
    #[must_use]
    pub fn trains(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Drops elements of `x_btd` (b = number of samples) and scales up the rest. `block` 0 is
    /// the embedding, `site` tells apart the masks of a block: they do not depend on how it is cut into segments.
    ///
    /// # Errors
    /// The probability is not in 0..1, or there are not as many samples as `x_btd` has.
    pub fn apply(
        &self,
        kernels: Kernels,
        x_btd: &Tensor,
        block: u32,
        site: u64,
    ) -> Result<Tensor, TorchError> {
        if self.probability <= 0.0 {
            return Ok(x_btd.shallow_clone());
        }
        let key = |sample: &u64| {
            let parts = [self.step.0, *sample, u64::from(block), site];
            parts.into_iter().fold(self.seed, mix)
        };
        let keys: Vec<u64> = self.samples.iter().map(key).collect();
        kernels.dropout(x_btd, &keys, 1.0 - self.probability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    fn drop(samples: &[u64], step: u64, block: u32) -> Tensor {
        #[expect(clippy::cast_possible_wrap, reason = "small")]
        let x = Tensor::ones([samples.len() as i64, 4, 16], (Kind::Float, Device::Cpu));
        Dropout {
            probability: 0.5,
            seed: 9,
            step: Step(step),
            samples,
        }
        .apply(Kernels::PROCESSOR, &x, block, 0)
        .unwrap()
    }

    #[test]
    fn a_samples_mask_does_not_depend_on_its_micro_batch() {
        let together = drop(&[5, 6, 7], 3, 1);
        for (i, sample) in [5u64, 6, 7].into_iter().enumerate() {
            let alone = drop(&[sample], 3, 1);
            assert_eq!(together.get(i64::try_from(i).unwrap()), alone.get(0));
        }
        assert_ne!(drop(&[5], 3, 1), drop(&[6], 3, 1));
        assert_ne!(drop(&[5], 3, 1), drop(&[5], 4, 1));
        assert_ne!(drop(&[5], 3, 1), drop(&[5], 3, 2));
    }
}
