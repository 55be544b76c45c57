//! A library: found by name when it is first needed, never linked.

use libloading::Library;
use std::error::Error;
use std::ffi::OsStr;
use std::mem::ManuallyDrop;

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// None of the library's names can be loaded.
    #[error("{library} is not here; tried {} ({why})", .tried.join(", "))]
    Absent {
        /// Name of the library.
        library: &'static str,
        /// The names, in the order in which they were tried.
        tried: Vec<String>,
        /// What the loader said of the first.
        why: String,
    },
    /// The library lacks a function that is called.
    #[error("{library} ({name}) has no function {symbol}; {needed} is needed")]
    Lacks {
        /// Name of the library.
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
