//! Which checkpoints the task deletes: damaged ones on demand, and old ones.

use super::{Task, Verdict};
use varuna_checkpoint::{CheckpointError, Retention, Standing};
use varuna_plan::StateId;

/// What a run knows of its checkpoints, and retention must.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// States that must not be deleted.
    pub(crate) protected: Vec<StateId>,
    /// Those that the run never resumes from.
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
        if self.standing == Some(Standing::Owner) {
            self.given.store.location().discard(id).await?;
            // What is put in its place is another copy.
            self.verdicts.remove(&id);
            self.discards.mark_unchanged();
        }
        Ok(())
    }

    /// Deletes old checkpoints. Only as the owner: another run, or another coordinator of this one, knows better which states are
    /// needed, and so does the run itself, until it has read its record. Only after an answer of the store: else it is not known which of them
    /// are this job's.
    pub(super) async fn prune(&mut self) {
        let needs = self.needed.borrow().clone();
        let may = self.standing == Some(Standing::Owner) && self.listing.failing.is_none();
        let Some(needs) = needs.filter(|_| may) else {
            return;
        };
        let foreign = self
            .verdicts
            .iter()
            .filter(|(_, v)| matches!(v, Verdict::Foreign(_)));
        let foreign: Vec<StateId> = foreign.map(|(id, _)| *id).collect();
        let retention = Retention {
            keep: self.given.keep,
            protected: &needs.protected,
            void: &needs.void,
            foreign: &foreign,
        };
        match self.given.store.location().prune(&retention).await {
            Ok(pruned) if pruned.checkpoints.is_empty() && pruned.orphans.is_empty() => {}
            Ok(pruned) => tracing::info!(
                checkpoints = pruned.checkpoints.len(),
                orphans = pruned.orphans.len(),
                "old checkpoints deleted"
            ),
            Err(error) => tracing::warn!(%error, "old checkpoints are not deleted"),
        }
    }
}
