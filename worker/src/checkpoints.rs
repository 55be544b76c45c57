//! A worker's part in checkpoints: uploads during training, loads at a recovery.
//!
//! It holds copies of at most two states at a time: the one in upload and the newest that waits. If the host has no memory for two, it
//! holds one. A slow or failing store makes checkpoints rarer, and must never make training wait. A lack of memory also makes them rarer;
//! it makes training wait for some seconds, until the checkpoint is given up.

mod backlog;
mod buffers;
mod data_tokenizer;
mod loads;
mod parallelism;
mod shards;
mod upload_failures;

use crate::background::{Background, Priority};
use crate::model::Module;
use crate::state::{ReadError, UnitSnapshot};
use backlog::Backlog;
use backon::{BackoffBuilder, ExponentialBuilder};
use buffers::NotCopied;
pub(crate) use buffers::StateCopy;
pub use buffers::{Buffers, Room};
pub use data_tokenizer::DataTokenizer;
use parallelism::{Parallelism, UPLOADS};
use parking_lot::Mutex;
use shards::to_shard;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinError, JoinHandle};
use upload_failures::UploadFailures;
use varuna_checkpoint::{CheckpointError, RateLimit, Store};
use varuna_plan::{LossScaling, StateId, Unit};

/// Pauses after failed uploads: 0.25 to 0.5 s at first, doubled up to 5 to 10 s, without end. Random, so that the workers of a
/// job do not try in step.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(250))
    .with_max_delay(Duration::from_secs(5))
    .with_jitter()
    .without_max_times();

/// Units that are read at the same time: a processor takes the digest of one while others arrive.
const LOADS: usize = 4;

/// What checkpoints are made of, and with.
pub struct CheckpointsConfig {
    /// The job's checkpoints.
    pub store: Store,
    /// The model of which this worker trains units.
    pub model: Module,
    /// The job's loss scaling.
    pub scaling: LossScaling,
    /// The job's limit for the uploads of one worker.
    pub rate_limit: RateLimit,
    /// The tokenizer that is kept beside the first complete checkpoint.
    pub tokenizer: DataTokenizer,
    /// Where copies lie.
    pub buffers: Arc<Buffers>,
    /// This worker and its machine, for doubts and marks of damage: the fault may be theirs.
    pub reader: String,
    /// Processors that training leaves idle.
    pub idle_processors: NonZero<usize>,
}

impl CheckpointsConfig {
    fn parallelism(&self) -> Parallelism {
        Parallelism::on(self.idle_processors, self.store.location().is_folder())
    }
}

struct Inner {
    config: CheckpointsConfig,
    /// States that were not saved because a unit could not be copied.
    given_up: AtomicU64,
    backlog: Mutex<Backlog<StateCopy>>,
    upload_failures: Mutex<UploadFailures>,
    added: Notify,
    loads: Semaphore,
    digests: Semaphore,
}

/// Saves and loads units. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoints {
    inner: Arc<Inner>,
    copies: Arc<Background>,
    _uploads: Arc<Background>,
}

impl Checkpoints {
    /// Starts the threads. Those for uploads have a low priority.
    ///
    /// # Errors
    /// No threads can be started.
    pub fn start(config: CheckpointsConfig) -> std::io::Result<Checkpoints> {
        let Parallelism { blocking, copies, .. } = config.parallelism();
        let inner = Arc::new(Inner::new(config));
        let uploading = Background::start("checkpoints", Priority::Low, blocking)?;
        let copies = Background::start("checkpoint-copy", Priority::Training, copies)?;
        for _ in 0..UPLOADS {
            let uploads = Arc::clone(&inner);
            uploading.spawn(uploads.upload());
        }
        Ok(Checkpoints {
            inner,
            copies: Arc::new(copies),
            _uploads: Arc::new(uploading),
        })
    }

    /// A state waits for the upload of an earlier one: another one would take its place. Or there is no memory for another one, or there was none a short
    /// while ago. All members of a plan leave a checkpoint out for which one of them is busy.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let (is_full, is_empty) = {
            let backlog = self.inner.backlog.lock();
            (backlog.is_full(), backlog.is_empty())
        };
        is_full || self.inner.config.buffers.is_short(!is_empty, Instant::now())
    }

    /// The last error of this worker's uploads, if they fail.
    #[must_use]
    pub fn upload_failure(&self) -> Option<String> {
        self.inner.upload_failures.lock().why()
    }

    /// A step begins: somebody trains until it ends, however long it takes.
    pub fn step_begins(&self) {
        self.inner.config.buffers.step_begins();
    }

    /// The step has ended. If it is complete, training goes on from the newest state that was to be saved.
    pub fn step_ended(&self, is_complete: bool) {
        self.inner.config.buffers.step_ended(is_complete);
    }

    /// Another plan comes. Memory that is kept for the next checkpoint is given back: the plan may give this worker more to hold. Or less: so it is tried
    /// again where there was none. A state that has no room even then is given up, with its copies on the device.
    pub fn give_memory_back(&self) {
        self.inner.config.buffers.begin_anew();
    }

    /// Copies a unit's state out and uploads it in the background, unless that is under way.
    pub fn save(&self, unit: Unit, id: StateId, snapshot: UnitSnapshot) {
        if self.inner.admit(id, unit, snapshot.elements()) {
            let inner = Arc::clone(&self.inner);
            self.copies.spawn_blocking(move || inner.copy(id, unit, snapshot));
        }
    }
}

impl Inner {
    fn new(config: CheckpointsConfig) -> Inner {
        Inner {
            digests: Semaphore::new(config.parallelism().digests),
            config,
            given_up: AtomicU64::new(0),
            backlog: Mutex::default(),
            upload_failures: Mutex::default(),
            added: Notify::new(),
            loads: Semaphore::new(LOADS),
        }
    }

    /// Makes room for a unit's state of this many elements; false if it needs no other copy.
    fn admit(&self, id: StateId, unit: Unit, elements: usize) -> bool {
        let admitted = self.backlog.lock().admit(id, unit);
        if admitted {
            self.config.buffers.note(id, unit, elements);
        }
        admitted
    }

    /// Copies the state of a unit that was admitted, for the uploads.
    fn copy(&self, id: StateId, unit: Unit, snapshot: UnitSnapshot) {
        let is_admitted = || self.backlog.lock().wants(id, unit);
        if !is_admitted() {
            return;
        }
        let is_waited_for = || is_admitted() && !self.config.buffers.is_of_earlier_plan(id);
        let copied = self.config.buffers.copy(&snapshot, is_waited_for);
        // The optimizer may go on.
        drop(snapshot);
        let copy = match copied {
            Ok(copy) => copy,
            Err(why) => return self.give_up(id, unit, &why),
        };
        self.backlog.lock().add(id, unit, copy);
        // Wakes both uploads if both wait; if none waits, leaves a permit for the next.
        self.added.notify_waiters();
        self.added.notify_one();
    }

    /// A unit was not copied, so its checkpoint will not be complete. The worker continues. There may be memory for a later one, and the
    /// engine detects a broken device by itself. Nobody waits for this checkpoint: any later one fulfils the order.
    fn give_up(&self, id: StateId, unit: Unit, why: &NotCopied) {
        if !self.backlog.lock().give_up(id) {
            return;
        }
        let so_far = self.given_up.fetch_add(1, Ordering::Relaxed) + 1;
        match why {
            // The pause has ended with the plan.
            NotCopied::OptimizerWaited | NotCopied::StepsWentOn
                if self.config.buffers.is_of_earlier_plan(id) =>
            {
                tracing::warn!(
                    %unit, state = %id, so_far,
                    "a checkpoint is given up: another plan has come while there was no memory to copy this unit"
                );
            }
            NotCopied::OptimizerWaited | NotCopied::StepsWentOn => {
                self.config.buffers.pause();
                tracing::warn!(
                    %why, %unit, state = %id, so_far,
                    "a checkpoint is given up, and the next ones are left out for a while: there was no memory to copy this unit"
                );
            }
            NotCopied::Unread(ReadError::LeftOff) => tracing::warn!(
                %unit, state = %id, so_far,
                "a checkpoint is given up: the optimizer has waited too long for this unit to be copied"
            ),
            NotCopied::Unread(ReadError::Torch(error)) => {
                tracing::error!(%error, %unit, state = %id, so_far, "a checkpoint is given up: a unit of it cannot be read");
            }
        }
    }

    async fn upload(self: Arc<Self>) {
        let mut backoff = BACKOFF.build();
        loop {
            let Some((id, unit, copy)) = self.backlog.lock().next() else {
                self.added.notified().await;
                continue;
            };
            // In a task of its own, so that a panic in it does not end all uploads.
            let upload = tokio::spawn(Arc::clone(&self).upload_one(id, unit, copy));
            let uploaded = upload.await;
            if let Err(ended) = &uploaded {
                self.upload_broke_off(id, unit, ended);
            }
            // The next state may have waited for the end of this one.
            self.added.notify_one();
            match uploaded {
                // What goes on beside, nothing here waits for.
                Ok(Ok(_)) => backoff = BACKOFF.build(),
                Err(_) => tokio::time::sleep(backoff.next().unwrap_or_default()).await,
                Ok(Err(error)) => {
                    tracing::warn!(%error, state = %id, "cannot upload a shard of a checkpoint");
                    tokio::time::sleep(backoff.next().unwrap_or_default()).await;
                }
            }
        }
    }

    /// The task of an upload has ended without a result. If it has panicked, that is a defect of this program, which another try of the same copy
    /// would meet again: the checkpoint is given up, and later ones are tried. Else the process ends, which cancels its tasks, and nothing is wrong.
    fn upload_broke_off(&self, id: StateId, unit: Unit, error: &JoinError) {
        if error.is_panic() && self.backlog.lock().give_up(id) {
            let so_far = self.given_up.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::error!(%error, %unit, state = %id, so_far, "a checkpoint is given up: the upload of a unit of it has panicked");
        }
    }

    /// Uploads a copy, and completes its checkpoint with the last one. Returns what goes on beside when that is complete.
    async fn upload_one(
        self: Arc<Self>,
        id: StateId,
        unit: Unit,
        copy: StateCopy,
    ) -> Result<Option<JoinHandle<()>>, CheckpointError> {
        let put = self.put(id, unit, copy.clone()).await;
        if let Err(error) = put {
            self.backlog.lock().failed(id, unit, copy, error.is_final());
            self.upload_failures.lock().failed(&error);
            return Err(error);
        }
        let last = self.backlog.lock().uploaded(id, unit);
        if !last {
            return Ok(None);
        }
        self.config.buffers.was_enough();
        // Forgotten only after that: if the manifest cannot be written, this unit is uploaded again.
        let completed = self.complete(id).await;
        match &completed {
            Ok(_) => self.upload_failures.lock().state_saved(),
            Err(error) => self.upload_failures.lock().failed(error),
        }
        let mut backlog = self.backlog.lock();
        match &completed {
            Ok(_) => backlog.forget(id),
            Err(error) => backlog.not_completed(id, unit, copy, error.is_final()),
        }
        completed
    }

    /// Writes a shard, unless the store has it: then its digest is not needed either.
    async fn put(&self, id: StateId, unit: Unit, copy: StateCopy) -> Result<(), CheckpointError> {
        let kept = (self.config.store.layout(), self.config.store.moments());
        let shard = to_shard(&self.config.model, &self.config.scaling, kept, (id, unit), copy);
        if self.config.store.has_shard(id, unit, shard.file_bytes()?).await? {
            return Ok(());
        }
        // The digest would block the thread that serves the network. The semaphore is never closed.
        let digest = self.digests.acquire().await;
        let file = tokio::task::spawn_blocking(move || shard.into_file()).await;
        drop(digest);
        let file = file.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        self.config
            .store
            .write_shard(id, unit, file?, &self.config.rate_limit)
            .await
    }

    async fn complete(self: &Arc<Self>, id: StateId) -> Result<Option<JoinHandle<()>>, CheckpointError> {
        match self.config.store.complete(id).await {
            Ok(true) => {
                tracing::info!(state = %id, "checkpoint complete");
                // The copies of this state need not wait for it.
                let inner = Arc::clone(self);
                Ok(Some(tokio::spawn(async move {
                    inner
                        .config
                        .tokenizer
                        .keep(inner.config.store.location(), &inner.config.rate_limit)
                        .await;
                })))
            }
            Ok(false) => Ok(None),
            Err(error) => {
                // A shard in the store does not contain what its name says. If it is marked, nobody waits in vain for the checkpoint of the
                // last step.
                if matches!(error, CheckpointError::Damaged { .. }) {
                    self.mark_damaged(id, &error).await?;
                }
                Err(error)
            }
        }
    }

    async fn mark_damaged(&self, id: StateId, error: &CheckpointError) -> Result<(), CheckpointError> {
        let why = format!("{error} (found by {})", self.config.reader);
        self.config.store.location().mark_damaged(id, &why).await
    }
}

#[cfg(test)]
mod tests;
