//! What this worker computes on, and how much of its memory training may use.
//!
//! The raw figures come from the driver and the host; pure functions decide what they mean for training. Plans are made with the result. If
//! it is too large, a worker ends in the middle of a step; if it is too small, that only costs speed.

use varuna_plan::device::Hardware;
use varuna_protocol::MemoryShortage;
use varuna_torch::{Device, Gpu, GpuError, OutOfMemory, TorchError};

/// Kept free on a GPU for memory that is allocated after the context: workspaces of cuBLAS and cuDNN (tens of MiB for each stream), NCCL's
/// buffers (some hundreds of MiB with several communicators), and kernels that are loaded when they are first used.
const GPU_RESERVE: u64 = 1 << 30;
/// One part in this many of what is left is lost to fragmentation.
const GPU_FRAGMENTS: u64 = 20;
/// Kept free in host memory: the program and libtorch, buffers of connections, tokens.
const HOST_RESERVE: u64 = 256 << 20;
/// Beside a GPU spare copies may use one part in this many of the host's memory: a checkpoint copies about as much state, that of the worker.
const SPARE_COPIES_PART: u64 = 2;
/// Not used for copies of state for checkpoints, because a process needs other memory for short times.
const COPIES_RESERVE: u64 = 128 << 20;
/// Copies may always have as much: it is within what is kept free for the program.
const COPIES_LEAST: u64 = 64 << 20;

/// Figures are multiples of this, so that workers of one kind report the same figure and count as equal in plans.
const UNIT: u64 = 64 << 20;

/// What a worker reports about its device and memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Equipment {
    /// The hardware with which it computes.
    pub hardware: Hardware,
    /// Bytes that training may use; none where they are not known.
    pub memory_bytes: Option<u64>,
    /// Bytes of the host's memory that spare copies may use beside a GPU's; none where they are not known, and without a GPU.
    pub copies_bytes: Option<u64>,
}

/// Whether copies of state may be on the device, besides the memory of training. The optimizer need not wait for readers of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpareMemory {
    /// Nowhere: the device's memory is the host's, or other workers have a share of it.
    None,
    /// The memory of this GPU that the driver reports as free, except the reserve. That is for training, which may need more than now.
    /// Copies last for less than seconds.
    Gpu(usize),
    /// Wherever it is asked for: tests.
    Plenty,
}

impl SpareMemory {
    /// The limit on a device that this many workers share.
    #[must_use]
    pub fn of(device: Device, workers_on_gpu: u32) -> SpareMemory {
        match device {
            Device::Cuda(number) if workers_on_gpu <= 1 => SpareMemory::Gpu(number),
            Device::Cpu | Device::Cuda(_) => SpareMemory::None,
            Device::CpuSeparateMemory => SpareMemory::Plenty,
        }
    }

    /// Whether there is place for this now. A driver that does not say has none.
    #[must_use]
    pub fn has(self, bytes: u64) -> bool {
        match self {
            SpareMemory::None => false,
            SpareMemory::Gpu(number) => varuna_torch::gpu(number).is_ok_and(|gpu| has_room_for(&gpu, bytes)),
            SpareMemory::Plenty => true,
        }
    }
}

/// Whether a GPU has room for this many bytes, besides the reserve and the share of its memory that may be lost to fragmentation.
fn has_room_for(gpu: &Gpu, bytes: u64) -> bool {
    let kept = GPU_RESERVE + gpu.total_bytes / GPU_FRAGMENTS;
    gpu.free_bytes.saturating_sub(kept) >= bytes
}

/// Returns GPU memory that libtorch keeps for later tensors to the driver, if little else is left. After a change of plan tensors have
/// other sizes, and libtorch takes more memory before it gives up the old blocks. NCCL's buffers and the other workers of that GPU can use
/// only what the driver has.
///
/// # Errors
/// The driver reports an error.
pub fn make_room(device: Device) -> Result<(), TorchError> {
    match device {
        Device::Cuda(number) if varuna_torch::gpu(number).is_ok_and(|gpu| is_short(&gpu)) => {
            varuna_torch::release_cached()
        }
        Device::Cpu | Device::Cuda(_) | Device::CpuSeparateMemory => Ok(()),
    }
}

/// Returns memory that was just freed and that is of no size that is needed again: else the heap would keep all of it, and libtorch that of a GPU
/// that has little left.
///
/// # Errors
/// The driver reports an error.
pub fn return_freed(device: Device) -> Result<(), TorchError> {
    match device {
        Device::Cpu | Device::CpuSeparateMemory => {
            varuna_torch::return_freed_memory();
            Ok(())
        }
        Device::Cuda(_) => make_room(device),
    }
}

/// Whether less is free than what is kept free for all that is no tensor.
fn is_short(gpu: &Gpu) -> bool {
    gpu.free_bytes < GPU_RESERVE
}

/// What is known of a lack of memory, if an error of libtorch tells of one.
#[must_use]
pub fn shortage(device: Device, error: &str) -> Option<MemoryShortage> {
    let OutOfMemory { asked_bytes } = varuna_torch::out_of_memory(error)?;
    let free_bytes = match device {
        Device::Cuda(number) => varuna_torch::gpu(number).ok().map(|gpu| gpu.free_bytes),
        Device::Cpu | Device::CpuSeparateMemory => varuna_host_memory::available(),
    };
    Some(MemoryShortage {
        needed_bytes: asked_bytes,
        free_bytes,
    })
}

/// What others leave to this worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Host memory ([`host_limit`]).
    pub host_bytes: Option<u64>,
    /// Host memory that is kept of data on stores, which comes off the above.
    pub data_bytes: u64,
    /// Workers on its GPU, itself included; 0 and 1 both mean that it is alone.
    pub workers_on_gpu: u32,
}

/// How much of the host's memory this process may use, in bytes: its share if it was given one, else what is available now. Call this when
/// the process begins. None if the system does not say.
#[must_use]
pub fn host_limit(share: Option<u64>) -> Option<u64> {
    share.or_else(varuna_host_memory::available)
}

/// The equipment of an open device.
///
/// # Errors
/// The driver does not describe the GPU.
pub fn equipment(device: Device, share: Share) -> Result<Equipment, GpuError> {
    Ok(match device {
        Device::Cuda(number) => Equipment {
            copies_bytes: beside_gpu(share),
            ..of_gpu(varuna_torch::gpu(number)?, share.workers_on_gpu)
        },
        Device::Cpu | Device::CpuSeparateMemory => Equipment {
            hardware: Hardware::Processor,
            memory_bytes: share
                .host_bytes
                .map(|bytes| host_bytes(bytes.saturating_sub(share.data_bytes))),
            copies_bytes: None,
        },
    })
}

/// What a process has of the host's memory, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct HostUse {
    /// Bytes in memory, without what the system can read from files again.
    resident: u64,
    /// Taken from the heap and not freed.
    taken: u64,
    /// What the machine has left for all.
    available: u64,
}

/// Bytes that all copies of state together may have in the host's memory, if they have `now`, had at most `most`, and the process may use
/// this much ([`host_limit`]). Training keeps its peak memory: that is the memory of the process without the copies. None if the system
/// does not say.
#[must_use]
pub fn room_for_copies(limit: u64, now: u64, most: u64) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let uses = HostUse {
        resident: anonymous_bytes(&status)?,
        taken: varuna_torch::taken_bytes(),
        available: varuna_host_memory::available()?,
    };
    Some(room_within(limit, uses, now, most))
}

fn room_within(limit: u64, uses: HostUse, now: u64, most: u64) -> u64 {
    // The heap gives nothing back: what copies had before is there for them still, unless training has grown into it.
    let training = uses
        .resident
        .saturating_sub(most)
        .max(uses.taken.saturating_sub(now));
    let own = limit.saturating_sub(training);
    let of_machine = most.saturating_add(uses.available);
    own.min(of_machine)
        .saturating_sub(COPIES_RESERVE)
        .max(COPIES_LEAST)
}

/// The line of `/proc/self/status` that tells what no file is behind.
fn anonymous_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The most memory that this process has taken of its device, bytes: on a GPU what its tensors took, on the processor all of the process.
/// None where the system does not say.
#[must_use]
pub fn most_taken(device: Device) -> Option<u64> {
    match device {
        Device::Cuda(number) => varuna_torch::most_taken_by_tensors(number),
        Device::Cpu | Device::CpuSeparateMemory => varuna_host_memory::most_used(),
    }
}

/// A worker may use its share of the whole GPU, and no more than is free now: others that started sooner hold some of theirs already.
fn of_gpu(gpu: Gpu, workers: u32) -> Equipment {
    let share = gpu.total_bytes / u64::from(workers.max(1));
    let left = gpu.free_bytes.min(share).saturating_sub(GPU_RESERVE);
    Equipment {
        memory_bytes: Some(rounded(left - left / GPU_FRAGMENTS)),
        hardware: Hardware::Gpu {
            name: gpu.name,
            memory_bytes: gpu.total_bytes,
        },
        copies_bytes: None,
    }
}

/// What spare copies may use of the host's memory beside a GPU.
fn beside_gpu(share: Share) -> Option<u64> {
    let left = share.host_bytes?.saturating_sub(share.data_bytes);
    let left = left.saturating_sub(HOST_RESERVE);
    Some(rounded(left / SPARE_COPIES_PART))
}

fn host_bytes(share: u64) -> u64 {
    rounded(share.saturating_sub(HOST_RESERVE))
}

/// Down to a multiple of the unit.
fn rounded(bytes: u64) -> u64 {
    bytes / UNIT * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu(free: u64, total: u64) -> Gpu {
        Gpu {
            name: "NVIDIA H100 80GB HBM3".into(),
            free_bytes: free,
            total_bytes: total,
        }
    }

    #[test]
    fn single_worker_may_use_free_memory_less_the_reserve() {
        let Equipment {
            hardware,
            memory_bytes,
            ..
        } = of_gpu(gpu(79 * GIB, 80 * GIB), 1);
        assert_eq!(hardware.planned_as().name, "h100-80g");
        let bytes = memory_bytes.unwrap();
        assert!(bytes > 73 * GIB && bytes <= 78 * GIB * 19 / 20, "{bytes}");
        assert_eq!(bytes % UNIT, 0);
        // A difference of a few MiB, as between two equal GPUs.
        assert_eq!(
            of_gpu(gpu(79 * GIB - (3 << 20), 80 * GIB), 0).memory_bytes,
            Some(bytes)
        );
    }

    #[test]
    fn copies_leave_the_reserve_and_need_an_unshared_gpu() {
        assert!(has_room_for(&gpu(15 * GIB, 80 * GIB), 10 * GIB));
        assert!(!has_room_for(&gpu(15 * GIB, 80 * GIB), 10 * GIB + 1));
        assert!(!has_room_for(&gpu(4 * GIB, 80 * GIB), 1));
        assert_eq!(SpareMemory::of(Device::Cuda(3), 1), SpareMemory::Gpu(3));
        for shared in [
            SpareMemory::of(Device::Cuda(3), 2),
            SpareMemory::of(Device::Cpu, 1),
        ] {
            assert!(!shared.has(0));
        }
        assert!(SpareMemory::of(Device::CpuSeparateMemory, 1).has(u64::MAX));
    }

    #[test]
    fn cached_memory_is_released_below_the_reserve() {
        assert!(is_short(&gpu(GPU_RESERVE - 1, 80 * GIB)));
        assert!(!is_short(&gpu(GPU_RESERVE, 80 * GIB)));
        for without_cache in [Device::Cpu, Device::CpuSeparateMemory] {
            assert_eq!(make_room(without_cache), Ok(()));
        }
    }

    #[test]
    fn workers_of_one_gpu_have_equal_shares_whoever_starts_first() {
        let first = of_gpu(gpu(79 * GIB, 80 * GIB), 4).memory_bytes.unwrap();
        let last = of_gpu(gpu(25 * GIB, 80 * GIB), 4).memory_bytes.unwrap();
        assert_eq!(first, last);
        assert!(4 * first < 80 * GIB);
        let late = of_gpu(gpu(10 * GIB, 80 * GIB), 4).memory_bytes.unwrap();
        assert!(late < 10 * GIB, "no more than is free");
        assert_eq!(of_gpu(gpu(0, 80 * GIB), 1).memory_bytes, Some(0));
    }

    #[test]
    fn copies_use_what_training_leaves() {
        let uses = HostUse {
            resident: 10 * GIB,
            taken: 6 * GIB,
            available: 100 * GIB,
        };
        let room = |limit, uses, now, most| room_within(limit, uses, now, most) + COPIES_RESERVE;
        assert_eq!(room(16 * GIB, uses, 0, 0), 6 * GIB);
        // A part of the resident memory belonged to copies, which have freed it.
        assert_eq!(room(16 * GIB, uses, 0, 3 * GIB), 9 * GIB);
        // Training has grown into this memory since.
        let grown = HostUse {
            taken: 9 * GIB,
            ..uses
        };
        assert_eq!(room(16 * GIB, grown, 0, 3 * GIB), 7 * GIB);
        // Other processes use the machine's memory.
        let crowded = HostUse {
            available: GIB,
            ..uses
        };
        assert_eq!(room(16 * GIB, crowded, 0, 3 * GIB), 4 * GIB);
        assert_eq!(
            room_within(9 * GIB, uses, 0, 0),
            COPIES_LEAST,
            "a small model's are always made"
        );
    }

    #[test]
    fn what_files_are_behind_is_not_counted() {
        let status = "VmRSS:\t 900000 kB\nRssAnon:\t    1234 kB\nRssFile:\t  5 kB\n";
        assert_eq!(anonymous_bytes(status), Some(1234 << 10));
        assert_eq!(anonymous_bytes("RssAnon:\t many kB\n"), None);
        assert_eq!(anonymous_bytes("VmRSS:\t 1 kB\n"), None);
    }

    #[test]
    fn cpu_worker_uses_its_given_share() {
        let share = |host_bytes| Share {
            host_bytes,
            data_bytes: 0,
            workers_on_gpu: 1,
        };
        let given = equipment(Device::Cpu, share(Some(4 * GIB))).unwrap();
        assert_eq!(given.hardware, Hardware::Processor);
        assert_eq!(given.memory_bytes, Some(4 * GIB - HOST_RESERVE));
        let with_data = Share {
            data_bytes: GIB,
            ..share(Some(4 * GIB))
        };
        let left = equipment(Device::Cpu, with_data).unwrap().memory_bytes;
        assert_eq!(left, Some(3 * GIB - HOST_RESERVE));
        assert_eq!(given.copies_bytes, None, "copies take memory of training");
        assert_eq!(
            beside_gpu(with_data),
            Some((3 * GIB - HOST_RESERVE) / 2 / UNIT * UNIT)
        );
        assert_eq!(beside_gpu(share(None)), None);
        assert_eq!(beside_gpu(share(Some(1))), Some(0));
        let alone = equipment(Device::Cpu, share(host_limit(None))).unwrap();
        assert!(alone.memory_bytes < varuna_host_memory::available().map(|all| all + UNIT));
        assert_eq!(host_limit(Some(GIB)), Some(GIB));
        assert_eq!(host_bytes(0), 0);
        assert!(most_taken(Device::Cpu).unwrap() > 1 << 20);
    }
}
