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
    /// The run had more steps ordered before.
    #[error(
        "spec.training.steps: {asked} — at least {ordered}: more were ordered before, and steps can be added, not taken away"
    )]
    FewerSteps {
        /// The steps asked for.
        asked: u64,
        /// The number of steps in the record.
        ordered: u64,
    },
    /// The run has ended, and no worker holds its state.
    #[error(
        "spec.training.steps: {asked} — {had}, as the run is complete and saved no checkpoints (spec.checkpoint) from which it could go on"
    )]
    NothingToGoOnFrom {
        /// The steps asked for.
        asked: u64,
        /// The number of steps that it had.
        had: u64,
    },
    /// The server ended by itself.
    #[error("the gRPC server failed: {0}")]
    Server(#[from] tonic::transport::Error),
    /// Two runs must not write to one checkpoint location.
    #[error("run {run} has taken over the checkpoint location")]
    CheckpointsTaken {
        /// Name of the other run.
        run: String,
    },
}
