//! A folder of checkpoints on a store.

use crate::CheckpointError;
use crate::keep::{Pruned, prunable};
use crate::manifest::Manifest;
use crate::name::{MANIFEST, REFUSED, folder_name, parse_folder};
use crate::shard::{Shard, ShardFacts};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreScheme, PutMode, PutOptions, RetryConfig};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use url::Url;
use varuna_plan::StateId;

/// A shard is read in pieces of this size, so many at once: one request would be one connection's speed, and a local file's
/// stream comes in pieces of a few KiB.
const READ_BYTES: usize = 8 << 20;
const READS_AT_ONCE: usize = 4;

/// A checkpoint's folder, as a listing shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The state.
    pub id: StateId,
    /// Its manifest is there: it is complete.
    pub manifest: bool,
    /// A reader found it damaged.
    pub refused: bool,
    /// All files with their lengths.
    pub files: BTreeMap<String, u64>,
}

impl Listed {
    /// Complete, and nobody found it damaged.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.manifest && !self.refused
    }
}

/// A folder of checkpoints on a store, whatever job they are of: what can be done with them by their manifests alone.
#[derive(Clone, Debug)]
pub struct Place {
    pub(crate) inner: Arc<dyn ObjectStore>,
    root: Path,
}

/// The location as a URL; a plain path is a local folder, which is made.
fn location(uri: &str) -> Result<Url, CheckpointError> {
    let wrong = |why: String| CheckpointError::Location {
        uri: uri.to_owned(),
        why,
    };
    let path = match Url::parse(uri) {
        Ok(url) if url.scheme() == "file" => url
            .to_file_path()
            .map_err(|()| wrong("not a path on this machine".into()))?,
        // One letter: a drive, not a scheme.
        Ok(url) if url.scheme().len() > 1 => return Ok(url),
        _ => std::path::PathBuf::from(uri),
    };
    std::fs::create_dir_all(&path).map_err(|e| wrong(e.to_string()))?;
    let path = path.canonicalize().map_err(|e| wrong(e.to_string()))?;
    Url::from_directory_path(&path).map_err(|()| wrong("not an absolute path".into()))
}

/// As `object_store::parse_url_opts`, but it gives up a request soon: whoever made it decides whether and when to try again.
fn build(
    url: &Url,
    settings: impl IntoIterator<Item = (String, String)>,
) -> object_store::Result<(Arc<dyn ObjectStore>, Path)> {
    let (scheme, root) = ObjectStoreScheme::parse(url)?;
    let retry = RetryConfig {
        max_retries: 3,
        retry_timeout: Duration::from_secs(60),
        ..RetryConfig::default()
    };
    macro_rules! with_settings {
        ($builder:expr) => {
            settings
                .into_iter()
                .fold(
                    $builder.with_url(url.as_str()).with_retry(retry),
                    |builder, (key, value)| {
                        match key.parse() {
                            Ok(key) => builder.with_config(key, value),
                            // Not every variable is a store's.
                            Err(_) => builder,
                        }
                    },
                )
                .build()?
        };
    }
    let inner: Arc<dyn ObjectStore> = match scheme {
        ObjectStoreScheme::AmazonS3 => Arc::new(with_settings!(AmazonS3Builder::new())),
        ObjectStoreScheme::GoogleCloudStorage => Arc::new(with_settings!(GoogleCloudStorageBuilder::new())),
        ObjectStoreScheme::MicrosoftAzure => Arc::new(with_settings!(MicrosoftAzureBuilder::new())),
        _ => object_store::parse_url_opts(url, settings)?.0.into(),
    };
    Ok((inner, root))
}

impl Place {
    /// A folder `<uri>/<job>`: a path or `file://`, `s3://bucket/prefix`, `gs://...`, `az://...`.
    /// Credentials, endpoints and further settings come from the environment variables that the cloud's own tools use
    /// (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME`, ...), workload identity or the
    /// machine's metadata service.
    ///
    /// # Errors
    /// The location cannot be used. The store is not asked yet.
    pub fn open(uri: &str) -> Result<Place, CheckpointError> {
        Place::open_with(uri, std::env::vars().map(|(k, v)| (k.to_ascii_lowercase(), v)))
    }

    /// As [`Place::open`], with settings of the caller's in place of the environment: the names of the variables in lower case.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        uri: &str,
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Place, CheckpointError> {
        let url = location(uri)?;
        let wrong = |why: object_store::Error| CheckpointError::Location {
            uri: uri.to_owned(),
            why: why.to_string(),
        };
        let (inner, root) = build(&url, settings).map_err(wrong)?;
        Ok(Place { inner, root })
    }

    /// A place on a given store: for tests that need one which fails.
    #[must_use]
    pub fn over(inner: Arc<dyn ObjectStore>) -> Place {
        Place {
            inner,
            root: Path::default(),
        }
    }

    /// The folder of that name below this one.
    pub(crate) fn below(mut self, name: &str) -> Place {
        self.root = self.root.child(name);
        self
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn path(&self, id: StateId, file: &str) -> Path {
        self.root.child(folder_name(id)).child(file)
    }

    /// All folders of this job, complete or not, oldest state first.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        self.listing(&self.root).await
    }

    pub(crate) async fn look(&self, id: StateId) -> Result<Option<Listed>, CheckpointError> {
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
            // What is not ours is left alone.
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

    /// Reads a unit's shard and checks length and digest. `arrived` is told of each piece that arrives.
    ///
    /// # Errors
    /// The store fails, or the shard is missing or damaged.
    pub async fn load(
        &self,
        manifest: &Manifest,
        unit: &str,
        mut arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        let id = manifest.state;
        let damaged = |file: &str, why: String| CheckpointError::Damaged {
            id,
            file: file.to_owned(),
            why,
        };
        let Some(entry) = manifest.shards.iter().find(|s| s.unit == unit) else {
            return Err(damaged(MANIFEST, format!("it names no shard of {unit}")));
        };
        let path = self.path(id, &entry.file);
        let there = match self.inner.head(&path).await {
            Ok(meta) => meta.size,
            Err(object_store::Error::NotFound { .. }) => {
                return Err(damaged(&entry.file, "it is missing".into()));
            }
            Err(error) => return Err(error.into()),
        };
        if there != entry.bytes {
            let why = format!("it has {there} bytes, the manifest says {}", entry.bytes);
            return Err(damaged(&entry.file, why));
        }
        let starts = (0..there).step_by(READ_BYTES);
        let reads = starts.map(|at| self.inner.get_range(&path, at..there.min(at + READ_BYTES as u64)));
        let mut pieces = futures::stream::iter(reads).buffered(READS_AT_ONCE);
        let mut file = Vec::with_capacity(usize::try_from(there).unwrap_or(0));
        while let Some(piece) = pieces.try_next().await? {
            file.extend_from_slice(&piece);
            arrived();
        }
        if file.len() as u64 != entry.bytes {
            return Err(damaged(
                &entry.file,
                format!("only {} bytes of it can be read", file.len()),
            ));
        }
        let facts = ShardFacts::read(id, unit, &file)?;
        if facts.sha256() != entry.sha256 {
            return Err(damaged(
                &entry.file,
                "it is another one than the manifest says (digest)".into(),
            ));
        }
        Shard::decode(id, unit, &file)
    }

    /// Marks a checkpoint as damaged, so that nobody resumes from it again.
    ///
    /// # Errors
    /// The store fails.
    pub async fn refuse(&self, id: StateId, why: &str) -> Result<(), CheckpointError> {
        let text = serde_json::json!({ "why": why }).to_string();
        self.create(id, REFUSED, text.into_bytes()).await
    }

    /// Deletes what [`prunable`] says may go: of each the manifest first, so that what is left of an interrupted deletion is
    /// an orphan and never a checkpoint with missing shards.
    ///
    /// # Errors
    /// The store fails; what was deleted until then stays deleted.
    pub async fn prune(&self, keep: usize, protected: &[StateId]) -> Result<Pruned, CheckpointError> {
        let all = self.list().await?;
        let pruned = prunable(&all, keep, protected);
        for id in pruned.checkpoints.iter().chain(&pruned.orphans) {
            let Some(listed) = all.iter().find(|l| l.id == *id) else {
                continue;
            };
            let manifest = listed.files.keys().filter(|f| *f == MANIFEST);
            let rest = listed.files.keys().filter(|f| *f != MANIFEST);
            for file in manifest.chain(rest) {
                match self.inner.delete(&self.path(*id, file)).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(pruned)
    }

    /// Creates a small file; one that is there already stays.
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
