//! Keeps the tokenizer of a job's dataset next to its checkpoints, so that generating text from a checkpoint, or exporting it, does not
//! need the data.

use std::sync::atomic::{AtomicBool, Ordering};
use varuna_api::Data;
use varuna_checkpoint::{CheckpointError, Location, RateLimit};
use varuna_dataset::{DataError, Tokenizer};

/// Where the tokenizer is, and whether it is kept.
pub struct DataTokenizer {
    data: Data,
    is_settled: AtomicBool,
}

/// Why a tokenizer was not kept. A later checkpoint asks again.
#[derive(Debug, thiserror::Error)]
enum NotKept {
    /// A dataset's description or its tokenizer cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The store of the checkpoints, or of the job that this one began with, fails.
    #[error(transparent)]
    Store(#[from] CheckpointError),
}

impl DataTokenizer {
    /// The tokenizer of these data.
    #[must_use]
    pub fn of(data: Data) -> DataTokenizer {
        DataTokenizer {
            data,
            is_settled: AtomicBool::new(false),
        }
    }

    /// Keeps the tokenizer at this location, unless this or another one is there. Each process does this once. Training does not need it, so a failure
    /// is only logged.
    pub(super) async fn keep(&self, location: &Location, rate_limit: &RateLimit) {
        if self.is_settled.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(why) = self.try_to_keep(location, rate_limit).await {
            self.is_settled.store(false, Ordering::Relaxed);
            tracing::warn!(%why, "the dataset's tokenizer is not kept beside the checkpoints yet");
        }
    }

    async fn try_to_keep(&self, location: &Location, rate_limit: &RateLimit) -> Result<(), NotKept> {
        if !location.lacks_tokenizer().await? {
            return Ok(());
        }
        let data = self.data.clone();
        // It is parsed, and its files may lie on a store.
        let read = tokio::task::spawn_blocking(move || {
            let tokenizer = Tokenizer::of_data(&data)?;
            Ok(tokenizer.and_then(|tokenizer| tokenizer.kept_with_model()))
        });
        let read: Result<_, DataError> = read
            .await
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        if let Some(files) = read? {
            location.keep_tokenizer(files, rate_limit).await?;
            tracing::info!("the dataset's tokenizer is kept beside the checkpoints");
        }
        Ok(())
    }
}
