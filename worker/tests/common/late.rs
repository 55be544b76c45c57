//! A simulated GPU that computes and copies with a delay: the stand-in for the driver, which is in the folder of the test programs.

use std::path::PathBuf;
use tch::Tensor;
use varuna_cuda::{Compiler, Libraries};
use varuna_torch::{AdamStep, Copies, Device, Kernels, Parameters, Streams};

pub(crate) fn stand_in() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libvaruna_fake_nccl.so")
}

/// Streams of the stand-in. With [`Device::Cuda`], work that was launched is not done when the call returns; with [`Device::CpuSeparateMemory`]
/// libtorch computes at once.
pub(crate) fn streams(device: Device, copies: Copies) -> Streams {
    Streams::open(&Libraries::load_from(&stand_in()).unwrap(), device, 0, copies).unwrap()
}

/// Kernels that are compiled, loaded and launched with the stand-in, as on a GPU.
pub(crate) fn kernels(streams: Streams) -> Kernels {
    Kernels::compile(streams, &Compiler::load_from(&stand_in()).unwrap()).unwrap()
}

/// Number of steps of the optimizer. A copy that does not wait for them is made before the last of them, although it is delayed itself.
pub(crate) const MANY: u64 = 10;

/// Runs steps of the optimizer on these weights with this gradient. Returns the moments, which must live until everything is done.
pub(crate) fn optimize(kernels: Kernels, weight: &Tensor, gradient: &Tensor, steps: u64) -> [Tensor; 2] {
    let [first, second] = [0.01, 0.02].map(|value| gradient.full_like(value));
    let of = Parameters {
        weight,
        gradient,
        first: &first,
        second: Some(&second),
        copy: None,
    };
    let step = |count| AdamStep {
        count,
        rate: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        decay: 0.1,
        epsilon: 1e-8,
        factor: 0.5,
    };
    (1..=steps).for_each(|count| kernels.adamw(&of, step(count)).unwrap());
    [first, second]
}
