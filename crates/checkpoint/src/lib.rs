//! Checkpoints on blob stores: a shard for each unit, a manifest last. The format is in `docs/checkpoint-format.md`.
//!
//! Everything is named by the identity of the state it holds, so that equal names mean equal bits: a late or repeated upload
//! changes nothing, whoever it comes from. A checkpoint is complete or absent: without its manifest it does not exist, and the
//! manifest is created once, after all shards. This crate never decides which checkpoint is used or when one is made.

pub mod huggingface;
mod keep;
mod manifest;
mod name;
mod owner;
mod pace;
mod place;
mod shard;
mod store;

pub use keep::{Pruned, prunable};
pub use manifest::{FORMAT_VERSION, Facts, Manifest, ShardEntry};
pub use name::{folder_name, parse_folder, unit_name};
pub use owner::{Claim, LEASE, Ownership, Standing};
pub use pace::Pace;
pub use place::{Listed, Place};
pub use shard::{Shard, ShardTensor};
pub use store::Store;

use varuna_plan::StateId;

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The location cannot be used.
    #[error("checkpoint location {uri}: {why}")]
    Location {
        /// As in the job file.
        uri: String,
        /// What is wrong with it.
        why: String,
    },
    /// The store answered with an error; another try may succeed.
    #[error("checkpoint store: {0}")]
    Store(#[from] object_store::Error),
    /// An object is not what its name promises.
    #[error("checkpoint {id}, {file}: {why}")]
    Damaged {
        /// The state.
        id: StateId,
        /// The object.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another run writes there.
    #[error(
        "run {run} writes its checkpoints there (last sign of life {silent_s} s ago): end it first, or wait until it has been \
         silent for {lease_s} s, or give this job another name or place"
    )]
    Owned {
        /// Whose.
        run: String,
        /// Since its last sign of life.
        silent_s: u64,
        /// After so long it counts as gone.
        lease_s: u64,
    },
    /// The checkpoint is sound but not for this job.
    #[error("checkpoint {id} cannot be used here: {why}")]
    Unsuitable {
        /// The state.
        id: StateId,
        /// Why.
        why: String,
    },
}

impl CheckpointError {
    /// Another try can never succeed.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, CheckpointError::Store(_))
    }
}
