//! The libraries: found by name when they are first needed, never linked.

use crate::driver::Driver;
use crate::nccl::Nccl;
use libloading::Library;
use std::error::Error;
use std::ffi::OsStr;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

/// Names of the driver's library: what a driver installs, and what development packages do.
const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// Names of NCCL's library: what its packages have, and what development packages add. Where libtorch has loaded it already, the first
/// name gives the same one.
const NCCL: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// None of its names can be loaded.
    #[error("{library} is not here; tried {} ({why})", .tried.join(", "))]
    Absent {
        /// Which library.
        library: &'static str,
        /// The names, in the order in which they were tried.
        tried: Vec<String>,
        /// What the loader said of the first.
        why: String,
    },
    /// It has not all functions that are called.
    #[error("{library} ({name}) has no function {symbol}; {needed} is needed")]
    Lacks {
        /// Which library.
        library: &'static str,
        /// The name by which it was loaded.
        name: String,
        /// The function.
        symbol: &'static str,
        /// Versions that have it.
        needed: &'static str,
    },
}

/// A library and the name by which it was found.
pub(crate) struct Loaded {
    /// Never closed: the libraries keep threads and handlers of their own, and do not support it.
    library: ManuallyDrop<Library>,
    what: &'static str,
    needed: &'static str,
    name: String,
}

#[expect(
    unsafe_code,
    reason = "loading a library runs its code, and a function's type is what its header says"
)]
impl Loaded {
    pub(crate) fn open<S: AsRef<OsStr>>(
        what: &'static str,
        needed: &'static str,
        names: &[S],
    ) -> Result<Loaded, LoadError> {
        let mut why = String::new();
        let text = |name: &S| name.as_ref().to_string_lossy().into_owned();
        for name in names {
            // SAFETY: loads NVIDIA's library, or one that a test names, by a name that this crate or the test fixes. Its initialisers
            // are what every program that uses it runs.
            match unsafe { Library::new(name.as_ref()) } {
                Ok(library) => {
                    return Ok(Loaded {
                        library: ManuallyDrop::new(library),
                        what,
                        needed,
                        name: text(name),
                    });
                }
                Err(error) if why.is_empty() => {
                    why = error
                        .source()
                        .map_or_else(|| error.to_string(), ToString::to_string);
                }
                Err(_) => {}
            }
        }
        Err(LoadError::Absent {
            library: what,
            tried: names.iter().map(text).collect(),
            why,
        })
    }

    /// The function of this name.
    ///
    /// # Safety
    /// `F` is the type of a pointer to that function.
    pub(crate) unsafe fn function<F: Copy>(&self, symbol: &'static str) -> Result<F, LoadError> {
        // SAFETY: by the caller. The library is never closed, so the pointer stays valid.
        let found = unsafe { self.library.get::<F>(symbol.as_bytes()) };
        found.map(|f| *f).map_err(|_| LoadError::Lacks {
            library: self.what,
            name: self.name.clone(),
            symbol,
            needed: self.needed,
        })
    }
}

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
    /// It cannot be loaded or lacks a function of the driver.
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

    /// Whether NCCL can be used: it is a worker's own choice to go without.
    ///
    /// # Errors
    /// It is absent or too old.
    pub fn require_nccl(&self) -> Result<(), LoadError> {
        self.nccl.as_ref().map(|_| ()).map_err(LoadError::clone)
    }

    /// NCCL's functions.
    ///
    /// # Errors
    /// It is absent or too old.
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

/// A struct of pointers to a library's functions, each with its name there. All results are read as plain numbers: an
/// enumeration of one version that holds a value of a later one would be undefined behaviour.
macro_rules! functions {
    ($(#[$meta:meta])* $name:ident { $($field:ident = $symbol:ident($($argument:ty),* $(,)?) -> $result:ty;)* }) => {
        $(#[$meta])*
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            #[expect(unsafe_code, reason = "the type of each function is written as in NVIDIA's headers")]
            pub(crate) fn of(library: &$crate::library::Loaded) -> Result<$name, $crate::library::LoadError> {
                Ok($name {
                    $(
                        // SAFETY: the type is that of the function in the library's header.
                        $field: unsafe { library.function(stringify!($symbol)) }?,
                    )*
                })
            }
        }
    };
}
pub(crate) use functions;

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
    fn another_library_is_refused_by_the_first_function_that_it_lacks() {
        // The C library is on every machine, and is neither.
        let why = match Libraries::of(&["libc.so.6"], &NCCL) {
            Err(why) => why.to_string(),
            Ok(_) => panic!("the C library is no driver"),
        };
        let expected =
            "the CUDA driver (libc.so.6) has no function cuInit; CUDA 12 or later is needed".to_owned();
        assert_eq!(why, expected);
    }
}
