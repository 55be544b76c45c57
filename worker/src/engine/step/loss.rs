//! The loss, as it is added up over micro-batches.

use super::super::{EngineError, Split};
use super::Run;
use crate::model::Module;
use crate::state::Computing;
use tch::{Kind, Tensor};
use varuna_torch::{Device, HeadLoss};

/// The mean loss of this many targets, of which a worker sees some. It is on the device, so a GPU need not stop to report it for each
/// micro-batch.
pub(super) struct LossSum {
    sum: Tensor,
    /// Of one target in the mean, so that a short micro-batch is right.
    weight: f64,
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
    pub(super) fn new(device: Device, samples: u64, model: &Module) -> LossSum {
        LossSum {
            sum: Tensor::zeros([0i64; 0], (Kind::Double, device.tensors())),
            weight: weight_among(samples * model.losses_of_sample()),
        }
    }

    /// The same over this many targets.
    pub(super) fn set_targets(&mut self, count: u64) {
        self.weight = weight_among(count);
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
