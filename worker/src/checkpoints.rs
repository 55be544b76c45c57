//! A worker's part in checkpoints: uploads during training, loads at a recovery.
//!
//! It holds copies of at most two states at a time: the one in upload and the newest that waits. A slow or failing store makes
//! checkpoints rarer; it must never make training wait.

mod backlog;

use crate::background::Background;
use crate::state::{UnitSnapshot, UnitState};
use backlog::Backlog;
use backon::{BackoffBuilder, ExponentialBuilder};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use varuna_checkpoint::{CheckpointError, Manifest, RateLimit, Shard, ShardTensor, Store, unit_name};
use varuna_model::Model;
use varuna_plan::{LossScaling, OptimizerProgress, StateId, Unit};

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

struct Inner {
    store: Store,
    model: Model,
    scaling: LossScaling,
    rate_limit: RateLimit,
    backlog: Mutex<Backlog>,
    added: Notify,
}

/// Saves and loads units. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoints {
    inner: Arc<Inner>,
    _background: Arc<Background>,
}

impl Checkpoints {
    /// Starts the uploads on low-priority threads, within the job's rate limit for a worker.
    ///
    /// # Errors
    /// No threads can be started.
    pub fn start(
        store: Store,
        model: Model,
        scaling: LossScaling,
        rate_limit: RateLimit,
    ) -> std::io::Result<Checkpoints> {
        let background = Background::start("checkpoints", 2 * UPLOADS)?;
        let inner = Arc::new(Inner {
            store,
            model,
            scaling,
            rate_limit,
            backlog: Mutex::default(),
            added: Notify::new(),
        });
        for _ in 0..UPLOADS {
            let uploads = Arc::clone(&inner);
            background.spawn(uploads.upload());
        }
        Ok(Checkpoints {
            inner,
            _background: Arc::new(background),
        })
    }

    /// A state waits for the upload of an earlier one: another one would take its place.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.inner.backlog.lock().is_full()
    }

    /// Copies a unit's state out and uploads it in the background.
    pub fn save(&self, unit: Unit, id: StateId, snapshot: UnitSnapshot) {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || {
            inner.backlog.lock().admit(id);
            let state = snapshot.copy();
            inner.backlog.lock().add(id, unit, state);
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
        let store = &self.inner.store;
        let manifest: Manifest = store.location().manifest(id).await?;
        let shard = store
            .location()
            .load(&manifest, &unit_name(store.layout(), unit), arrived)
            .await?;
        from_shard(&self.inner.model, &self.inner.scaling, unit, shard)
    }
}

impl Inner {
    async fn upload(self: Arc<Self>) {
        let mut backoff = BACKOFF.build();
        loop {
            let Some((id, unit, state)) = self.backlog.lock().next() else {
                self.added.notified().await;
                continue;
            };
            let state = Arc::new(state);
            match Arc::clone(&self).upload_one(id, unit, Arc::clone(&state)).await {
                Ok(()) => backoff = BACKOFF.build(),
                Err(error) => {
                    tracing::warn!(%error, state = %id, "cannot upload a shard of a checkpoint");
                    let state = Arc::unwrap_or_clone(state);
                    self.backlog.lock().failed(id, unit, state, error.is_final());
                    tokio::time::sleep(backoff.next().unwrap_or_default()).await;
                }
            }
        }
    }

    async fn upload_one(
        self: Arc<Self>,
        id: StateId,
        unit: Unit,
        state: Arc<UnitState>,
    ) -> Result<(), CheckpointError> {
        // Encoding and hashing would block the thread that serves the network.
        let me = Arc::clone(&self);
        let encode =
            move || to_shard(&me.model, &me.scaling, me.store.layout(), (id, unit), &state).into_file();
        let encoded = tokio::task::spawn_blocking(encode).await;
        let encoded = encoded.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        let put = match encoded {
            Ok(file) => self.store.put_shard(id, unit, file, &self.rate_limit).await,
            Err(error) => Err(error),
        };
        let last = {
            let mut backlog = self.backlog.lock();
            backlog.uploaded(id);
            backlog.is_finished(id)
        };
        put?;
        if last {
            // Forgotten only after that: if the manifest cannot be written, this unit is uploaded again.
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
            self.backlog.lock().forget(id);
        }
        Ok(())
    }
}

fn to_shard(
    model: &Model,
    scaling: &LossScaling,
    layout: varuna_plan::Layout,
    (id, unit): (StateId, Unit),
    state: &UnitState,
) -> Shard {
    let tensors = model.parameters(unit).into_iter().map(|p| ShardTensor {
        name: p.name.to_owned(),
        shape: p.shape,
    });
    Shard {
        id,
        unit: unit_name(layout, unit),
        adam_steps: state.progress.adam_steps,
        loss_scale: scaling.saved(state.progress.loss_scale),
        failed_in_a_row: state.progress.failed_in_a_row,
        tensors: tensors.collect(),
        data: state.data.clone(),
    }
}

fn from_shard(
    model: &Model,
    scaling: &LossScaling,
    unit: Unit,
    shard: Shard,
) -> Result<UnitState, CheckpointError> {
    let expected = model.parameters(unit);
    let expected = expected.iter().map(|p| (p.name, &p.shape));
    let found = shard.tensors.iter().map(|t| (t.name.as_str(), &t.shape));
    if !expected.eq(found) {
        return Err(CheckpointError::Damaged {
            id: shard.id,
            file: format!("{}.safetensors", shard.unit),
            why: "its parameters are not those of this model".into(),
        });
    }
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
