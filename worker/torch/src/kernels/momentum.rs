//! SGD with momentum over flat ranges, with what a step does to them besides: unscale, clip, round to 16 bits.

use super::optimizer::{Parameters, format_of, refuse_other_memory};
use super::{Kernels, Runner};
use crate::TorchError;
use tch::Tensor;
use varuna_cuda::{Kernel, MomentumArguments};

/// The numbers of one step, as `torch.optim.SGD` has them without dampening.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MomentumStep {
    /// Learning rate.
    pub rate: f64,
    /// What is kept of the sum of gradients.
    pub momentum: f64,
    /// Weight decay: times the parameter, a part of the gradient.
    pub decay: f64,
    /// What the gradient is multiplied by first: it unscales and clips.
    pub factor: f64,
}

impl Kernels {
    /// One step in place; second moments are not looked at.
    ///
    /// # Errors
    /// The tensors do not fit, or the device refuses.
    pub fn sgd(self, of: &Parameters<'_>, step: MomentumStep) -> Result<(), TorchError> {
        of.check("SGD")?;
        match self.optimizer {
            Some(runner) => own(runner, of, step),
            None => libtorchs(of, step)
                .map_err(|e| TorchError(e.to_string()))
                .flatten(),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel computes in single precision; lengths fit into 63 bits"
)]
fn own(runner: &'static Runner, of: &Parameters<'_>, step: MomentumStep) -> Result<(), TorchError> {
    refuse_other_memory(runner, of)?;
    let arguments = MomentumArguments {
        weights: of.weight.data_ptr().cast(),
        first: of.first.data_ptr().cast(),
        gradients: of.gradient.data_ptr().cast_const().cast(),
        copy: of
            .copy
            .map_or(std::ptr::null_mut(), |copy| copy.data_ptr().cast()),
        count: of.weight.numel() as i64,
        factor: step.factor as f32,
        momentum: step.momentum as f32,
        decay: step.decay as f32,
        rate: step.rate as f32,
        format: format_of(of.copy),
    };
    let blocks = arguments.blocks();
    // SAFETY: as with AdamW, over four tensors.
    unsafe { runner.run(Kernel::Momentum, blocks, (&raw const arguments).cast()) }
}

fn libtorchs(of: &Parameters<'_>, step: MomentumStep) -> Result<Result<(), TorchError>, tch::TchError> {
    let _guard = tch::no_grad_guard();
    let gradient = of.gradient.f_mul_scalar(step.factor)?;
    let gradient = gradient.f_add(&of.weight.f_mul_scalar(step.decay)?)?;
    let [mut first, mut weight]: [Tensor; 2] = [of.first, of.weight].map(Tensor::shallow_clone);
    let _ = first.f_mul_scalar_(step.momentum)?.f_add_(&gradient)?;
    let _ = weight.f_sub_(&first.f_mul_scalar(step.rate)?)?;
    Ok(of.copy.map_or(Ok(()), |copy| crate::copy(copy, of.weight)))
}
