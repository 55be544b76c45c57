//! On which device tensors lie and are computed with.
//!
//! One program serves processors and GPUs: libtorch's CUDA part is loaded when the first device is opened, where there is one.

use crate::{checked, vt_load_cuda};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// Which device to open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceChoice {
    /// The first GPU, or the processor where there is none.
    Auto,
    /// The processor.
    Cpu,
    /// A GPU, whichever: the first, unless whoever opens it knows a better one.
    AnyCuda,
    /// The GPU of this number.
    Cuda(usize),
}

/// Why a device was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// A name that is not one of a device.
    #[error("device {0:?}; allowed are auto, cpu, cuda and cuda:N with the number N of a GPU")]
    Unknown(String),
    /// libtorch's CUDA part cannot be loaded.
    #[error("device cuda:{number}: there is no CUDA here ({why}); allowed are auto and cpu")]
    NoCuda {
        /// The GPU that was asked for.
        number: usize,
        /// Message of the loader.
        why: String,
    },
    /// There are fewer GPUs.
    #[error(
        "device cuda:{number}: the driver shows {count} GPUs, which count from 0; auto and cpu need none"
    )]
    NoGpu {
        /// The GPU that was asked for.
        number: usize,
        /// GPUs that there are.
        count: usize,
    },
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<DeviceChoice, DeviceError> {
        let unknown = || DeviceError::Unknown(name.to_owned());
        match name {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::AnyCuda),
            _ => {
                let number = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                // No sign and no leading zero: one name for each device.
                let number: usize = number.parse().map_err(|_| unknown())?;
                if format!("cuda:{number}") != name {
                    return Err(unknown());
                }
                Ok(DeviceChoice::Cuda(number))
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::AnyCuda => f.write_str("cuda"),
            DeviceChoice::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

/// An open device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// The processor; its tensors lie in the host's memory.
    Cpu,
    /// A GPU.
    Cuda(usize),
    /// The processor, with memory that the host sees only as copies, as a GPU's: what is forgotten to be copied gives wrong
    /// numbers, without a GPU. No name opens it; it is for tests.
    CpuSeparateMemory,
}

/// Loads libtorch's CUDA part once. It must come before anything that asks libtorch about CUDA, which remembers that there is none.
fn load_cuda() -> Result<(), String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    // SAFETY: loads a library by its fixed name; its initialisers are libtorch's own.
    let load = || checked(unsafe { vt_load_cuda() }).map_err(|e| e.0);
    LOADED.get_or_init(load).clone()
}

/// The device of a choice among so many GPUs, or why there is no CUDA.
fn choose(choice: DeviceChoice, gpus: Result<usize, String>) -> Result<Device, DeviceError> {
    match (choice, gpus) {
        (DeviceChoice::Cpu, _) | (DeviceChoice::Auto, Err(_) | Ok(0)) => Ok(Device::Cpu),
        (DeviceChoice::Auto, Ok(_)) => Ok(Device::Cuda(0)),
        (DeviceChoice::AnyCuda, gpus) => choose(DeviceChoice::Cuda(0), gpus),
        (DeviceChoice::Cuda(number), Ok(count)) if number < count => Ok(Device::Cuda(number)),
        (DeviceChoice::Cuda(number), Ok(count)) => Err(DeviceError::NoGpu { number, count }),
        (DeviceChoice::Cuda(number), Err(why)) => Err(DeviceError::NoCuda { number, why }),
    }
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// The device is not there.
    pub fn open(choice: DeviceChoice) -> Result<Device, DeviceError> {
        if choice == DeviceChoice::Cpu {
            return Ok(Device::Cpu);
        }
        let count = || usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
        choose(choice, load_cuda().map(|()| count()))
    }

    /// Where libtorch puts its tensors.
    #[must_use]
    pub fn tensors(self) -> tch::Device {
        match self {
            Device::Cpu | Device::CpuSeparateMemory => tch::Device::Cpu,
            Device::Cuda(number) => tch::Device::Cuda(number),
        }
    }

    /// Whether the host's memory is the device's own.
    #[must_use]
    pub fn is_host(self) -> bool {
        self == Device::Cpu
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
            Device::CpuSeparateMemory => f.write_str("cpu (separate memory)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names_and_other_names_are_refused_with_the_list() {
        for (name, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::AnyCuda),
            ("cuda:0", DeviceChoice::Cuda(0)),
            ("cuda:12", DeviceChoice::Cuda(12)),
        ] {
            assert_eq!(name.parse(), Ok(choice));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for name in [
            "", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "cuda:1 ",
        ] {
            let why = name.parse::<DeviceChoice>().unwrap_err().to_string();
            let expected = format!("device {name:?}; allowed are auto, cpu, cuda and cuda:N");
            assert!(why.starts_with(&expected), "{why}");
        }
        assert_eq!(Device::Cuda(3).to_string(), "cuda:3");
    }

    #[test]
    fn missing_gpu_fails_only_an_explicit_choice() {
        let missing = || Err("no such file".to_owned());
        assert_eq!(choose(DeviceChoice::Auto, missing()), Ok(Device::Cpu));
        assert_eq!(choose(DeviceChoice::Auto, Ok(0)), Ok(Device::Cpu));
        assert_eq!(choose(DeviceChoice::Auto, Ok(2)), Ok(Device::Cuda(0)));
        assert_eq!(choose(DeviceChoice::Cpu, Ok(2)), Ok(Device::Cpu));
        assert_eq!(choose(DeviceChoice::Cuda(1), Ok(2)), Ok(Device::Cuda(1)));
        assert_eq!(choose(DeviceChoice::AnyCuda, Ok(2)), Ok(Device::Cuda(0)));
        assert!(choose(DeviceChoice::AnyCuda, Ok(0)).is_err());
        let why = choose(DeviceChoice::Cuda(2), Ok(2)).unwrap_err().to_string();
        assert!(why.contains("cuda:2: the driver shows 2 GPUs"), "{why}");
        let why = choose(DeviceChoice::Cuda(0), missing()).unwrap_err().to_string();
        assert_eq!(
            why,
            "device cuda:0: there is no CUDA here (no such file); allowed are auto and cpu"
        );
    }

    #[test]
    fn loader_error_is_reported_and_the_cpu_works() {
        assert_eq!(Device::open(DeviceChoice::Cpu), Ok(Device::Cpu));
        match Device::open(DeviceChoice::Cuda(9999)) {
            Err(DeviceError::NoCuda { number: 9999, why }) => {
                assert!(why.contains("libtorch_cuda.so"), "{why}");
                assert_eq!(Device::open(DeviceChoice::Auto), Ok(Device::Cpu));
            }
            Err(DeviceError::NoGpu { number: 9999, .. }) => {}
            other => panic!("{other:?}"),
        }
        let on = (tch::Kind::Float, Device::Cpu.tensors());
        assert_eq!(
            tch::Tensor::ones([2], on).sum(tch::Kind::Float).double_value(&[]),
            2.0
        );
    }
}
