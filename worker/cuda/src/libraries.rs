//! The libraries of a device: the driver's, and NCCL's.

use crate::driver::{CudaError, Driver};
use crate::library::{LoadError, Loaded};
use crate::nccl::Nccl;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

/// Names of the driver's library: what a driver installs, and what development packages do.
const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// Names of NCCL's library: what its packages have, and what development packages add. Where libtorch has loaded it already, the first
/// name gives the same one.
const NCCL: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The driver, and NCCL where it is: a GPU computes without it.
#[derive(Clone)]
pub struct Libraries {
    pub(crate) driver: Arc<Driver>,
    nccl: Result<Arc<Nccl>, LoadError>,
}

impl Libraries {
    /// Loads both by their usual names.
    ///
    /// # Errors
    /// The driver is absent or too old.
    pub fn load() -> Result<Libraries, LoadError> {
        Libraries::of(&DRIVER, &NCCL)
    }

    /// Loads both from one file: a fake of them, for tests.
    ///
    /// # Errors
    /// The driver's library cannot be loaded or lacks a function.
    pub fn load_from(path: &Path) -> Result<Libraries, LoadError> {
        Libraries::load_from_two(path, path)
    }

    /// Loads the driver from one file and NCCL from another, for tests.
    ///
    /// # Errors
    /// The driver's file cannot be loaded or lacks a function.
    pub fn load_from_two(driver: &Path, nccl: &Path) -> Result<Libraries, LoadError> {
        Libraries::of(&[driver], &[nccl])
    }

    /// How many GPUs the driver shows this process.
    ///
    /// # Errors
    /// The driver refuses: there may be none.
    pub fn device_count(&self) -> Result<usize, CudaError> {
        self.driver.devices()
    }

    /// Whether NCCL can be used: it is a worker's own choice to go without.
    ///
    /// # Errors
    /// NCCL is absent or too old.
    pub fn require_nccl(&self) -> Result<(), LoadError> {
        self.nccl.as_ref().map(|_| ()).map_err(LoadError::clone)
    }

    /// NCCL's functions.
    ///
    /// # Errors
    /// NCCL is absent or too old.
    pub(crate) fn nccl(&self) -> Result<Arc<Nccl>, LoadError> {
        self.nccl.clone()
    }

    fn of<D: AsRef<OsStr>, N: AsRef<OsStr>>(driver: &[D], nccl: &[N]) -> Result<Libraries, LoadError> {
        let driver = Driver::of(&Loaded::open("the CUDA driver", "CUDA 12 or later", driver)?)?;
        let nccl = Loaded::open("NCCL", "NCCL 2.28.9 or later", nccl).and_then(|found| Nccl::of(&found));
        Ok(Libraries {
            driver: Arc::new(driver),
            nccl: nccl.map(Arc::new),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_library_is_an_error_that_names_what_was_tried() {
        let names = ["libvaruna-absent.so.2", "libvaruna-absent.so"];
        let why = match Libraries::of(&names, &NCCL) {
            Err(why) => why.to_string(),
            Ok(_) => panic!("there is no such library"),
        };
        let expected = "the CUDA driver is not here; tried libvaruna-absent.so.2, libvaruna-absent.so \
                        (libvaruna-absent.so.2: cannot open shared object file";
        assert!(why.starts_with(expected), "{why}");
    }

    #[test]
    fn library_without_a_function_is_refused_by_name() {
        // The C library exists on every machine, and has none of these functions.
        let why = match Libraries::of(&["libc.so.6"], &NCCL) {
            Err(why) => why.to_string(),
            Ok(_) => panic!("the C library is no driver"),
        };
        let expected =
            "the CUDA driver (libc.so.6) has no function cuInit; CUDA 12 or later is needed".to_owned();
        assert_eq!(why, expected);
    }
}
