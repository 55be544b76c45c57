//! Which checkpoints the task deletes: damaged ones on demand, and old ones. Before that it marks those that the run has given up.

use super::{CheckpointCheck, Task};
use std::time::Duration;
use tokio::time::Instant;
use varuna_checkpoint::{CheckpointError, LeaseState, Listed, Location, Retention};
use varuna_plan::StateId;

/// How long deletions may take at a time. A checkpoint may have thousands of shards, and only who has the lease, which ends after 30 s, may delete.
pub(super) const PRUNE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the mark of a checkpoint that was given up says.
const GIVEN_UP: &str = "the run has given this state up: workers that hold the same state had different bits, so it may follow from wrong ones";

/// What retention must know from the run about its checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Needs {
    /// States that must not be deleted.
    pub(crate) protected: Vec<StateId>,
    /// Checkpoints that the run has given up, and from which it never resumes. They are marked, so that nobody else does either.
    pub(crate) void: Vec<StateId>,
    /// Checkpoints that the run has ordered only because of losses.
    pub(crate) extra: Vec<StateId>,
    /// The newest checkpoint that the run knows. Of newer ones it has not said yet which are extra.
    pub(crate) newest: Option<StateId>,
}

impl Needs {
    /// The same, with checkpoints that the run does not know yet: deletion follows a listing at once, often before the run has taken it. Until
    /// the run has said what they are, they stay and do not count, else an extra one would take the place of a regular one for good.
    fn with_unknown(mut self, all: &[Listed]) -> Needs {
        let newest = self.newest;
        let usable = all.iter().filter(|l| l.is_usable()).map(|l| l.id);
        let unknown: Vec<StateId> = usable
            .filter(|id| newest.is_none_or(|newest| *id > newest))
            .collect();
        self.protected.extend(&unknown);
        self.extra.extend(&unknown);
        self
    }

    /// The same at the end of the run, which says nothing more of checkpoints that it does not know. One may have been on its way when the run
    /// was stopped. It counts as a regular one, unless the run has ordered extra ones lately, so that it may be extra.
    fn with_unknown_at_end(self, all: &[Listed]) -> Needs {
        match self.extra.is_empty() {
            true => self,
            false => self.with_unknown(all),
        }
    }
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

    /// What the run needs, if old checkpoints may be deleted. Only as the owner: another run, or another coordinator of this one, knows
    /// better which states are needed, and so does the run itself, until it has read its record. Only after an answer of the store: else it
    /// is not known which of them are this job's.
    fn needs(&self) -> Option<Needs> {
        let may = self.standing == Some(LeaseState::Owner) && self.listing.failing.is_none();
        self.needed.borrow().clone().filter(|_| may)
    }

    /// Deletes old checkpoints, at the end of the run. One may have been completed since the last listing, so the store is listed once more,
    /// and what is new is checked; if that takes long, the last listing is used.
    pub(super) async fn prune_at_end(&mut self, within: Duration) {
        if self.needs().is_none() {
            return;
        }
        let end = Instant::now() + within;
        let look = async {
            let all = self.given.store.location().list().await?;
            Ok::<_, CheckpointError>(self.checked(all).await)
        };
        if let Ok(Ok(all)) = tokio::time::timeout(within / 2, look).await {
            self.listed = Some(all);
        }
        let rest = end.saturating_duration_since(Instant::now());
        self.delete_old(rest, Needs::with_unknown_at_end).await;
    }

    /// Marks what the run has given up, and deletes old checkpoints of the last listing. The store is not listed again for this: that of a
    /// large store may take longer than deletions may, and would show little more. What is not done `within` this time is done after the
    /// next listing. If the location gets another owner meanwhile, the rest is left to that one, which knows better what is needed.
    pub(super) async fn prune(&mut self, within: Duration) {
        self.delete_old(within, Needs::with_unknown).await;
    }

    /// Deletes old checkpoints of the last listing. `complete_needs` adds what follows from the listing to what the run has said.
    async fn delete_old(&mut self, within: Duration, complete_needs: fn(Needs, &[Listed]) -> Needs) {
        let Some(needs) = self.needs() else {
            return;
        };
        let Some(mut all) = self.listed.take() else {
            return;
        };
        let needs = complete_needs(needs, &all);
        let foreign = self
            .verdicts
            .iter()
            .filter(|(_, v)| matches!(v, CheckpointCheck::Foreign(_)));
        let foreign: Vec<StateId> = foreign.map(|(id, _)| *id).collect();
        let store = &self.given.store;
        let completable = all.iter().filter(|l| store.lacks_manifest_alone(l));
        let completable: Vec<StateId> = completable.map(|l| l.id).collect();
        let retention = Retention {
            keep: self.given.keep,
            protected: &needs.protected,
            void: &needs.void,
            foreign: &foreign,
            extra: &needs.extra,
            completable: Some(&completable),
        };
        let location = store.location();
        let pruning = async {
            mark_given_up(location, &mut all, &needs.void).await;
            location.prune_listed(&all, &retention).await
        };
        let pruned = tokio::select! {
            biased;
            () = self.deposed() => {
                tracing::info!("the checkpoint location has another owner: old checkpoints are left to it");
                return;
            }
            pruned = tokio::time::timeout(within, pruning) => pruned,
        };
        match pruned {
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

/// Marks the listed checkpoints that the run has given up: the record, which names them, is known to this run alone. What fails is done after
/// a later listing, which shows them without a mark again. A state before the first step is left alone: it was imported, and no worker has
/// computed it.
async fn mark_given_up(location: &Location, all: &mut [Listed], void: &[StateId]) {
    let given_up = |l: &&mut Listed| l.is_usable() && l.id.step.0 > 0 && void.contains(&l.id);
    for listed in all.iter_mut().filter(given_up) {
        let state = listed.id;
        if let Err(error) = location.mark_given_up(listed, GIVEN_UP).await {
            tracing::warn!(%error, %state, "a checkpoint that the run has given up is not marked yet");
            return;
        }
        tracing::info!(%state, "a checkpoint that the run has given up is marked");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::options::Checkpointing;
    use crate::store_watcher::tests::{
        ask_without_pause, empty, in_store, next_complete, of_generation, slow_to_list,
    };
    use crate::store_watcher::unfinished::tests::put;
    use crate::store_watcher::{INTERVAL, StoreWatcher};
    use tempfile::TempDir;
    use tokio::sync::{mpsc, watch};

    /// The run knows all checkpoints, and needs none.
    pub(in crate::store_watcher) fn all_known() -> Needs {
        Needs {
            newest: Some(of_generation(u64::MAX, 0)),
            ..Needs::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_pause_do_not_keep_old_checkpoints() {
        let given = slow_to_list(Duration::ZERO).await;
        let store = given.store.clone();
        let (inbound, mut inbox) = mpsc::channel(64);
        let watcher = StoreWatcher::start(given, inbound);
        watcher.set_needs(all_known());
        let deleted = async {
            while in_store(&store).await.len() > 1 {
                next_complete(&mut inbox).await;
            }
        };
        let deleted = tokio::time::timeout(4 * INTERVAL, deleted);
        tokio::select! {
            deleted = deleted => assert!(deleted.is_ok(), "all are still there"),
            () = ask_without_pause(&watcher) => {}
        }
        watcher.end().await;
    }

    #[tokio::test]
    async fn only_so_many_are_left_when_one_comes_at_the_end() {
        for (extra, left) in [(None, 1..3), (Some(1), 0..3)] {
            let folder = TempDir::new().unwrap();
            let given = Checkpointing {
                keep: 2,
                ..empty(&folder)
            };
            let store = given.store.clone();
            let ids = [1, 2, 3].map(|step| of_generation(1, step));
            for id in ids {
                put(&store, id, None, None).await;
                assert!(store.complete(id).await.unwrap());
            }
            let known = Needs {
                extra: extra.map(|index: usize| ids[index]).into_iter().collect(),
                newest: Some(ids[1]),
                ..Needs::default()
            };
            let (_needs, needed) = watch::channel(Some(known));
            let (_discarded, discards) = watch::channel(None);
            let mut task = Task::new(given, needed, discards);
            task.standing = Some(LeaseState::Owner);
            task.prune_at_end(PRUNE_TIMEOUT).await;
            assert_eq!(in_store(&store).await, ids[left], "extra: {extra:?}");
        }
    }

    #[tokio::test]
    async fn extra_and_unknown_checkpoints_take_no_regular_place() {
        let folder = TempDir::new().unwrap();
        let given = Checkpointing {
            keep: 2,
            ..empty(&folder)
        };
        let store = given.store.clone();
        let ids = [1, 2, 3, 4, 5].map(|step| of_generation(1, step));
        for id in &ids[..4] {
            put(&store, *id, None, None).await;
            assert!(store.complete(*id).await.unwrap());
        }
        let known = Needs {
            newest: Some(ids[1]),
            ..Needs::default()
        };
        let (needs, needed) = watch::channel(Some(known));
        let (_discarded, discards) = watch::channel(None);
        let mut task = Task::new(given, needed, discards);
        task.standing = Some(LeaseState::Owner);
        assert_eq!(task.list(false).await.usable, ids[..4]);
        task.prune(PRUNE_TIMEOUT).await;
        assert_eq!(in_store(&store).await, ids[..4], "it has not said what two are");
        put(&store, ids[4], None, None).await;
        assert!(store.complete(ids[4]).await.unwrap());
        let known = Needs {
            extra: ids[2..4].to_vec(),
            newest: Some(ids[4]),
            ..Needs::default()
        };
        needs.send(Some(known)).unwrap();
        assert_eq!(task.list(false).await.usable, ids);
        task.prune(PRUNE_TIMEOUT).await;
        assert_eq!(in_store(&store).await, [ids[1], ids[3], ids[4]]);
    }
}
