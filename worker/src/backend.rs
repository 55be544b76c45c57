//! How a worker computes: on which device, in which number format, with whose kernels, in which streams, and which optimizations are
//! switched off. These are values; one engine serves all of them.

use crate::ablation::{Ablation, Ablations};
use crate::memory::SpareMemory;
use crate::numerics::Numerics;
use varuna_api::UpdateRule;
use varuna_cuda::{Libraries, LoadError};
use varuna_torch::{
    Copies, Device, DeviceChoice, DeviceError, KernelChoice, KernelError, KernelPart, Kernels, Streams,
};

/// Which kernels are switched off, if not all are.
const PARTS: [(Ablation, KernelPart); 7] = [
    (Ablation::Optimizer, KernelPart::Optimizer),
    (Ablation::Norm, KernelPart::Norm),
    (Ablation::Gelu, KernelPart::Gelu),
    (Ablation::Dropout, KernelPart::Dropout),
    (Ablation::Loss, KernelPart::Loss),
    (Ablation::Bias, KernelPart::Bias),
    (Ablation::Squares, KernelPart::Squares),
];

/// What a worker finds on its machine.
#[derive(Clone, Copy)]
pub struct Platform {
    /// Opens a device.
    pub device: fn(DeviceChoice) -> Result<Device, DeviceError>,
    /// Loads the driver of GPUs, and NCCL where it is.
    pub libraries: fn() -> Result<Libraries, LoadError>,
}

impl Platform {
    /// The machine's own devices and libraries.
    pub const MACHINE: Platform = Platform {
        device: Device::open,
        libraries: Libraries::load,
    };
}

/// What a worker's buffers are made for.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Device of the tensors.
    pub device: Device,
    /// Formats of the numbers that are computed with.
    pub numerics: Numerics,
    /// Whose code computes the parts of a step that we have kernels for.
    pub kernels: Kernels,
    /// In which order the device works, as the host sees it.
    pub streams: Streams,
    /// Where copies of state may lie.
    pub spare: SpareMemory,
    /// What is left out, for a comparison.
    pub without: Ablations,
}

impl Backend {
    /// The backend for a CPU.
    #[must_use]
    pub fn of_processor(numerics: Numerics) -> Backend {
        Backend {
            device: Device::Cpu,
            numerics,
            kernels: Kernels::PROCESSOR,
            streams: Streams::HOST,
            spare: SpareMemory::None,
            without: Ablations::NONE,
        }
    }

    /// Whether the optimizer comes to the same bits in the host's memory as on the device. libtorch's does not, nor do the products of Muon.
    #[must_use]
    pub fn has_equal_bits_on_host(&self, rule: UpdateRule) -> bool {
        self.kernels.has_own_optimizer() && !matches!(rule, UpdateRule::Muon { .. })
    }

    /// Whether spare copies are kept in the host's memory beside the device's.
    #[must_use]
    pub fn keeps_copies_on_host(&self, rule: UpdateRule) -> bool {
        !self.device.is_host() && self.has_equal_bits_on_host(rule)
    }

    /// The backend for an open device that this many workers share. Also says why a GPU has no kernels of our own, if they were asked for.
    ///
    /// # Errors
    /// A GPU's driver cannot be loaded, or refuses.
    pub fn open(
        platform: Platform,
        (device, workers_on_gpu): (Device, u32),
        numerics: Numerics,
        without: Ablations,
    ) -> Result<(Backend, Option<KernelError>), KernelError> {
        let copies = match without {
            _ if without.has(Ablation::Pinned) => Copies::Pageable,
            _ if without.has(Ablation::Streams) => Copies::InTurn,
            _ => Copies::Beside,
        };
        let choice = match without.has(Ablation::Kernels) {
            true => KernelChoice::Libtorch,
            false => KernelChoice::Auto,
        };
        let streams = match device {
            Device::Cpu => Streams::HOST,
            Device::Cuda(number) => Streams::open(&(platform.libraries)()?, device, number, copies)?,
            Device::CpuSeparateMemory => Streams::open(&(platform.libraries)()?, device, 0, copies)?,
        };
        let (kernels, why) = Kernels::open(device, streams, choice);
        let left_out = PARTS.into_iter().filter(|(ablation, _)| without.has(*ablation));
        let kernels = left_out.fold(kernels, |kernels, (_, part)| kernels.without(part));
        let backend = Backend {
            device,
            numerics,
            kernels,
            streams,
            spare: match without.has(Ablation::StateCopies) {
                true => SpareMemory::None,
                false => SpareMemory::of(device, workers_on_gpu),
            },
            without,
        };
        Ok((backend, why))
    }
}
