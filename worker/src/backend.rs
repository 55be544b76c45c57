//! How a worker computes: on what, in which numbers, with whose code. Three values, and one engine for all of them.

use crate::numerics::Numerics;
use varuna_torch::{Device, KernelChoice, KernelError, Kernels};

/// What a worker's buffers are made for.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// What tensors lie on.
    pub device: Device,
    /// In which numbers is computed.
    pub numerics: Numerics,
    /// Whose code computes the optimizer, norms and GELU.
    pub kernels: Kernels,
}

impl Backend {
    /// For the processor.
    #[must_use]
    pub fn of_processor(numerics: Numerics) -> Backend {
        Backend {
            device: Device::Cpu,
            numerics,
            kernels: Kernels::PROCESSOR,
        }
    }

    /// For an open device; also why it has no kernels of our own, where that was asked for.
    #[must_use]
    pub fn open(device: Device, numerics: Numerics, choice: KernelChoice) -> (Backend, Option<KernelError>) {
        let (kernels, why) = Kernels::open(device, choice);
        let backend = Backend {
            device,
            numerics,
            kernels,
        };
        (backend, why)
    }
}
