//! A worker's part in checkpoints: uploads during training, loads at a recovery.
//!
//! It holds copies of at most two states at a time: the one in upload and the newest that waits; of one where the host has no memory for two. A slow or
//! failing store makes checkpoints rarer; it must never make training wait. Little memory does too: for some seconds, until the checkpoint is given up.

mod backlog;
mod buffers;

use crate::background::{Background, Priority};
use crate::model::Module;
use crate::state::{ReadError, UnitSnapshot, UnitState};
use backlog::Backlog;
use backon::{BackoffBuilder, ExponentialBuilder};
pub use buffers::Room;
use buffers::{Buffers, StateCopy};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use varuna_checkpoint::{CheckpointError, RateLimit, Shard, ShardTensor, Store, unit_name};
use varuna_model::Parameter;
use varuna_plan::{Layout, LossScaling, Moments, OptimizerProgress, StateId, Unit};

/// Pauses after failed uploads: 0.25 to 0.5 s at first, doubled up to 5 to 10 s, without end. Random, so that the workers of a
/// job do not try in step.
const BACKOFF: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(250))
    .with_max_delay(Duration::from_secs(5))
    .with_jitter()
    .without_max_times();
/// Reads of a damaged shard before its checkpoint is refused: the fault may have been in the transfer.
const READS: u32 = 3;

/// Uploads at the same time: one shard is encoded while another is sent.
const UPLOADS: usize = 2;
/// Units that are copied at the same time. One thread takes a good part of what a processor's memory gives.
const COPIES: usize = 2;
/// Units that are read at the same time: a processor takes the digest of one while others arrive.
const LOADS: usize = 4;

struct Inner {
    store: Store,
    model: Module,
    scaling: LossScaling,
    rate_limit: RateLimit,
    buffers: Arc<Buffers>,
    /// States that were not saved because a unit could not be copied.
    given_up: AtomicU64,
    backlog: Mutex<Backlog<StateCopy>>,
    added: Notify,
    loads: Semaphore,
}

/// Saves and loads units. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoints {
    inner: Arc<Inner>,
    copies: Arc<Background>,
    _uploads: Arc<Background>,
}

impl Checkpoints {
    /// Starts the threads: those of uploads have a low priority, and keep within the job's rate limit for a worker. Copies take no
    /// more than there is room for.
    ///
    /// # Errors
    /// No threads can be started.
    pub fn start(
        store: Store,
        model: Module,
        scaling: LossScaling,
        rate_limit: RateLimit,
        room: Room,
    ) -> std::io::Result<Checkpoints> {
        let uploading = Background::start("checkpoints", Priority::Low, 2 * UPLOADS)?;
        let copies = Background::start("checkpoint-copy", Priority::Training, COPIES)?;
        let inner = Arc::new(Inner {
            store,
            model,
            scaling,
            rate_limit,
            buffers: Arc::new(Buffers::within(room)),
            given_up: AtomicU64::new(0),
            backlog: Mutex::default(),
            added: Notify::new(),
            loads: Semaphore::new(LOADS),
        });
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

    /// A state waits for the upload of an earlier one: another one would take its place. Or there is no memory for another one. All members of a plan
    /// leave a checkpoint out for which one of them is busy.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let (is_full, is_empty) = {
            let backlog = self.inner.backlog.lock();
            (backlog.is_full(), backlog.is_empty())
        };
        is_full || self.inner.buffers.is_short(!is_empty)
    }

    /// Memory that is kept for the next checkpoint is given back: a plan may give this worker more to hold.
    pub fn give_memory_back(&self) {
        self.inner.buffers.forget_kept();
    }

    /// Copies a unit's state out and uploads it in the background, unless that is under way.
    pub fn save(&self, unit: Unit, id: StateId, snapshot: UnitSnapshot) {
        if !self.inner.backlog.lock().admit(id, unit) {
            return;
        }
        let inner = Arc::clone(&self.inner);
        inner.buffers.note(id, snapshot.elements());
        self.copies.spawn_blocking(move || {
            if !inner.backlog.lock().wants(id, unit) {
                return;
            }
            let copied = inner
                .buffers
                .copy(&snapshot, || inner.backlog.lock().wants(id, unit));
            // The optimizer may go on.
            drop(snapshot);
            let copy = match copied {
                Ok(copy) => copy,
                Err(error) => return inner.give_up(id, unit, &error),
            };
            inner.backlog.lock().add(id, unit, copy);
            // Wakes both uploads if both wait; if none waits, leaves a permit for the next.
            inner.added.notify_waiters();
            inner.added.notify_one();
        });
    }

    /// Reads a unit's state at `id`; `arrived` is called for each part that arrives. A checkpoint that is damaged is marked so that
    /// nobody uses it again.
    ///
    /// # Errors
    /// The store fails, or the checkpoint is damaged or of another model.
    pub async fn load(
        &self,
        unit: Unit,
        id: StateId,
        mut arrived: impl FnMut(),
    ) -> Result<UnitState, CheckpointError> {
        // An error would mean that the semaphore was closed, which nobody does.
        let _turn = self.inner.loads.acquire().await;
        let store = &self.inner.store;
        let mut reads = 0;
        loop {
            reads += 1;
            match self.read(unit, id, &mut arrived).await {
                Ok(state) => return Ok(state),
                Err(error) if error.is_final() && reads >= READS => {
                    // A checkpoint of a newer format is sound for newer workers.
                    if matches!(error, CheckpointError::Damaged { .. }) {
                        store.location().refuse(id, &error.to_string()).await?;
                    }
                    return Err(error);
                }
                Err(error) if error.is_final() => {
                    tracing::warn!(%error, reads, "reads a damaged shard again")
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn read(
        &self,
        unit: Unit,
        id: StateId,
        arrived: &mut impl FnMut(),
    ) -> Result<UnitState, CheckpointError> {
        let Inner {
            store,
            model,
            scaling,
            ..
        } = &*self.inner;
        let layout = store.layout();
        let wanted = match model {
            Module::Transformer(_) => None,
            // It may have been exported anew, with its parameters in another order.
            Module::Exported(_) => Some(tensors(model, layout.undivided(), layout.whole_of(unit))),
        };
        let shard = store.load_in_order(id, unit, wanted.as_deref(), arrived).await?;
        from_shard(model, scaling, (layout, unit), shard)
    }
}

impl Inner {
    /// A unit was not copied: its state will not be complete. The worker goes on. Memory may be there for the next one, and the engine learns of a
    /// broken device by itself. Nobody waits for this one: what was ordered is there with any later one.
    fn give_up(&self, id: StateId, unit: Unit, error: &ReadError) {
        if !self.backlog.lock().give_up(id) {
            return;
        }
        let so_far = self.given_up.fetch_add(1, Ordering::Relaxed) + 1;
        match error {
            ReadError::LeftOff => tracing::warn!(
                %unit, state = %id, so_far,
                "a checkpoint is given up: the optimizer has waited too long for this unit to be copied, for want of time or memory"
            ),
            ReadError::Torch(error) => {
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
            let uploaded = Arc::clone(&self).upload_one(id, unit, copy).await;
            // The next state may have waited for the end of this one.
            self.added.notify_one();
            match uploaded {
                Ok(()) => backoff = BACKOFF.build(),
                Err(error) => {
                    tracing::warn!(%error, state = %id, "cannot upload a shard of a checkpoint");
                    tokio::time::sleep(backoff.next().unwrap_or_default()).await;
                }
            }
        }
    }

    async fn upload_one(
        self: Arc<Self>,
        id: StateId,
        unit: Unit,
        copy: StateCopy,
    ) -> Result<(), CheckpointError> {
        let put = self.put(id, unit, copy.clone()).await;
        if let Err(error) = put {
            self.backlog.lock().failed(id, unit, copy, error.is_final());
            return Err(error);
        }
        let last = self.backlog.lock().uploaded(id, unit);
        if !last {
            return Ok(());
        }
        // Forgotten only after that: if the manifest cannot be written, this unit is uploaded again.
        let completed = self.complete(id).await;
        let mut backlog = self.backlog.lock();
        match &completed {
            Ok(()) => backlog.forget(id),
            Err(error) => backlog.not_completed(id, unit, copy, error.is_final()),
        }
        completed
    }

    /// Writes a shard, unless the store has it: then its digest is not needed either.
    async fn put(&self, id: StateId, unit: Unit, copy: StateCopy) -> Result<(), CheckpointError> {
        let kept = (self.store.layout(), self.store.moments());
        let shard = to_shard(&self.model, &self.scaling, kept, (id, unit), copy);
        if self.store.has_shard(id, unit, shard.file_bytes()?).await? {
            return Ok(());
        }
        // The digest would block the thread that serves the network.
        let file = tokio::task::spawn_blocking(move || shard.into_file()).await;
        let file = file.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        self.store.write_shard(id, unit, file?, &self.rate_limit).await
    }

    async fn complete(&self, id: StateId) -> Result<(), CheckpointError> {
        match self.store.complete(id).await {
            Ok(true) => tracing::info!(state = %id, "checkpoint complete"),
            Ok(false) => {}
            Err(error) => {
                // A shard in the store does not hold what its name says: that of the last step would else be waited for in vain.
                if matches!(error, CheckpointError::Damaged { .. }) {
                    self.store.location().refuse(id, &error.to_string()).await?;
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

fn to_shard(
    model: &Module,
    scaling: &LossScaling,
    (layout, moments): (Layout, Moments),
    (id, unit): (StateId, Unit),
    copy: StateCopy,
) -> Shard<StateCopy> {
    let progress = copy.progress();
    let tensors = tensors(model, layout, unit);
    Shard {
        id,
        unit: unit_name(layout, unit),
        adam_steps: progress.adam_steps,
        loss_scale: scaling.saved(progress.loss_scale),
        failed_in_a_row: progress.failed_in_a_row,
        moments,
        tensors,
        data: copy,
    }
}

/// The tensors of a unit's shard; of a range of a segment's state, the parts of parameters that lie in it.
fn tensors(model: &Module, layout: Layout, unit: Unit) -> Vec<ShardTensor> {
    let spec = model.unit(layout.whole_of(unit));
    if layout.ranges == 1 {
        let whole = spec.parameters.into_iter();
        return whole.map(|p| ShardTensor::new(p.name, p.shape)).collect();
    }
    let range = spec.range(&layout.elements_of(unit, spec.elements()));
    let part = |part: Parameter| {
        let whole = spec.parameters.iter().find(|p| p.name == part.name);
        ShardTensor {
            whole: whole.map(|p| p.shape.clone()),
            ..ShardTensor::new(part.name, part.shape)
        }
    };
    range.parameters.into_iter().map(part).collect()
}

fn from_shard(
    model: &Module,
    scaling: &LossScaling,
    (layout, unit): (Layout, Unit),
    shard: Shard,
) -> Result<UnitState, CheckpointError> {
    let expected = tensors(model, layout, unit);
    let (id, file) = (shard.id, format!("{}.safetensors", shard.unit));
    let shard = shard.in_order(&expected).map_err(|why| match model {
        Module::Transformer(_) => CheckpointError::Damaged { id, file, why },
        // It may have been exported anew: the checkpoint is sound.
        Module::Exported(_) => CheckpointError::Unsuitable { id, why },
    })?;
    Ok(UnitState {
        progress: OptimizerProgress {
            adam_steps: shard.adam_steps,
            loss_scale: scaling.resumed(shard.loss_scale),
            failed_in_a_row: shard.failed_in_a_row,
        },
        data: shard.data,
    })
}

#[cfg(test)]
mod tests;
