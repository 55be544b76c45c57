//! What can be wrong with a dataset.

use std::io;
use std::path::{Path, PathBuf};

/// Why a dataset could not be built, opened or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The operating system refused.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was attempted: `read`, `write`, ...
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file exists and overwriting was not asked for.
    #[error("write {}: it exists — a new name, or ask for overwriting", .0.display())]
    Exists(PathBuf),
    /// A file is not what it should be.
    #[error("read {}: {what}: {value} — {allowed}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The part of it.
        what: &'static str,
        /// What was found.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The dataset has too few tokens for a sample.
    #[error("open {}: {tokens} tokens — at least {needed} for one training sample of {sequence_length} tokens beside the held-out ones", path.display())]
    TooSmall {
        /// The `.bin` file.
        path: PathBuf,
        /// What it has.
        tokens: u64,
        /// What it would need.
        needed: u64,
        /// Tokens in a sample.
        sequence_length: u32,
    },
    /// The model has too few rows in its embedding table.
    #[error("open {}: vocabulary {dataset} — at most the model's vocabularySize ({model})", path.display())]
    Vocabulary {
        /// The dataset's sidecar.
        path: PathBuf,
        /// The dataset's vocabulary.
        dataset: u32,
        /// The model's.
        model: u32,
    },
    /// An argument of a call is out of range.
    #[error("{what}: {value} — {allowed}")]
    Argument {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

impl DataError {
    /// Wraps an I/O error with what was attempted on what.
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> DataError + 'a {
        move |source| DataError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// A file that is not what it should be.
    pub(crate) fn malformed(
        path: &Path,
        what: &'static str,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> DataError {
        DataError::Malformed {
            path: path.to_owned(),
            what,
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }
}
