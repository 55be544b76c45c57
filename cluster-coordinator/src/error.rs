//! Why a coordinator could not do its work.

use varuna_coordinator::CoordinatorError;

/// Why a coordinator could not do its work. Another one is started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error("API server: {0}")]
    Api(#[from] kube::Error),
    /// A document says what this release does not understand, or is of another job.
    #[error("{kind} {name}: {why}")]
    Document {
        /// The kind of object.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The job's checkpoint location cannot be used.
    #[error("spec.checkpoint.uri: {0}")]
    Store(String),
    /// It cannot listen, or its run folder cannot be written.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// The run folder cannot be made.
    #[error("the run folder cannot be used: {0}")]
    Folder(String),
}
