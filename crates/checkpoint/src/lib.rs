//! Checkpoints on blob stores: a shard for each unit, a manifest last. The format is in `docs/reference/checkpoint-format.md`.
//!
//! Everything is named by the identity of the state that it holds, so equal names mean equal bits: a late or repeated upload, from any
//! worker, changes nothing. A checkpoint is complete or does not exist: without its manifest it does not exist, and the manifest is created
//! once, after all shards. This crate never decides which checkpoint is used or when one is made.

mod continuing;
mod digest;
mod doubt;
mod event_files;
pub mod huggingface;
mod listed;
mod local_folder;
mod location;
mod manifest;
mod name;
mod ownership;
mod published_files;
mod rate_limit;
mod reading;
mod refusal;
mod retention;
mod shard;
mod store;

pub use digest::DataDigest;
pub use doubt::Doubt;
pub use listed::Listed;
pub use location::Location;
pub use manifest::{FORMAT_VERSION, Facts, Manifest, ShardEntry};
pub use name::{folder_name, parse_folder, unit_name};
pub use ownership::{Claim, LEASE, LeaseState, Ownership};
pub use published_files::{PUBLISHED_FILE_BYTES_MAX, PUBLISHED_FILES};
pub use rate_limit::RateLimit;
pub use refusal::Refusal;
pub use retention::{Pruned, Retention, prunable};
pub use shard::{Shard, ShardFile, ShardTensor};
pub use store::{Origin, Store};

use std::time::Duration;
use varuna_plan::StateId;

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The location cannot be used.
    #[error("checkpoint location {uri}: {why}")]
    Location {
        /// The location, as in the job file.
        uri: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store answered with an error; another try may succeed.
    #[error("checkpoint store: {0}")]
    Store(#[from] object_store::Error),
    /// The store does not answer; another try may succeed.
    #[error("checkpoint store: no answer within {seconds} s")]
    NoAnswer {
        /// How long it was waited for.
        seconds: u64,
    },
    /// An object's content does not match its name.
    #[error("checkpoint {id}, {file}: {why}")]
    Damaged {
        /// The state.
        id: StateId,
        /// The object's name in the checkpoint's folder.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// An object's content does not match its name for this reader, and does for another one.
    #[error(
        "checkpoint {id}, {file}: {why}; another reader has found it sound: this machine's memory or disk cache may be bad"
    )]
    Misread {
        /// The state.
        id: StateId,
        /// The object's name in the checkpoint's folder.
        file: String,
        /// What this reader finds wrong with it.
        why: String,
    },
    /// The other job's checkpoint with which a job should begin cannot be used.
    #[error("the checkpoint of job {job} in {uri}: {why}")]
    Origin {
        /// The location of the other job's checkpoints.
        uri: String,
        /// Name of the other job.
        job: String,
        /// Description of the error.
        why: String,
    },
    /// Another run owns the location.
    #[error(
        "run {run} writes its checkpoints there (lease renewed {silent_s} s ago): stop that run, or wait until its lease has not \
         been renewed for {lease_s} s, or give this job another name or checkpoint location"
    )]
    Owned {
        /// The owner's name in its [`Claim`].
        run: String,
        /// Seconds since it renewed its lease.
        silent_s: u64,
        /// Seconds after which a lease that is not renewed ends.
        lease_s: u64,
    },
    /// The checkpoint is this job's own and valid, but was trained on other data.
    #[error("checkpoint {id} cannot be used here: {why}")]
    OtherData {
        /// The state.
        id: StateId,
        /// The difference, and what to do, as a sentence.
        why: String,
    },
    /// The checkpoint is valid but does not suit this job.
    #[error("checkpoint {id} cannot be used here: {why}")]
    Unsuitable {
        /// The state.
        id: StateId,
        /// The difference, as a sentence.
        why: String,
    },
}

impl CheckpointError {
    /// Whether the error is permanent, so that trying again cannot succeed.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, CheckpointError::Store(_) | CheckpointError::NoAnswer { .. })
    }
}

/// The result of `work`, which may take this long. A store that accepts connections and does not answer is tried again for minutes.
///
/// # Errors
/// The work fails, or takes longer.
pub async fn answer_within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, CheckpointError>>,
) -> Result<T, CheckpointError> {
    let seconds = limit.as_secs();
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or(Err(CheckpointError::NoAnswer { seconds }))
}
