//! A folder of checkpoints on a store.

use crate::CheckpointError;
use crate::listed::Listed;
use crate::manifest::Manifest;
use crate::name::{MANIFEST, REFUSED, folder_name, parse_folder};
use crate::refusal::Refusal;
use crate::retention::{Pruned, Retention, prunable};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, PutMode, PutOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use varuna_blob_store::{BadUrl, Place};
use varuna_plan::StateId;

/// Number of files that are deleted at the same time: a checkpoint may have thousands of shards, and each deletion waits for the store.
const DELETIONS: usize = 16;

/// A folder of checkpoints on a store, with all operations that need only the manifests and not the job.
#[derive(Clone, Debug)]
pub struct Location {
    pub(crate) inner: Arc<dyn ObjectStore>,
    /// The same store, if it is this machine's disk.
    pub(crate) disk: Option<Arc<LocalFileSystem>>,
    root: Path,
}

impl From<BadUrl> for CheckpointError {
    fn from(BadUrl { uri, why }: BadUrl) -> CheckpointError {
        CheckpointError::Location { uri, why }
    }
}

impl From<Place> for Location {
    fn from(place: Place) -> Location {
        Location {
            inner: place.store,
            disk: place.disk,
            root: place.path,
        }
    }
}

impl Location {
    /// Opens a folder, as [`varuna_blob_store::open`].
    ///
    /// # Errors
    /// The location cannot be used. The store is not contacted yet.
    pub fn open(uri: &str) -> Result<Location, CheckpointError> {
        Ok(varuna_blob_store::open(uri)?.into())
    }

    /// Like [`Location::open`], for reading: a local folder must exist.
    ///
    /// # Errors
    /// The location cannot be used, or is a local path that is not a folder.
    pub fn open_existing(uri: &str) -> Result<Location, CheckpointError> {
        let local = varuna_blob_store::local_path(uri)?;
        if let Some(path) = local.filter(|path| !path.is_dir()) {
            return Err(CheckpointError::Location {
                uri: uri.to_owned(),
                why: format!("{} is no folder", path.display()),
            });
        }
        Location::open(uri)
    }

    /// Like [`Location::open`], with `settings` instead of the environment: variable names in lower case, and values.
    ///
    /// # Errors
    /// The location cannot be used.
    pub fn open_with(
        uri: &str,
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Location, CheckpointError> {
        Ok(varuna_blob_store::open_with(uri, settings)?.into())
    }

    /// The root of a given store, for tests.
    #[must_use]
    pub fn over(inner: Arc<dyn ObjectStore>) -> Location {
        Location {
            inner,
            disk: None,
            root: Path::default(),
        }
    }

    /// A folder in this one.
    pub(crate) fn below(mut self, name: &str) -> Location {
        self.root = self.root.child(name);
        self
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, id: StateId, file: &str) -> Path {
        self.root.child(folder_name(id)).child(file)
    }

    /// A checkpoint's folder and the job's folder, which contain the directory entries.
    pub(crate) fn folders(&self, id: StateId) -> [Path; 2] {
        [self.root.child(folder_name(id)), self.root.clone()]
    }

    /// All checkpoints, complete or not, oldest state first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        self.listing(&self.root, None).await
    }

    /// Like [`Location::list`], but a store that sends nothing for `silence` has failed. A listing comes page by page, and that of a large
    /// store may take minutes, so there is no limit on the whole.
    ///
    /// # Errors
    /// The store fails, or does not answer.
    pub async fn list_within(&self, silence: Duration) -> Result<Vec<Listed>, CheckpointError> {
        self.listing(&self.root, Some(silence)).await
    }

    pub(crate) async fn find(&self, id: StateId) -> Result<Option<Listed>, CheckpointError> {
        let folder = self.root.child(folder_name(id));
        Ok(self.listing(&folder, None).await?.pop())
    }

    async fn listing(
        &self,
        prefix: &Path,
        silence: Option<Duration>,
    ) -> Result<Vec<Listed>, CheckpointError> {
        let mut found: BTreeMap<StateId, Listed> = BTreeMap::new();
        let mut objects = self.inner.list(Some(prefix));
        while let Some(object) = next_object(&mut objects, silence).await? {
            let Some(mut below) = object.location.prefix_match(&self.root) else {
                continue;
            };
            let (folder, file, more) = (below.next(), below.next(), below.next());
            let (Some(folder), Some(file), None) = (folder, file, more) else {
                continue;
            };
            // Other objects are ignored.
            let Some(id) = parse_folder(folder.as_ref()) else {
                continue;
            };
            let listed = found.entry(id).or_insert_with(|| Listed {
                id,
                manifest: false,
                marked_damaged: false,
                files: BTreeMap::new(),
            });
            listed.manifest |= file.as_ref() == MANIFEST;
            listed.marked_damaged |= file.as_ref() == REFUSED;
            listed.files.insert(file.as_ref().to_owned(), object.size);
        }
        Ok(found.into_values().collect())
    }

    /// The manifest of a complete checkpoint.
    ///
    /// # Errors
    /// The store fails, or the manifest has a newer format or is damaged.
    pub async fn manifest(&self, id: StateId) -> Result<Manifest, CheckpointError> {
        let text = self.inner.get(&self.path(id, MANIFEST)).await?.bytes().await?;
        Manifest::decode(id, &text)
    }

    /// Marks a checkpoint as damaged, so that no run resumes from it.
    ///
    /// # Errors
    /// The store fails.
    pub async fn mark_damaged(&self, id: StateId, why: &str) -> Result<(), CheckpointError> {
        let given_up = false;
        self.refuse(id, why, given_up).await.map(drop)
    }

    /// Marks a listed checkpoint as one that its run has given up, so that nobody resumes from it. A mark that it has already is kept. Only
    /// for the owner of the location, who alone knows.
    ///
    /// # Errors
    /// The store fails.
    pub async fn mark_given_up(&self, listed: &mut Listed, why: &str) -> Result<(), CheckpointError> {
        let given_up = true;
        let bytes = self.refuse(listed.id, why, given_up).await?;
        listed.marked_damaged = true;
        // Whoever deletes the files that were listed deletes this one too.
        listed.files.entry(REFUSED.to_owned()).or_insert(bytes);
        Ok(())
    }

    /// Writes the mark of a checkpoint, unless it has one. Returns its length.
    async fn refuse(&self, id: StateId, why: &str, given_up: bool) -> Result<u64, CheckpointError> {
        let why = why.to_owned();
        // Plain data always serialises.
        let text = serde_json::to_vec(&Refusal { why, given_up }).unwrap_or_default();
        let bytes = text.len() as u64;
        self.create(id, REFUSED, text).await?;
        Ok(bytes)
    }

    /// Why nobody may resume from a checkpoint; none if it has no mark.
    ///
    /// # Errors
    /// The store fails.
    pub async fn refusal(&self, id: StateId) -> Result<Option<Refusal>, CheckpointError> {
        match self.inner.get(&self.path(id, REFUSED)).await {
            Ok(mark) => {
                let text = mark.bytes().await?;
                Ok(Some(serde_json::from_slice(&text).unwrap_or_default()))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes what is left of a checkpoint that is marked as damaged, so that its state can be put again. Returns whether it was marked.
    /// The mark is deleted last, so that an interrupted deletion is started again.
    ///
    /// # Errors
    /// The store fails; deletions until then are not undone.
    pub async fn discard(&self, id: StateId) -> Result<bool, CheckpointError> {
        let Some(listed) = self.find(id).await?.filter(|l| l.marked_damaged) else {
            return Ok(false);
        };
        let rest = listed.files.keys().filter(|f| *f != MANIFEST && *f != REFUSED);
        let rest: Vec<Path> = rest.map(|file| self.path(id, file)).collect();
        self.delete(self.path(id, MANIFEST)).await?;
        self.delete_all(rest).await?;
        self.delete(self.path(id, REFUSED)).await?;
        self.remove_empty_folder(id)?;
        Ok(true)
    }

    /// Deletes a file. A missing file counts as deleted.
    pub(crate) async fn delete(&self, path: Path) -> Result<(), CheckpointError> {
        match self.inner.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes files in any order.
    async fn delete_all(&self, paths: Vec<Path>) -> Result<(), CheckpointError> {
        let deletions = paths.into_iter().map(|path| self.delete(path));
        let mut deletions = futures::stream::iter(deletions).buffer_unordered(DELETIONS);
        while let Some(()) = deletions.try_next().await? {}
        Ok(())
    }

    /// Lists the store, and deletes what [`prunable`] allows.
    ///
    /// # Errors
    /// The store fails; deletions until then are not undone.
    pub async fn prune(&self, retention: &Retention<'_>) -> Result<Pruned, CheckpointError> {
        self.prune_listed(&self.list().await?, retention).await
    }

    /// Deletes what [`prunable`] allows of the checkpoints that a listing has just shown. The manifest is deleted first, so that an
    /// interrupted deletion leaves an orphan and never a checkpoint with missing shards.
    ///
    /// # Errors
    /// The store fails; deletions until then are not undone.
    pub async fn prune_listed(
        &self,
        all: &[Listed],
        retention: &Retention<'_>,
    ) -> Result<Pruned, CheckpointError> {
        let pruned = prunable(all, retention);
        if !pruned.checkpoints.is_empty() {
            self.sync_manifests(all).await?;
        }
        for id in pruned.checkpoints.iter().chain(&pruned.orphans) {
            let Some(listed) = all.iter().find(|l| l.id == *id) else {
                continue;
            };
            // For an orphan too: it may have been completed since it was listed.
            self.delete(self.path(*id, MANIFEST)).await?;
            let rest = listed.files.keys().filter(|f| *f != MANIFEST);
            let rest: Vec<Path> = rest.map(|file| self.path(*id, file)).collect();
            self.delete_all(rest).await?;
            self.remove_empty_folder(*id)?;
        }
        // Folders that an earlier build, or a process that was killed here, has left.
        let last_orphan = pruned.orphans.iter().max().copied();
        if let Some(newest) = retention.newest_of(all).max(last_orphan) {
            self.remove_empty_folders(all, newest)?;
        }
        Ok(pruned)
    }

    /// Makes the manifests of complete checkpoints survive a power failure. Their writers do so too, but may not have done it yet.
    async fn sync_manifests(&self, all: &[Listed]) -> Result<(), CheckpointError> {
        let usable = all.iter().filter(|l| l.is_usable()).map(|l| l.id);
        let paths = usable.flat_map(|id| {
            let [folder, root] = self.folders(id);
            [self.path(id, MANIFEST), folder, root]
        });
        self.sync(paths.collect()).await
    }

    /// Creates a small file. An existing one is kept.
    pub(crate) async fn create(&self, id: StateId, file: &str, text: Vec<u8>) -> Result<(), CheckpointError> {
        let options = PutOptions::from(PutMode::Create);
        let put = self
            .inner
            .put_opts(&self.path(id, file), text.into(), options)
            .await;
        match put {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn range(
        &self,
        id: StateId,
        file: &str,
        range: Range<u64>,
    ) -> Result<Bytes, CheckpointError> {
        Ok(self.inner.get_range(&self.path(id, file), range).await?)
    }
}

/// The next object of a listing; none at its end. `silence`: how long the store may take for it.
async fn next_object(
    objects: &mut BoxStream<'static, object_store::Result<ObjectMeta>>,
    silence: Option<Duration>,
) -> Result<Option<ObjectMeta>, CheckpointError> {
    let next = objects.try_next();
    // Without a limit no timer is needed: callers without a runtime list too.
    let Some(silence) = silence else {
        return Ok(next.await?);
    };
    let seconds = silence.as_secs();
    let next = tokio::time::timeout(silence, next).await;
    Ok(next.map_err(|_| CheckpointError::NoAnswer { seconds })??)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};
    use tokio::time::Instant;
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, Step};

    #[tokio::test(start_paused = true)]
    async fn a_listing_may_take_as_long_as_it_likes_while_something_comes() {
        let slow = ThrottleConfig {
            wait_list_per_entry: Duration::from_secs(20),
            ..ThrottleConfig::default()
        };
        let location = Location::over(Arc::new(ThrottledStore::new(InMemory::new(), slow)));
        for step in 1..=3 {
            let id = StateId {
                run_gen: Generation(1),
                step: Step(step),
                chain: Chain(1),
            };
            location.create(id, MANIFEST, b"{}".to_vec()).await.unwrap();
        }
        let began = Instant::now();
        let listed = location.list_within(Duration::from_secs(30)).await.unwrap();
        assert_eq!(listed.len(), 3);
        assert_eq!(began.elapsed().as_secs(), 60);
        let error = location.list_within(Duration::from_secs(10)).await.unwrap_err();
        assert!(
            matches!(error, CheckpointError::NoAnswer { seconds: 10 }),
            "{error}"
        );
        assert!(!error.is_final(), "another try may succeed");
    }

    #[tokio::test(start_paused = true)]
    async fn shards_of_an_old_checkpoint_are_deleted_side_by_side() {
        let second = ThrottleConfig {
            wait_delete_per_call: Duration::from_secs(1),
            ..ThrottleConfig::default()
        };
        let location = Location::over(Arc::new(ThrottledStore::new(InMemory::new(), second)));
        let id = |step| StateId {
            run_gen: Generation(1),
            step: Step(step),
            chain: Chain(1),
        };
        for step in [1, 2] {
            for shard in 0..40 {
                let file = format!("segment-{shard:03}.safetensors");
                location.create(id(step), &file, b"shard".to_vec()).await.unwrap();
            }
            location.create(id(step), MANIFEST, b"{}".to_vec()).await.unwrap();
        }
        let began = Instant::now();
        let pruned = location.prune(&Retention::newest(1)).await.unwrap();
        assert_eq!(pruned.checkpoints, [id(1)]);
        // First the manifest, then 40 shards, 16 at a time.
        assert_eq!(began.elapsed().as_secs(), 4);
        let left = location.list().await.unwrap();
        assert_eq!(left.iter().map(|l| l.id).collect::<Vec<_>>(), [id(2)]);
    }
}
