//! `varuna-worker check-optimizer`: whether our optimizer has the same bits on a device and on the CPU. Spare copies in host memory rely on
//! this. Gradients come from a seed, because those of a model are not repeatable on a GPU.

use crate::ablation::Ablations;
use crate::backend::{Backend, Platform};
use crate::numerics::Numerics;
use anyhow::{Context, Result, bail};
use tch::{Kind, Tensor};
use varuna_api::Precision;
use varuna_torch::{AdamStep, DeviceChoice, Kernels, Parameters};

/// Any: it is the same on both sides.
const SEED: i64 = 11;
/// Gradients of one step in so many have the same size; sizes go from numbers that underflow when they are squared to large ones.
const SIZES: u64 = 40;

/// Compare our optimizer on a device with the one on the CPU, bit for bit.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Device to check: auto, cpu, cuda or cuda:N.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Number of consecutive steps.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Number of parameter elements.
    #[arg(long, default_value_t = 100_003, value_parser = clap::value_parser!(i64).range(1..))]
    elements: i64,
}

/// Elements that differ after all steps, of the parameters, both moments, and the copy in 16 bits.
type Differing = [i64; 4];

/// Prints how many bits differ.
pub(crate) fn run(arguments: &Arguments, platform: Platform) -> Result<()> {
    let device = (platform.device)(arguments.device).context("--device")?;
    let numerics = Numerics::from(Precision::Bf16);
    let (backend, why) = Backend::open(platform, (device, 1), numerics, Ablations::NONE)?;
    if let (Some(why), false) = (why, backend.kernels.has_own_optimizer()) {
        bail!("{device} has no optimizer of our own: {why}");
    }
    let found = compare(
        (backend.kernels, device.tensors()),
        arguments.steps,
        arguments.elements,
    )?;
    let [weights, first, second, copy] = found;
    println!(
        "{}",
        serde_json::json!({
            "device": device.to_string(), "steps": arguments.steps, "elements": arguments.elements,
            "differing": {"weights": weights, "first": first, "second": second, "copy": copy},
        })
    );
    Ok(())
}

/// One side of the comparison.
struct Side {
    kernels: Kernels,
    device: tch::Device,
    state: [Tensor; 4],
}

impl Side {
    fn new(kernels: Kernels, device: tch::Device, weights: &Tensor) -> Side {
        let zeros = || weights.zeros_like();
        let copy = weights.to_kind(Kind::BFloat16);
        let state = [weights.copy(), zeros(), zeros(), copy].map(|t| t.to_device(device));
        Side {
            kernels,
            device,
            state,
        }
    }

    fn step(&self, gradient: &Tensor, step: AdamStep) -> Result<()> {
        let [weight, first, second, copy] = &self.state;
        // A step may use the gradient's memory.
        let gradient = gradient.copy().to_device(self.device);
        let parameters = Parameters {
            weight,
            gradient: &gradient,
            first,
            second: Some(second),
            copy: Some(copy),
        };
        self.kernels.adamw(&parameters, step).map_err(Into::into)
    }
}

fn compare((kernels, device): (Kernels, tch::Device), steps: u64, elements: i64) -> Result<Differing> {
    let _guard = tch::no_grad_guard();
    let random = || Tensor::randn([elements], (Kind::Float, tch::Device::Cpu));
    tch::manual_seed(SEED);
    let weights = random();
    let own = Side::new(kernels, device, &weights);
    let reference = Side::new(Kernels::PROCESSOR, tch::Device::Cpu, &weights);
    for count in 1..=steps {
        #[expect(clippy::cast_precision_loss, reason = "a number below 40")]
        let size = ((count % SIZES) as f64 - 30.0).exp2();
        let gradient = random() * size;
        let step = adam_step(count);
        own.step(&gradient, step)?;
        reference.step(&gradient, step)?;
    }
    let mut found = [0; 4];
    for ((found, own), reference) in found.iter_mut().zip(&own.state).zip(&reference.state) {
        *found = differing(&own.to_device(tch::Device::Cpu), reference)?;
    }
    Ok(found)
}

/// As a run has them: a rate that changes, gradients that are clipped in some steps.
fn adam_step(count: u64) -> AdamStep {
    #[expect(clippy::cast_precision_loss, reason = "step counts stay far below 2^53")]
    let rate = 3e-3 / (count as f64).sqrt();
    AdamStep {
        count,
        rate,
        beta1: 0.9,
        beta2: 0.95,
        decay: 0.1,
        epsilon: 1e-8,
        factor: if count.is_multiple_of(3) { 0.37 } else { 1.0 },
    }
}

/// Elements whose bits differ.
fn differing(one: &Tensor, other: &Tensor) -> Result<i64> {
    let bits = match one.kind() {
        Kind::Float => Kind::Int,
        _ => Kind::Int16,
    };
    let [one, other] = [one, other].map(|t| t.view_dtype(bits));
    Ok(i64::try_from(one.ne_tensor(&other).sum(Kind::Int64))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_optimizers_match_and_others_are_found() {
        let on_host = |kernels| compare((kernels, tch::Device::Cpu), 100, 1003).unwrap();
        assert_eq!(on_host(Kernels::ALL_ON_HOST), [0; 4]);
        // The narrow copy is not compared here, because rounding may hide differences in the last bits.
        let [weights, ..] = on_host(Kernels::LIBTORCH);
        assert!(weights > 0, "{weights}");
    }

    #[test]
    fn one_bit_is_a_difference_and_so_is_the_sign_of_zero() {
        let one = Tensor::from_slice(&[0.0f32, 1.0, f32::NAN]);
        let other = Tensor::from_slice(&[-0.0f32, 1.0 + f32::EPSILON, f32::NAN]);
        assert_eq!(differing(&one, &other).unwrap(), 2);
    }
}
