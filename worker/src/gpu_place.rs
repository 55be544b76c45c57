//! Which GPU a worker takes if whoever has started it does not know how many there are: the one of its place among the workers of its machine.

use crate::backend::Platform;
use anyhow::{Context as _, Result};
use std::fmt;
use std::str::FromStr;
use varuna_torch::{Device, DeviceChoice};

/// Maximum number of workers on one GPU.
pub(crate) const ON_ONE_GPU_MAX: u32 = 64;

/// A worker's place among the workers of its machine, counted from 0, and how many there are: `1/4`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GpuPlace {
    place: usize,
    workers: usize,
}

/// Why a worker has no GPU by its place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum GpuPlaceError {
    /// Not a place.
    #[error("{0:?}; allowed is I/N, the place I among N workers, which counts from 0 and is below N")]
    Unknown(String),
    /// There are fewer GPUs than workers.
    #[error(
        "{place}: GPUs for the workers of this machine: {gpus}, fewer than workers; allowed are as many workers as GPUs, or --share-gpus, with which \
         workers share them"
    )]
    TooFew {
        /// Of this worker.
        place: GpuPlace,
        /// How many there are.
        gpus: usize,
    },
}

impl FromStr for GpuPlace {
    type Err = GpuPlaceError;

    fn from_str(text: &str) -> Result<GpuPlace, GpuPlaceError> {
        let numbers = text.split_once('/').and_then(|(place, workers)| {
            let (place, workers) = (place.parse().ok()?, workers.parse().ok()?);
            Some(GpuPlace { place, workers })
        });
        let allowed = numbers.filter(|numbers| numbers.place < numbers.workers);
        allowed.ok_or_else(|| GpuPlaceError::Unknown(text.to_owned()))
    }
}

impl fmt::Display for GpuPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.place, self.workers)
    }
}

impl GpuPlace {
    /// The number of this place's GPU among so many, and how many workers have it; `shares`: they may be several.
    ///
    /// # Errors
    /// There are fewer GPUs than workers, and workers do not share.
    fn among(self, gpus: usize, shares: bool) -> Result<(usize, u32), GpuPlaceError> {
        let place = self;
        let too_few = GpuPlaceError::TooFew { place, gpus };
        let Some(number) = place.place.checked_rem(gpus) else {
            return Err(too_few);
        };
        match place.workers.div_ceil(gpus) {
            2.. if !shares => Err(too_few),
            workers => {
                let workers = u32::try_from(workers).unwrap_or(ON_ONE_GPU_MAX);
                Ok((number, workers.min(ON_ONE_GPU_MAX)))
            }
        }
    }
}

/// What a worker was told of the GPUs of its machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GpuChoice {
    /// It opens the one that is named, or the first that it sees, which so many workers share.
    Opened {
        /// This worker included.
        workers: u32,
    },
    /// It opens that of its place.
    ByPlace {
        /// Its place.
        place: GpuPlace,
        /// Whether several workers may have one GPU.
        shares: bool,
    },
    /// It opens the one that is named by its number, as do all workers that were told a place with the same command.
    NamedForAll {
        /// Its place among them.
        place: GpuPlace,
        /// Whether they may have one GPU.
        shares: bool,
    },
}

/// The device of a worker, if its job's device is `found`, and how many workers share it.
///
/// # Errors
/// The driver cannot be asked, or there are too few GPUs.
pub(crate) fn placed(found: Device, choice: GpuChoice, platform: Platform) -> Result<(Device, u32)> {
    let (place, shares) = match (choice, found) {
        (GpuChoice::ByPlace { place, shares }, Device::Cuda(_)) => (place, shares),
        (GpuChoice::NamedForAll { place, shares }, Device::Cuda(_)) => {
            let (_, workers) = place
                .among(1, shares)
                .with_context(|| format!("--gpu-place with {found}, which all workers take"))?;
            return Ok((found, workers));
        }
        (
            GpuChoice::ByPlace { .. } | GpuChoice::NamedForAll { .. },
            Device::Cpu | Device::CpuSeparateMemory,
        ) => return Ok((found, 1)),
        (GpuChoice::Opened { workers }, _) => return Ok((found, workers)),
    };
    let libraries = (platform.libraries)().context("--gpu-place")?;
    let gpus = libraries.device_count().context("--gpu-place")?;
    let (number, workers) = place.among(gpus, shares).context("--gpu-place")?;
    let device = (platform.device)(DeviceChoice::Cuda(number)).context("--gpu-place")?;
    tracing::info!(%place, gpus, %device, workers, "takes the GPU of its place");
    Ok((device, workers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_cuda::{Libraries, LoadError};
    use varuna_torch::DeviceError;

    fn place(text: &str) -> GpuPlace {
        text.parse().unwrap()
    }

    /// Numbers of the GPUs that the places of so many workers have, and the workers on them.
    fn all(workers: usize, gpus: usize, shares: bool) -> Result<Vec<(usize, u32)>, GpuPlaceError> {
        let places = (0..workers).map(|i| place(&format!("{i}/{workers}")));
        places.map(|place| place.among(gpus, shares)).collect()
    }

    #[test]
    fn each_worker_has_its_own_gpu_if_possible() {
        for shares in [false, true] {
            assert_eq!(all(4, 4, shares), Ok(vec![(0, 1), (1, 1), (2, 1), (3, 1)]));
            assert_eq!(all(2, 8, shares), Ok(vec![(0, 1), (1, 1)]));
        }
    }

    #[test]
    fn workers_share_gpus_only_on_request() {
        assert_eq!(all(3, 2, true), Ok(vec![(0, 2), (1, 2), (0, 2)]));
        let why = all(3, 2, false).unwrap_err().to_string();
        for part in ["0/3", "machine: 2,", "--share-gpus"] {
            assert!(why.contains(part), "{why}");
        }
        for shares in [false, true] {
            assert!(all(1, 0, shares).is_err());
        }
        assert_eq!(place("999/1000").among(1, true), Ok((0, 64)));
    }

    #[test]
    fn what_is_no_place_is_refused_with_what_is_allowed() {
        for text in ["", "1", "/", "2/2", "-1/2", "1/x", "1/2/3"] {
            let why = text.parse::<GpuPlace>().unwrap_err().to_string();
            assert!(why.starts_with(&format!("{text:?}; allowed is I/N")), "{why}");
        }
        assert_eq!(place("1/2").to_string(), "1/2");
    }

    /// The stand-in, beside this test's own program: it shows one GPU.
    fn libraries() -> Result<Libraries, LoadError> {
        let library = std::env::current_exe().unwrap();
        Libraries::load_from(&library.with_file_name("libvaruna_fake_nccl.so"))
    }

    /// GPUs that nobody computes on.
    fn device(choice: DeviceChoice) -> Result<Device, DeviceError> {
        match choice {
            DeviceChoice::Cuda(number) => Ok(Device::Cuda(number)),
            DeviceChoice::AnyCuda => Ok(Device::Cuda(0)),
            DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Device::Cpu),
        }
    }

    #[test]
    fn driver_is_asked_only_by_placed_workers_with_a_gpu() {
        let platform = Platform { device, libraries };
        let by_place = |text: &str, shares| GpuChoice::ByPlace {
            place: place(text),
            shares,
        };
        let placed = |found, choice| placed(found, choice, platform);
        let own = placed(Device::Cuda(0), by_place("0/1", false)).unwrap();
        assert_eq!(own, (Device::Cuda(0), 1));
        let shared = placed(Device::Cuda(0), by_place("1/2", true)).unwrap();
        assert_eq!(shared, (Device::Cuda(0), 2));
        let why = format!(
            "{:#}",
            placed(Device::Cuda(0), by_place("1/2", false)).unwrap_err()
        );
        assert!(
            why.contains("--gpu-place: 1/2: GPUs for the workers of this machine: 1,"),
            "{why}"
        );
        let processor = placed(Device::Cpu, by_place("1/2", false)).unwrap();
        assert_eq!(processor, (Device::Cpu, 1));
        let named = placed(Device::Cuda(5), GpuChoice::Opened { workers: 3 }).unwrap();
        assert_eq!(named, (Device::Cuda(5), 3));
    }

    #[test]
    fn a_gpu_named_by_number_is_that_of_all_placed_workers() {
        // However many GPUs there are, the driver need not be asked.
        let platform = Platform { device, libraries };
        let on = |found, text: &str, shares| {
            let place = place(text);
            placed(found, GpuChoice::NamedForAll { place, shares }, platform)
        };
        let named = Device::Cuda(3);
        assert_eq!(on(named, "0/1", false).unwrap(), (named, 1));
        for text in ["0/2", "1/2"] {
            assert_eq!(on(named, text, true).unwrap(), (named, 2));
            let why = format!("{:#}", on(named, text, false).unwrap_err());
            for part in ["cuda:3", text, "machine: 1,", "--share-gpus"] {
                assert!(why.contains(part), "{why}");
            }
        }
        assert_eq!(on(named, "99/100", true).unwrap(), (named, ON_ONE_GPU_MAX));
        assert_eq!(on(Device::Cpu, "1/2", false).unwrap(), (Device::Cpu, 1));
    }
}
