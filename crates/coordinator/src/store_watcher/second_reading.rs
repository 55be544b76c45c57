//! Reads shards that workers doubt: a worker with bad memory or a bad disk cache reads sound ones as damaged, and would refuse one checkpoint
//! after the other. Only the owner of the location decides.

use super::Task;
use crate::inbox::Inbound;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;
use varuna_checkpoint::{CheckpointError, LeaseState, Location};
use varuna_plan::StateId;
use varuna_run_folder::CheckpointEvent;

/// The readings, in a task of their own: a shard may take longer than a lease lasts. The task ends when this is dropped.
#[derive(Default)]
pub(super) struct SecondReading {
    pub(super) task: Option<JoinHandle<()>>,
}

impl SecondReading {
    fn is_under_way(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

impl Drop for SecondReading {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Task {
    /// Begins to read what the last listing shows as doubted, unless a reading is under way. What fails, or comes meanwhile, is read after a
    /// later listing. The rest is left to another owner, if the location gets one.
    pub(super) fn read_doubted(&mut self, inbound: &Sender<Inbound>) {
        let may = self.standing == Some(LeaseState::Owner) && !self.second_reading.is_under_way();
        let Some(all) = self.listed.as_ref().filter(|_| may) else {
            return;
        };
        let usable = all.iter().filter(|l| l.is_usable());
        let doubted: Vec<(StateId, String)> = usable
            .flat_map(|l| l.doubted().map(move |unit| (l.id, unit.to_owned())))
            .collect();
        if doubted.is_empty() {
            return;
        }
        let readings = read_all(self.given.store.location().clone(), doubted, inbound.clone());
        let deposed = self.deposed();
        self.second_reading.task = Some(tokio::spawn(async move {
            tokio::select! {
                biased;
                () = deposed => {}
                () = readings => {}
            }
        }));
    }
}

async fn read_all(location: Location, doubted: Vec<(StateId, String)>, inbound: Sender<Inbound>) {
    for (id, unit) in doubted {
        match read_again(&location, id, &unit).await {
            // An error means that the driver has ended.
            Ok(Some(event)) => drop(inbound.send(Inbound::CheckpointEvent(event)).await),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, state = %id, unit, "what a worker doubts is not read again yet");
            }
        }
    }
}

/// Reads a doubted shard. If it is damaged its checkpoint is marked, else the doubt is deleted, and what there is to say is returned.
async fn read_again(
    location: &Location,
    id: StateId,
    unit: &str,
) -> Result<Option<CheckpointEvent>, CheckpointError> {
    let Some(doubt) = location.doubt_about(id, unit).await? else {
        return Ok(None);
    };
    let manifest = location.manifest(id).await?;
    if !manifest.shards.iter().any(|shard| shard.unit == unit) {
        tracing::warn!(state = %id, unit, "a doubt about a shard that the checkpoint does not have is deleted");
        location.dismiss_doubt(id, unit).await?;
        return Ok(None);
    }
    match location.verify(&manifest, unit, || {}).await {
        Ok(()) => {
            location.dismiss_doubt(id, unit).await?;
            Ok(Some(CheckpointEvent::ShardMisread {
                state: id,
                unit: unit.to_owned(),
                by: doubt.by,
            }))
        }
        Err(error @ CheckpointError::Damaged { .. }) => {
            tracing::warn!(%error, by = doubt.by, "a worker has found a checkpoint damaged, and so it is");
            let why = format!("{error} (found by {}, and by the coordinator too)", doubt.by);
            location.mark_damaged(id, &why).await?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
