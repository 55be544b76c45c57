//! The loss, as it is added up over micro-batches.

use super::super::{EngineError, Split};
use super::Run;
use crate::model::Module;
use crate::state::Computing;
use tch::{Kind, Tensor};
use varuna_torch::{Device, HeadLoss, TorchError};

/// The mean loss of this many targets, of which a worker sees some. It is on the device, so a GPU need not stop to report it for each
/// micro-batch.
pub(super) struct LossSum {
    sum: Tensor,
    /// Of one target in the mean, so that a short micro-batch is right.
    weight: f64,
    has_targets: bool,
}

/// The weight of one target among this many. If there are none, there is no loss to weight.
#[expect(
    clippy::cast_precision_loss,
    reason = "token counts of a batch stay far below 2^53"
)]
fn weight_among(targets: u64) -> f64 {
    1.0 / targets.max(1) as f64
}

impl LossSum {
    /// The mean over this many samples, all of whose losses count.
    ///
    /// # Errors
    /// The device has no memory, or has failed.
    pub(super) fn new(device: Device, samples: u64, model: &Module) -> Result<LossSum, TorchError> {
        let sum = Tensor::f_zeros([0i64; 0], (Kind::Double, device.tensors()));
        Ok(LossSum {
            sum: sum.map_err(|e| TorchError(e.to_string()))?,
            weight: weight_among(samples * model.losses_of_sample()),
            has_targets: true,
        })
    }

    /// The same over this many targets.
    pub(super) fn set_targets(&mut self, count: u64) {
        self.weight = weight_among(count);
        self.has_targets = count > 0;
    }

    /// Whether there is a loss: a mean over nothing is none.
    pub(super) fn has_targets(&self) -> bool {
        self.has_targets
    }

    fn of<'a>(&'a self, targets: &'a Tensor) -> HeadLoss<'a> {
        HeadLoss {
            targets,
            weight: self.weight,
            sum: &self.sum,
        }
    }

    /// The sum so far, (1).
    pub(super) fn sum(&self) -> Tensor {
        self.sum.view([1])
    }
}

impl Run<'_> {
    /// Adds the loss of a micro-batch of training; its gradient by the last segment's output. From here on gradients carry the loss
    /// scale, through all stages up to the optimizer.
    pub(super) fn loss_backward(
        &mut self,
        units: Computing<'_>,
        output: &Tensor,
        micro_batch: u32,
    ) -> Result<Tensor, EngineError> {
        let targets = self.targets(Split::Train, &self.sample_numbers(micro_batch))?;
        let loss = self.loss.of(&targets);
        let scale = self.before.loss_scale.factor.as_f64();
        let model = &self.config.model;
        Ok(model.add_loss_with_gradients(&units, output, &loss, scale)?)
    }

    /// Adds the loss of held-out samples.
    pub(super) fn evaluation_loss(
        &mut self,
        units: Computing<'_>,
        output: &Tensor,
        numbers: &[u64],
        into: &LossSum,
    ) -> Result<(), EngineError> {
        let targets = self.targets(Split::HeldOut, numbers)?;
        Ok(self.config.model.add_loss(&units, output, &into.of(&targets))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_model::gpt2;

    #[test]
    fn a_device_that_gives_no_memory_is_an_error() {
        // No machine has so many GPUs: the device refuses, as a full one does.
        let refused = LossSum::new(Device::Cuda(127), 1, &gpt2::SMALL.into());
        assert!(refused.is_err());
        assert!(LossSum::new(Device::Cpu, 1, &gpt2::SMALL.into()).is_ok());
    }
}
