//! A step of the optimizer on the buffers of a unit.

use super::{UnitBuffers, size};
use std::ops::Range;
use std::time::Instant;
use tch::Tensor;
use varuna_api::{Optimizer, UpdateRule};
use varuna_model::{ParameterKind, parameter};
use varuna_plan::OptimizerProgress;
use varuna_torch::{AdamStep, LeaseError, MomentumStep, MuonStep, Parameters, TorchError};

impl UnitBuffers {
    /// Scales the gradient by `factor` and takes one step of the optimizer with the learning rate `rate`, which leads to `after`; what the gradient
    /// holds then is not defined. Snapshots that are still read are waited for, until `deadline`.
    ///
    /// # Errors
    /// libtorch fails; or a snapshot is still read at `deadline`, and nothing has changed.
    pub fn apply(
        &mut self,
        optimizer: &Optimizer,
        rate: f64,
        factor: f64,
        after: OptimizerProgress,
        deadline: Instant,
    ) -> Result<(), LeaseError> {
        self.wait_for_snapshots(deadline)?;
        self.progress = after;
        let decays = |kind| optimizer.weight_decay_on.contains(&kind);
        let decay = |decays| if decays { optimizer.weight_decay } else { 0.0 };
        let mut done = 0;
        if let UpdateRule::Muon { momentum, .. } = optimizer.rule {
            let step = MuonStep {
                rate,
                momentum,
                decay: decay(decays(ParameterKind::Matrix)),
                factor,
            };
            for matrix in &self.matrices {
                let shape = matrix.map(size);
                let end = done + shape[0] * shape[1];
                self.each_piece(done..end, |of| self.parameters.kernels().muon(of, shape, step))?;
                done = end;
            }
        }
        for (range, decays) in parameter::ranges(self.kinds.iter().copied(), decays) {
            let rest = size(range.start).max(done)..size(range.end);
            if !rest.is_empty() {
                self.each_piece(rest, |of| {
                    self.step(optimizer.rule, of, [rate, decay(decays), factor])
                })?;
            }
        }
        Ok(())
    }

    /// A range of the parameters in as many pieces as their copy has there.
    fn each_piece(
        &self,
        range: Range<i64>,
        step: impl Fn(&Parameters<'_>) -> Result<(), TorchError>,
    ) -> Result<(), TorchError> {
        let Some(gradients) = &self.gradients else {
            return Err(TorchError("a unit without gradients".into()));
        };
        for (part, copy) in self.parameters.pieces(range) {
            let of = |all: &Tensor| all.narrow(0, part.start, part.end - part.start);
            let [weight, gradient, first] = [&self.weights, gradients.tensor(), &self.first].map(of);
            let second = (self.second.numel() > 0).then(|| of(&self.second));
            step(&Parameters {
                weight: &weight,
                gradient: &gradient,
                first: &first,
                second: second.as_ref(),
                copy: copy.as_ref(),
            })?;
        }
        Ok(())
    }

    fn step(
        &self,
        rule: UpdateRule,
        of: &Parameters<'_>,
        [rate, decay, factor]: [f64; 3],
    ) -> Result<(), TorchError> {
        let kernels = self.parameters.kernels();
        match rule {
            UpdateRule::Adamw {
                beta1,
                beta2,
                epsilon,
            }
            | UpdateRule::Muon {
                beta1,
                beta2,
                epsilon,
                ..
            } => kernels.adamw(
                of,
                AdamStep {
                    count: self.progress.adam_steps,
                    rate,
                    beta1,
                    beta2,
                    decay,
                    epsilon,
                    factor,
                },
            ),
            UpdateRule::Sgd { momentum } => kernels.sgd(
                of,
                MomentumStep {
                    rate,
                    momentum,
                    decay,
                    factor,
                },
            ),
        }
    }
}
