//! Which checkpoints the task deletes: damaged ones on demand, and old ones.

use super::{CheckpointCheck, Task};
use std::time::Duration;
use varuna_checkpoint::{CheckpointError, LeaseState, Retention};
use varuna_plan::StateId;

/// How long deletions may take at a time. A checkpoint may have thousands of shards, and the lease, which ends after 30 s, must be renewed meanwhile.
pub(super) const PRUNE_TIMEOUT: Duration = Duration::from_secs(10);

/// What retention must know from the run about its checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// States that must not be deleted.
    pub(crate) protected: Vec<StateId>,
    /// Checkpoints from which the run never resumes.
    pub(crate) void: Vec<StateId>,
}

impl Task {
    /// Deletes the damaged checkpoint that is to be put again. Only as the owner.
    pub(super) async fn discard(&mut self) -> Result<(), CheckpointError> {
        let wanted = self.discards.has_changed().unwrap_or(false);
        let id = *self.discards.borrow();
        let Some(id) = id.filter(|_| wanted) else {
            return Ok(());
        };
        if self.standing == Some(LeaseState::Owner) {
            self.given.store.location().discard(id).await?;
            // The checkpoint that replaces it is another copy.
            self.verdicts.remove(&id);
            self.discards.mark_unchanged();
        }
        Ok(())
    }

    /// Deletes old checkpoints. Only as the owner: another run, or another coordinator of this one, knows better which states are
    /// needed, and so does the run itself, until it has read its record. Only after an answer of the store: else it is not known which of them
    /// are this job's. What is not deleted `within` this time goes the next time.
    pub(super) async fn prune(&mut self, within: Duration) {
        let needs = self.needed.borrow().clone();
        let may = self.standing == Some(LeaseState::Owner) && self.listing.failing.is_none();
        let Some(needs) = needs.filter(|_| may) else {
            return;
        };
        let foreign = self
            .verdicts
            .iter()
            .filter(|(_, v)| matches!(v, CheckpointCheck::Foreign(_)));
        let foreign: Vec<StateId> = foreign.map(|(id, _)| *id).collect();
        let retention = Retention {
            keep: self.given.keep,
            protected: &needs.protected,
            void: &needs.void,
            foreign: &foreign,
        };
        let pruning = self.given.store.location().prune(&retention);
        match tokio::time::timeout(within, pruning).await {
            Ok(Ok(pruned)) if pruned.checkpoints.is_empty() && pruned.orphans.is_empty() => {}
            Ok(Ok(pruned)) => tracing::info!(
                checkpoints = pruned.checkpoints.len(),
                orphans = pruned.orphans.len(),
                "old checkpoints deleted"
            ),
            Ok(Err(error)) => tracing::warn!(%error, "old checkpoints are not deleted"),
            Err(_) => tracing::debug!(
                seconds = within.as_secs(),
                "old checkpoints are not all deleted yet"
            ),
        }
    }
}
