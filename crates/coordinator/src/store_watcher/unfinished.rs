//! Completes checkpoints that have all shards and no manifest: the worker that put the last shard writes the manifest, unless it dies
//! before.

use std::collections::BTreeSet;
use std::time::Duration;
use varuna_checkpoint::{CheckpointError, Listed, Store};
use varuna_plan::StateId;

/// Finds and completes them.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// Unfinished checkpoints of the previous listing.
    seen: BTreeSet<StateId>,
}

impl Unfinished {
    /// The checkpoints to complete now, newest first. One that is older than the newest usable one is a leftover, which retention deletes.
    /// A living worker writes its manifest within moments, and knows more about the data than a coordinator may. So it has until the second
    /// listing, unless a recovery asks.
    fn choose(&mut self, all: &[Listed], store: &Store, requested: bool) -> Vec<StateId> {
        let newest = all.iter().filter(|l| l.is_usable()).map(|l| l.id).max();
        let lacking = all.iter().filter(|l| store.lacks_manifest_alone(l));
        let newer = lacking.map(|l| l.id).filter(|id| newest.is_none_or(|n| *id > n));
        let before = std::mem::replace(&mut self.seen, newer.collect());
        let due = |id: &&StateId| requested || before.contains(id);
        self.seen.iter().rev().filter(due).copied().collect()
    }

    /// Completes the newest one that can be completed, and marks those whose shards do not match their names; `all` is updated. Takes at
    /// most `within`: the listing is worth more than what this may add to it. A failure is tried again with the next listing.
    pub(super) async fn complete(
        &mut self,
        all: &mut [Listed],
        store: &Store,
        requested: bool,
        within: Duration,
    ) {
        let chosen = self.choose(all, store, requested);
        let work = async {
            for id in chosen {
                let Some(listed) = all.iter_mut().find(|l| l.id == id) else {
                    continue;
                };
                match store.complete(id).await {
                    Ok(true) => {
                        tracing::info!(state = %id, "a checkpoint that lacked its manifest alone is complete");
                        listed.manifest = true;
                        return;
                    }
                    Ok(false) => {}
                    Err(error @ CheckpointError::Damaged { .. }) => {
                        tracing::warn!(%error, "a checkpoint cannot be completed");
                        listed.marked_damaged = store
                            .location()
                            .mark_damaged(id, &error.to_string())
                            .await
                            .is_ok();
                    }
                    Err(error) => {
                        tracing::warn!(%error, state = %id, "a checkpoint is not completed now");
                        return;
                    }
                }
            }
        };
        if tokio::time::timeout(within, work).await.is_err() {
            tracing::debug!("a checkpoint is not completed in time");
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::test_job::job;
    use tempfile::TempDir;
    use varuna_checkpoint::{RateLimit, Shard, ShardTensor, folder_name, unit_name};
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step, Unit};

    const WITHIN: Duration = Duration::from_secs(60);

    fn id(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(step),
        }
    }

    fn store(folder: &TempDir) -> Store {
        let uri = format!("uri: {}, intervalSteps: 9", folder.path().display());
        Store::of_job(&job(Some(&uri)), "").unwrap().unwrap()
    }

    /// Puts the shards of a state, except `missing`; the file of `cut` lacks its end.
    pub(in crate::store_watcher) async fn put(
        store: &Store,
        id: StateId,
        missing: Option<Unit>,
        cut: Option<Unit>,
    ) {
        for unit in store.layout().all_units().filter(|u| Some(*u) != missing) {
            let shard = Shard {
                id,
                unit: unit_name(store.layout(), unit),
                adam_steps: id.step.0,
                loss_scale: None,
                failed_in_a_row: 0,
                moments: varuna_plan::Moments::Adam,
                tensors: vec![ShardTensor {
                    name: "p".into(),
                    shape: vec![2],
                    whole: None,
                }],
                data: vec![0.5; 6],
            };
            let file = shard.encode().unwrap();
            let end = file.len() - if cut == Some(unit) { 4 } else { 0 };
            let limit = RateLimit::new(None);
            store
                .put_shard(id, unit, file.slice(..end), &limit)
                .await
                .unwrap();
        }
    }

    /// A listing after this call: the usable checkpoints, and those that are marked as damaged.
    async fn listed(unfinished: &mut Unfinished, store: &Store, requested: bool) -> (Vec<u64>, Vec<u64>) {
        let mut all = store.location().list().await.unwrap();
        unfinished.complete(&mut all, store, requested, WITHIN).await;
        let again = store.location().list().await.unwrap();
        let flags =
            |all: &[Listed]| -> Vec<_> { all.iter().map(|l| (l.manifest, l.marked_damaged)).collect() };
        assert_eq!(flags(&all), flags(&again), "what was changed is said");
        let steps = |which: fn(&Listed) -> bool| {
            let those = again.iter().filter(|l| which(l));
            those.map(|l| l.id.step.0).collect()
        };
        (steps(Listed::is_usable), steps(|l| l.marked_damaged))
    }

    #[tokio::test]
    async fn a_request_or_new_listing_completes_one_with_all_shards() {
        for requested in [true, false] {
            let folder = TempDir::new().unwrap();
            let (store, mut unfinished) = (store(&folder), Unfinished::default());
            put(&store, id(3), None, None).await;
            put(&store, id(6), Some(Unit(1)), None).await;
            let first = listed(&mut unfinished, &store, requested).await;
            assert_eq!(first.0, if requested { vec![3] } else { vec![] }, "{requested}");
            let second = listed(&mut unfinished, &store, requested).await;
            assert_eq!(second, (vec![3], vec![]), "a shard of step 6 is missing");
            let found = store.location().list().await.unwrap();
            // A cluster's coordinator does not have the data, so it leaves these fields empty.
            let facts = store.check(&found[0]).await.unwrap().facts;
            assert!(facts.training_hash.is_empty() && facts.data_fingerprint.is_empty());
        }
    }

    #[tokio::test]
    async fn the_newest_one_is_completed_and_leftovers_before_it_are_not() {
        let folder = TempDir::new().unwrap();
        let (store, mut unfinished) = (store(&folder), Unfinished::default());
        for step in [3, 6, 9] {
            put(&store, id(step), None, None).await;
        }
        assert!(store.complete(id(3)).await.unwrap());
        for _ in 0..2 {
            assert_eq!(listed(&mut unfinished, &store, true).await, (vec![3, 9], vec![]));
        }
    }

    #[tokio::test]
    async fn one_with_a_damaged_shard_is_marked_the_one_before_completed() {
        let folder = TempDir::new().unwrap();
        let (store, mut unfinished) = (store(&folder), Unfinished::default());
        put(&store, id(3), None, None).await;
        put(&store, id(6), None, Some(Unit(2))).await;
        assert_eq!(listed(&mut unfinished, &store, true).await, (vec![3], vec![6]));
    }

    #[tokio::test]
    async fn one_with_an_empty_shard_is_marked_and_hinders_no_other() {
        let folder = TempDir::new().unwrap();
        let (store, mut unfinished) = (store(&folder), Unfinished::default());
        for step in [3, 6] {
            put(&store, id(step), None, None).await;
        }
        let shard = format!("{}.safetensors", unit_name(store.layout(), Unit(1)));
        let path = folder.path().join("small").join(folder_name(id(6))).join(shard);
        // As after a power failure.
        assert!(path.exists());
        std::fs::write(path, "").unwrap();
        assert_eq!(listed(&mut unfinished, &store, true).await, (vec![3], vec![6]));
    }
}
