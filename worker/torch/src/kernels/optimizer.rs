//! AdamW over flat ranges, with what a step does to them besides: unscale, clip, round to 16 bits.

use super::{Kernels, Runner};
use crate::{Handle, TorchError, checked, handle};
use std::ffi::c_int;
use tch::{Kind, Tensor};
use varuna_cuda::{Kernel, Narrow, OptimizerArguments};

unsafe extern "C" {
    fn vt_adamw(
        weight: Handle,
        gradient: Handle,
        first: Handle,
        second: Handle,
        step: Handle,
        rate: f64,
        beta1: f64,
        beta2: f64,
        decay: f64,
        epsilon: f64,
    ) -> c_int;
}

/// The numbers of one AdamW step (Loshchilov & Hutter 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Steps applied, this one included (from 1).
    pub count: u64,
    /// Learning rate.
    pub rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Decoupled weight decay.
    pub decay: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// What the gradient is multiplied by first: it unscales and clips.
    pub factor: f64,
}

/// What a step moves: flat tensors of equal length on one device, each in one piece, in single precision but for the copy.
pub struct Parameters<'a> {
    /// The parameters.
    pub weight: &'a Tensor,
    /// Their gradient. What it holds after a step is not defined.
    pub gradient: &'a Tensor,
    /// First moments, or the momentum.
    pub first: &'a Tensor,
    /// Second moments, where the optimizer has some.
    pub second: Option<&'a Tensor>,
    /// Where the rounded parameters go, bfloat16 or half.
    pub copy: Option<&'a Tensor>,
}

impl Parameters<'_> {
    /// Whether they fit together, for the optimizer of this name.
    pub(super) fn check(&self, optimizer: &str) -> Result<(), TorchError> {
        let Parameters {
            weight,
            gradient,
            first,
            second,
            copy,
        } = self;
        let (size, device) = (weight.size(), weight.device());
        let same = |t: &Tensor| t.size() == size && t.device() == device && t.is_contiguous();
        let singles = || [*weight, *gradient, *first].into_iter().chain(*second);
        let narrow = |t: &&Tensor| same(t) && matches!(t.kind(), Kind::BFloat16 | Kind::Half);
        let fits = singles().all(|t| same(t) && t.kind() == Kind::Float) && copy.iter().all(narrow);
        if fits {
            return Ok(());
        }
        let of = |t: &Tensor| (t.size(), t.kind(), t.device());
        let all: Vec<_> = singles().chain(*copy).map(of).collect();
        Err(TorchError(format!("{optimizer} over {all:?}")))
    }
}

/// `base` to the power `count`, by products alone: the same bits on every machine, which a library's function need not have.
fn power(base: f64, mut count: u64) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while count > 0 {
        if count % 2 == 1 {
            result *= square;
        }
        square *= square;
        count /= 2;
    }
    result
}

impl Kernels {
    /// One step in place.
    ///
    /// # Errors
    /// The tensors do not fit, or the device refuses.
    pub fn adamw(self, of: &Parameters<'_>, step: AdamStep) -> Result<(), TorchError> {
        of.check("AdamW")?;
        let second = of
            .second
            .ok_or_else(|| TorchError("AdamW without second moments".into()))?;
        match self.optimizer {
            Some(runner) => own(runner, of, second, step),
            None => libtorchs(of, second, step),
        }
    }
}

/// The host computes in its own memory alone.
pub(super) fn refuse_other_memory(runner: &Runner, of: &Parameters<'_>) -> Result<(), TorchError> {
    let device = of.weight.device();
    if matches!(runner, Runner::Host) && device != tch::Device::Cpu {
        return Err(TorchError(format!(
            "the host's optimizer for memory of {device:?}"
        )));
    }
    Ok(())
}

/// The number of the copy's format, 0 without one.
pub(super) fn format_of(copy: Option<&Tensor>) -> i32 {
    copy.map_or(0, |copy| match copy.kind() {
        Kind::BFloat16 => Narrow::BFloat16 as i32,
        _ => Narrow::Float16 as i32,
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the kernel computes in single precision; lengths fit into 63 bits"
)]
fn own(
    runner: &'static Runner,
    of: &Parameters<'_>,
    second: &Tensor,
    step: AdamStep,
) -> Result<(), TorchError> {
    let AdamStep {
        count,
        rate,
        beta1,
        beta2,
        decay,
        epsilon,
        factor,
    } = step;
    refuse_other_memory(runner, of)?;
    let arguments = OptimizerArguments {
        weights: of.weight.data_ptr().cast(),
        first: of.first.data_ptr().cast(),
        second: second.data_ptr().cast(),
        gradients: of.gradient.data_ptr().cast_const().cast(),
        copy: of
            .copy
            .map_or(std::ptr::null_mut(), |copy| copy.data_ptr().cast()),
        count: of.weight.numel() as i64,
        factor: factor as f32,
        beta2: beta2 as f32,
        rest1: (1.0 - beta1) as f32,
        rest2: (1.0 - beta2) as f32,
        keep: (1.0 - rate * decay) as f32,
        rate: (rate / (1.0 - power(beta1, count))) as f32,
        correction2: (1.0 - power(beta2, count)).sqrt() as f32,
        epsilon: epsilon as f32,
        format: format_of(of.copy),
    };
    let blocks = arguments.blocks();
    // SAFETY: `check` found five tensors of one length and of these kinds, each in one piece, on the device that the runner computes on; they
    // are borrowed. On a GPU libtorch frees memory in the order of the stream that the kernel is in.
    unsafe { runner.run(Kernel::Optimizer, blocks, (&raw const arguments).cast()) }
}

fn libtorchs(of: &Parameters<'_>, second: &Tensor, step: AdamStep) -> Result<(), TorchError> {
    let _guard = tch::no_grad_guard();
    let torch = |e: tch::TchError| TorchError(e.to_string());
    if step.factor != 1.0 {
        let mut gradient = of.gradient.shallow_clone();
        let _ = gradient.f_mul_scalar_(step.factor).map_err(torch)?;
    }
    #[expect(clippy::cast_precision_loss, reason = "step counts stay far below 2^53")]
    let count = Tensor::full([0i64; 0], step.count as f64, (Kind::Float, of.weight.device()));
    // SAFETY: five live handles, borrowed for the call; `check` compared their sizes.
    checked(unsafe {
        vt_adamw(
            handle(of.weight),
            handle(of.gradient),
            handle(of.first),
            handle(second),
            handle(&count),
            step.rate,
            step.beta1,
            step.beta2,
            step.decay,
            step.epsilon,
        )
    })?;
    match of.copy {
        Some(copy) => crate::copy(copy, of.weight),
        None => Ok(()),
    }
}
