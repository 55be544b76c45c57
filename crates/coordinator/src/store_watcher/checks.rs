//! Which of the listed checkpoints the run can resume from. Each checkpoint is checked once.

use super::Task;
use std::time::Duration;
use varuna_api::CheckpointSource;
use varuna_checkpoint::{CheckpointError, LeaseState, Listed, folder_name};
use varuna_plan::StateId;

/// The result of checking a checkpoint. Manifests never change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CheckpointCheck {
    Usable,
    Damaged,
    /// It is valid, but belongs to another model, optimizer, format or to other data, for this reason.
    Foreign(String),
}

/// Bytes of the checkpoints that are on their way: without a manifest, and newer than those that have one.
fn unfinished_bytes(all: &[Listed]) -> u64 {
    let newest = all.iter().filter(|l| l.is_usable()).map(|l| l.id).max();
    let is_coming = |l: &&Listed| !l.manifest && newest.is_none_or(|newest| l.id > newest);
    all.iter().filter(is_coming).flat_map(|l| l.files.values()).sum()
}

impl Task {
    /// Of all that a listing has shown, the checkpoints that can be resumed from, and the damaged ones. `completing`: time that may be spent
    /// on those without a manifest.
    pub(super) async fn usable(
        &mut self,
        mut all: Vec<Listed>,
        requested: bool,
        completing: Duration,
    ) -> Result<(Vec<StateId>, Vec<StateId>), CheckpointError> {
        if self.standing == Some(LeaseState::Owner) {
            let (unfinished, store) = (&mut self.unfinished, &self.given.store);
            unfinished.complete(&mut all, store, requested, completing).await;
        }
        let newest = all.iter().map(|l| l.id.run_gen).max();
        self.listing.newest_generation = self.listing.newest_generation.max(newest.unwrap_or_default());
        self.listing.unfinished_bytes = unfinished_bytes(&all);
        self.verdicts.retain(|id, _| all.iter().any(|l| l.id == *id));
        let (mut usable, mut foreign) = (Vec::new(), None);
        for listed in all.iter_mut().filter(|l| l.is_usable()) {
            let verdict = self.check(listed).await?;
            match verdict {
                CheckpointCheck::Usable => usable.push(listed.id),
                CheckpointCheck::Foreign(why) => foreign = Some((listed.id, why)),
                // It has the mark now, which retention must see.
                CheckpointCheck::Damaged => listed.marked_damaged = true,
            }
        }
        self.compare_settings(&usable).await;
        match foreign {
            // The location has someone's results. A run that began anew beside them would sooner or later be mistaken for them.
            Some((id, why)) if usable.is_empty() => return Err(CheckpointError::Unsuitable { id, why }),
            None if usable.is_empty() => {
                let origin = self.origin(&all).await?;
                self.listing.origin = origin;
                usable.extend(origin);
            }
            _ => self.listing.origin = None,
        }
        let damaged = all.iter().filter(|l| l.marked_damaged).map(|l| l.id).collect();
        self.listed = Some(all);
        Ok((usable, damaged))
    }

    /// Says once, after the first listing, whether the newest of the job's own checkpoints was trained with other settings. Later ones are of
    /// this run.
    async fn compare_settings(&mut self, usable: &[StateId]) {
        if std::mem::replace(&mut self.compared_settings, true) {
            return;
        }
        let Some(newest) = usable.iter().copied().max() else {
            return;
        };
        let checkpoint = folder_name(newest);
        match self.given.store.other_settings(newest).await {
            Ok(Some(changed)) => tracing::warn!(
                checkpoint,
                changed,
                "this job's newest checkpoint was trained with other settings: the losses will differ from those of a run without a restart"
            ),
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, checkpoint, "it is not known with which settings a checkpoint was trained");
            }
        }
    }

    /// The other job's checkpoint with which this job begins. While it is not known which one that is, nothing may begin.
    async fn origin(&mut self, all: &[Listed]) -> Result<Option<StateId>, CheckpointError> {
        let store = &self.given.store;
        let origin = match self.standing {
            Some(LeaseState::Owner) => store.settle_origin().await?,
            _ => store.origin().await?,
        };
        let Some(origin) = origin else {
            return Ok(None);
        };
        let id = origin.begins_with();
        if all.iter().any(|l| l.id == id && l.marked_damaged) {
            return Err(CheckpointError::Origin {
                uri: origin.source.uri,
                job: origin.source.job,
                why: format!(
                    "{} is damaged: a worker has found it so, and says why in refused.json in this job's folder",
                    folder_name(origin.state)
                ),
            });
        }
        if !std::mem::replace(&mut self.said_origin, true) {
            let checkpoint = folder_name(origin.state);
            let CheckpointSource {
                uri,
                job,
                weights_only,
                ..
            } = &origin.source;
            tracing::info!(
                checkpoint,
                job,
                uri,
                weights_only,
                "begins with another job's checkpoint"
            );
        }
        Ok(Some(id))
    }

    /// What a listing has shown, with the checks of what it shows for the first time. What cannot be checked now is left out: it must neither
    /// count nor be deleted.
    pub(super) async fn checked(&mut self, all: Vec<Listed>) -> Vec<Listed> {
        let mut known = Vec::with_capacity(all.len());
        for mut listed in all {
            if listed.is_usable() {
                match self.check(&listed).await {
                    Ok(CheckpointCheck::Damaged) => listed.marked_damaged = true,
                    Ok(CheckpointCheck::Usable | CheckpointCheck::Foreign(_)) => {}
                    Err(error) => {
                        tracing::debug!(%error, id = %listed.id, "a checkpoint is not checked");
                        continue;
                    }
                }
            }
            known.push(listed);
        }
        known
    }

    async fn check(&mut self, listed: &Listed) -> Result<CheckpointCheck, CheckpointError> {
        if let Some(verdict) = self.verdicts.get(&listed.id) {
            return Ok(verdict.clone());
        }
        let store = &self.given.store;
        let verdict = match store.check(listed).await {
            Ok(_) => CheckpointCheck::Usable,
            Err(error) if !error.is_final() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a checkpoint cannot be used");
                match error {
                    CheckpointError::Damaged { .. } => {
                        // Retention must not count it among the checkpoints to keep.
                        store
                            .location()
                            .mark_damaged(listed.id, &error.to_string())
                            .await?;
                        CheckpointCheck::Damaged
                    }
                    CheckpointError::Unsuitable { why, .. } | CheckpointError::OtherData { why, .. } => {
                        CheckpointCheck::Foreign(why)
                    }
                    error => CheckpointCheck::Foreign(error.to_string()),
                }
            }
        };
        self.verdicts.insert(listed.id, verdict.clone());
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Checkpointing;
    use crate::store_watcher::deletion::PRUNE_TIMEOUT;
    use crate::store_watcher::deletion::tests::all_known;
    use crate::store_watcher::tests::{empty, in_store, of_generation};
    use crate::store_watcher::unfinished::tests::put;
    use crate::test_job::job;
    use tempfile::TempDir;
    use tokio::sync::watch;
    use varuna_checkpoint::Store;

    /// The store of a job on this data.
    fn store_of(folder: &TempDir, data: &str) -> Store {
        let uri = format!("uri: {}, intervalSteps: 9", folder.path().display());
        Store::of_job(&job(Some(&uri)), data).unwrap().unwrap()
    }

    /// The owner of the location, which keeps one checkpoint, on this data.
    fn owner(folder: &TempDir, data: &str) -> Task {
        let given = Checkpointing {
            store: store_of(folder, data),
            keep: 1,
            ..empty(folder)
        };
        let (_, needed) = watch::channel(Some(all_known()));
        let (_, discards) = watch::channel(None);
        let mut task = Task::new(given, needed, discards);
        task.standing = Some(LeaseState::Owner);
        task
    }

    async fn save(store: &Store, id: StateId) {
        put(store, id, None, None).await;
        assert!(store.complete(id).await.unwrap());
    }

    #[tokio::test]
    async fn checkpoints_of_other_data_are_refused_and_stay() {
        let folder = TempDir::new().unwrap();
        let foreign = [5, 6].map(|step| of_generation(7, step));
        for id in foreign {
            save(&store_of(&folder, "old"), id).await;
        }
        let why = owner(&folder, "new").list(false).await.failing.unwrap();
        assert!(why.contains("spec.data"), "{why}");
        // Those of a coordinator that did not know the data are the job's own.
        let own = [1, 2].map(|step| of_generation(8, step));
        for id in own {
            save(&store_of(&folder, ""), id).await;
        }
        let mut task = owner(&folder, "new");
        assert_eq!(task.list(false).await.usable, own);
        task.prune(PRUNE_TIMEOUT).await;
        let left = in_store(&store_of(&folder, "new")).await;
        assert_eq!(left, [foreign[0], foreign[1], own[1]]);
    }
}
