//! Why a coordinator cannot work.

use crate::store::StoreError;
use varuna_run_folder::FolderError;

/// Why a coordinator could not start, or ended before its run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The address is taken, or is no address of this host.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The record cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The server ended by itself.
    #[error("the gRPC server failed: {0}")]
    Server(#[from] tonic::transport::Error),
    /// Two runs must not write to one checkpoint location.
    #[error("run {run} has taken over the checkpoint location")]
    CheckpointsTaken {
        /// The other run.
        run: String,
    },
}
