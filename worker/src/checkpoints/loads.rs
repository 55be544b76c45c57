//! Reads units from checkpoints. If a shard seems damaged the fault may be this worker's, so it marks a checkpoint only where the coordinator
//! has found the same, or has not read the shard for a long time.

use super::shards::{from_shard, tensors};
use super::{Checkpoints, CheckpointsConfig, Inner};
use crate::model::Module;
use crate::state::UnitState;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use varuna_checkpoint::{CheckpointError, Location};
use varuna_plan::{StateId, Unit};

/// Reads of a damaged shard before it is doubted: the fault may have been in the transfer.
const READS: u32 = 3;
/// How often it is asked whether a doubt is settled. The member hears of it as of arriving bytes, so its plan waits for this.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a doubt may stay unsettled. The coordinator reads the shard after its next listing, which may take minutes. One of an earlier
/// release never does.
const UNSETTLED_MAX: Duration = Duration::from_secs(10 * 60);

/// Why a unit's state was not read.
enum Unread {
    /// A shard was not read.
    Shard(CheckpointError),
    /// What was read does not suit the model. The coordinator, which has none, cannot tell.
    Model(CheckpointError),
}

impl Unread {
    fn error(&self) -> &CheckpointError {
        let (Unread::Shard(error) | Unread::Model(error)) = self;
        error
    }
}

impl Checkpoints {
    /// Reads a unit's state at `id`; `arrived` is called for each part that arrives. A checkpoint that is damaged for a second reader too is
    /// marked so that nobody uses it again.
    ///
    /// # Errors
    /// The store fails, the checkpoint is damaged, of another model or of other data, or this worker alone finds it damaged.
    pub async fn load(
        &self,
        unit: Unit,
        id: StateId,
        mut arrived: impl FnMut(),
    ) -> Result<UnitState, CheckpointError> {
        // An error would mean that the semaphore was closed, which nobody does.
        let _turn = self.inner.loads.acquire().await;
        // Files that a second reader has found sound.
        let mut sound = BTreeSet::new();
        let error = loop {
            let error = match self.read(unit, id, &mut arrived).await {
                Ok(state) => return Ok(state),
                Err(Unread::Model(error)) => break error,
                Err(Unread::Shard(error)) => error,
            };
            let CheckpointError::Damaged { file, .. } = &error else {
                break error;
            };
            let file = file.clone();
            if sound.contains(&file) {
                return Err(misread(error));
            }
            if !self.inner.is_dismissed(id, &error, &mut arrived).await? {
                break error;
            }
            sound.insert(file);
        };
        // A checkpoint of a newer format is sound for newer workers.
        if matches!(error, CheckpointError::Damaged { .. }) {
            self.inner.mark_damaged(id, &error).await?;
        }
        Err(error)
    }

    /// Reads a unit, several times if what arrives is damaged.
    async fn read(&self, unit: Unit, id: StateId, arrived: &mut impl FnMut()) -> Result<UnitState, Unread> {
        let mut reads = 0;
        loop {
            reads += 1;
            match self.read_once(unit, id, arrived).await {
                // That was read from a manifest that is sound.
                Err(Unread::Shard(error @ CheckpointError::OtherData { .. })) => {
                    return Err(Unread::Shard(error));
                }
                Err(unread) if unread.error().is_final() && reads < READS => {
                    tracing::warn!(error = %unread.error(), reads, "reads a damaged shard again");
                }
                done => return done,
            }
        }
    }

    async fn read_once(
        &self,
        unit: Unit,
        id: StateId,
        arrived: &mut impl FnMut(),
    ) -> Result<UnitState, Unread> {
        let CheckpointsConfig {
            store,
            model,
            scaling,
            ..
        } = &self.inner.config;
        let layout = store.layout();
        let wanted = match model {
            Module::Transformer(_) => None,
            // The model may have been exported again, with its parameters in another order.
            Module::Exported(_) => Some(tensors(model, layout.undivided(), layout.whole_of(unit))),
        };
        let read = store.load_in_order(id, unit, wanted.as_deref(), arrived).await;
        let shard = read.map_err(Unread::Shard)?;
        from_shard(model, scaling, (layout, unit), shard).map_err(Unread::Model)
    }
}

/// The same damage, which only this worker finds.
fn misread(error: CheckpointError) -> CheckpointError {
    match error {
        CheckpointError::Damaged { id, file, why } => CheckpointError::Misread { id, file, why },
        other => other,
    }
}

impl Inner {
    /// Asks the coordinator to read what this worker finds damaged, and waits until it has. Returns whether it has found it sound.
    async fn is_dismissed(
        &self,
        id: StateId,
        found: &CheckpointError,
        arrived: &mut impl FnMut(),
    ) -> Result<bool, CheckpointError> {
        let location = self.config.store.location();
        let Some(unit) = location.doubt(id, found, &self.config.reader).await? else {
            return Ok(false);
        };
        tracing::warn!(%found, "a shard is damaged for this worker; waits until the coordinator has read it too");
        let end = Instant::now() + UNSETTLED_MAX;
        while Instant::now() < end {
            tokio::time::sleep(ASK_AGAIN).await;
            arrived();
            match settled(location, id, &unit).await {
                Ok(Some(is_dismissed)) => return Ok(is_dismissed),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "it is not known yet whether a shard is damaged"),
            }
        }
        let seconds = UNSETTLED_MAX.as_secs();
        tracing::warn!(%found, seconds, "no coordinator has read what this worker finds damaged, so it counts as damaged");
        Ok(false)
    }
}

/// Whether a doubt was dismissed, once that is settled.
async fn settled(location: &Location, id: StateId, unit: &str) -> Result<Option<bool>, CheckpointError> {
    if location.refusal(id).await?.is_some() {
        return Ok(Some(false));
    }
    let is_open = location.doubt_about(id, unit).await?.is_some();
    Ok((!is_open).then_some(true))
}
