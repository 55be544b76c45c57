//! A GPU that works late and copies late: the stand-in for the driver, which lies beside the test programs.

use std::path::PathBuf;
use tch::Tensor;
use varuna_cuda::{Compiler, Libraries};
use varuna_torch::{AdamStep, Copies, Device, Kernels, Parameters, Streams};

pub(crate) fn stand_in() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.with_file_name("libvaruna_fake_nccl.so")
}

/// Streams of the stand-in. Those of [`Device::Cuda`] leave what is launched undone when a call returns; with [`Device::Apart`] libtorch computes at once.
pub(crate) fn streams(device: Device, copies: Copies) -> Streams {
    Streams::open(&Libraries::load_from(&stand_in()).unwrap(), device, 0, copies).unwrap()
}

/// Kernels that are compiled, loaded and launched there as on a GPU.
pub(crate) fn kernels(streams: Streams) -> Kernels {
    Kernels::compile(streams, &Compiler::load_from(&stand_in()).unwrap()).unwrap()
}

/// So many steps of the optimizer that a copy which does not wait for them comes before the last, late as it is by itself.
pub(crate) const MANY: u64 = 10;

/// Steps of the optimizer on these weights with this gradient. Also the moments, which must live until all is done.
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
