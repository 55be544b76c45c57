//! A folder of checkpoints on a store.

use crate::CheckpointError;
use crate::listed::Listed;
use crate::manifest::Manifest;
use crate::name::{MANIFEST, REFUSED, folder_name, parse_folder};
use crate::retention::{Pruned, Retention, prunable};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode, PutOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use varuna_blob_store::{BadUrl, Place};
use varuna_plan::StateId;

/// A folder of checkpoints on a store: all operations that need the manifests alone, and not the job.
#[derive(Clone, Debug)]
pub struct Location {
    pub(crate) inner: Arc<dyn ObjectStore>,
    /// The same store, where it is this machine's disk.
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
    /// The location cannot be used. The store is not asked yet.
    pub fn open(uri: &str) -> Result<Location, CheckpointError> {
        Ok(varuna_blob_store::open(uri)?.into())
    }

    /// Like [`Location::open`], for somebody who wants to read what is there: a local folder has to exist.
    ///
    /// # Errors
    /// The location cannot be used, or is a path of this machine that is no folder.
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

    /// A checkpoint's folder and the job's, which have the names.
    pub(crate) fn folders(&self, id: StateId) -> [Path; 2] {
        [self.root.child(folder_name(id)), self.root.clone()]
    }

    /// All checkpoints, complete or not, oldest state first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        self.listing(&self.root).await
    }

    pub(crate) async fn find(&self, id: StateId) -> Result<Option<Listed>, CheckpointError> {
        Ok(self.listing(&self.root.child(folder_name(id))).await?.pop())
    }

    async fn listing(&self, prefix: &Path) -> Result<Vec<Listed>, CheckpointError> {
        let mut found: BTreeMap<StateId, Listed> = BTreeMap::new();
        let mut objects = self.inner.list(Some(prefix));
        while let Some(object) = objects.try_next().await? {
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
                refused: false,
                files: BTreeMap::new(),
            });
            listed.manifest |= file.as_ref() == MANIFEST;
            listed.refused |= file.as_ref() == REFUSED;
            listed.files.insert(file.as_ref().to_owned(), object.size);
        }
        Ok(found.into_values().collect())
    }

    /// The manifest of a complete checkpoint.
    ///
    /// # Errors
    /// The store fails, or it is of a newer format or damaged.
    pub async fn manifest(&self, id: StateId) -> Result<Manifest, CheckpointError> {
        let text = self.inner.get(&self.path(id, MANIFEST)).await?.bytes().await?;
        Manifest::decode(id, &text)
    }

    /// Marks a checkpoint as damaged, so that no run resumes from it.
    ///
    /// # Errors
    /// The store fails.
    pub async fn refuse(&self, id: StateId, why: &str) -> Result<(), CheckpointError> {
        let text = serde_json::json!({ "why": why }).to_string();
        self.create(id, REFUSED, text.into_bytes()).await
    }

    /// Deletes what is left of a checkpoint that is marked as damaged, so that its state can be put again; returns whether it was. The
    /// mark goes last: an interrupted deletion leaves it, and is begun anew.
    ///
    /// # Errors
    /// The store fails; deletions until then are not undone.
    pub async fn discard(&self, id: StateId) -> Result<bool, CheckpointError> {
        let Some(listed) = self.find(id).await?.filter(|l| l.refused) else {
            return Ok(false);
        };
        let rest = listed.files.keys().filter(|f| *f != MANIFEST && *f != REFUSED);
        let first = listed.files.keys().filter(|f| *f == MANIFEST);
        let last = listed.files.keys().filter(|f| *f == REFUSED);
        for file in first.chain(rest).chain(last) {
            self.delete(id, file).await?;
        }
        self.remove_empty_folder(id)?;
        Ok(true)
    }

    /// Deletes a file; one that is not there is deleted already.
    async fn delete(&self, id: StateId, file: &str) -> Result<(), CheckpointError> {
        match self.inner.delete(&self.path(id, file)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes what [`prunable`] allows. The manifest is deleted first, so that an interrupted deletion leaves an orphan and never
    /// a checkpoint with missing shards.
    ///
    /// # Errors
    /// The store fails; deletions until then are not undone.
    pub async fn prune(&self, retention: &Retention<'_>) -> Result<Pruned, CheckpointError> {
        let all = self.list().await?;
        let pruned = prunable(&all, retention);
        for id in pruned.checkpoints.iter().chain(&pruned.orphans) {
            let Some(listed) = all.iter().find(|l| l.id == *id) else {
                continue;
            };
            let manifest = listed.files.keys().filter(|f| *f == MANIFEST);
            let rest = listed.files.keys().filter(|f| *f != MANIFEST);
            for file in manifest.chain(rest) {
                self.delete(*id, file).await?;
            }
            self.remove_empty_folder(*id)?;
        }
        // Those that an earlier build, or a process that was killed here, has left.
        if let Some(newest) = retention.newest_of(&all) {
            self.remove_empty_folders(&all, newest)?;
        }
        Ok(pruned)
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
