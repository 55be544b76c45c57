//! One job's checkpoints: writing them, and judging what may be resumed from.

use crate::CheckpointError;
use crate::manifest::{Facts, Manifest, ShardEntry};
use crate::name::{MANIFEST, shard_file, unit_name};
use crate::pace::Pace;
use crate::place::{Listed, Place};
use crate::shard::ShardFacts;
use bytes::Bytes;
use object_store::PutPayload;
use object_store::buffered::BufWriter;
use std::sync::Arc;
use varuna_api::{Job, model_hash};
use varuna_plan::{Layout, StateId, Unit};

/// A header of this many bytes comes with one request; a longer one needs a second.
const HEADER_GUESS: u64 = 32 << 10;
/// Shards above this size are uploaded in parts.
const PART_BYTES: usize = 16 << 20;

/// The checkpoints of one job. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    place: Place,
    layout: Layout,
    facts: Facts,
}

impl Store {
    /// The store of a job; none where its file names no checkpoints. `fingerprint` is the dataset's, empty where not known.
    ///
    /// # Errors
    /// The location cannot be used.
    pub fn of_job(job: &Job, fingerprint: &str) -> Result<Option<Store>, CheckpointError> {
        let Some(checkpoint) = &job.checkpoint else {
            return Ok(None);
        };
        let facts = Facts {
            job: job.name.clone(),
            model: serde_json::to_value(&job.model).unwrap_or_default(),
            training_hash: model_hash(&job.model, &job.training, fingerprint),
            seed: job.training.seed,
            global_batch_size: job.training.global_batch_size,
            data_fingerprint: fingerprint.to_owned(),
        };
        let place = Place::open(&checkpoint.uri)?;
        Ok(Some(Store::new(place, job.model.layout(), facts)))
    }

    /// The units of the model.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The checkpoints of `facts.job` in its folder below a place.
    #[must_use]
    pub fn new(place: Place, layout: Layout, facts: Facts) -> Store {
        Store {
            place: place.below(&facts.job),
            layout,
            facts,
        }
    }

    /// What needs no knowledge of the job.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Uploads a unit's encoded shard at a pace, unless it is there whole. A repeated or late upload writes the same bits.
    ///
    /// # Errors
    /// The store fails.
    pub async fn put_shard(
        &self,
        id: StateId,
        unit: Unit,
        file: Bytes,
        pace: &Pace,
    ) -> Result<(), CheckpointError> {
        let path = self.place.path(id, &shard_file(self.layout, unit));
        match self.place.inner.head(&path).await {
            Ok(meta) if meta.size == file.len() as u64 => return Ok(()),
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        if file.len() <= PART_BYTES {
            pace.wait(file.len()).await;
            self.place.inner.put(&path, PutPayload::from_bytes(file)).await?;
            return Ok(());
        }
        let mut writer = BufWriter::with_capacity(Arc::clone(&self.place.inner), path, PART_BYTES);
        for part in 0..file.len().div_ceil(PART_BYTES) {
            let end = file.len().min((part + 1) * PART_BYTES);
            pace.wait(end - part * PART_BYTES).await;
            writer.put(file.slice(part * PART_BYTES..end)).await?;
        }
        tokio::io::AsyncWriteExt::shutdown(&mut writer)
            .await
            .map_err(|e| {
                CheckpointError::Store(object_store::Error::Generic {
                    store: "upload",
                    source: Box::new(e),
                })
            })
    }

    /// Writes the manifest if all shards are there and it is not. Whether the checkpoint is complete now.
    ///
    /// # Errors
    /// The store fails, or a shard is not what its name promises.
    pub async fn complete(&self, id: StateId) -> Result<bool, CheckpointError> {
        let Some(listed) = self.place.look(id).await? else {
            return Ok(false);
        };
        if listed.manifest {
            return Ok(true);
        }
        let mut shards = Vec::new();
        for unit in self.layout.all_units() {
            let file = shard_file(self.layout, unit);
            let Some(bytes) = listed.files.get(&file).copied() else {
                return Ok(false);
            };
            shards.push(self.entry(id, unit, file, bytes).await?);
        }
        let manifest = Manifest::new(id, self.layout, self.facts.clone(), shards);
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| CheckpointError::Damaged {
            id,
            file: MANIFEST.into(),
            why: e.to_string(),
        })?;
        self.place.create(id, MANIFEST, text).await?;
        Ok(true)
    }

    async fn entry(
        &self,
        id: StateId,
        unit: Unit,
        file: String,
        bytes: u64,
    ) -> Result<ShardEntry, CheckpointError> {
        let name = unit_name(self.layout, unit);
        let mut start = self.place.range(id, &file, 0..bytes.min(HEADER_GUESS)).await?;
        let end = ShardFacts::header_end(&start).unwrap_or(0);
        if end > start.len() as u64 && end <= bytes {
            start = self.place.range(id, &file, 0..end).await?;
        }
        let facts = ShardFacts::read(id, &name, &start)?;
        if facts.bytes() != bytes {
            return Err(CheckpointError::Damaged {
                id,
                file,
                why: format!("it has {bytes} bytes, its header promises {}", facts.bytes()),
            });
        }
        Ok(ShardEntry {
            unit: name,
            file,
            bytes,
            sha256: facts.sha256().to_owned(),
        })
    }

    /// Whether this job may resume from a listed checkpoint: its manifest is readable, of the job's model, and every shard is
    /// there in its length. (Digests are checked by whoever reads the shards.)
    ///
    /// # Errors
    /// Why not; or the store fails.
    pub async fn check(&self, listed: &Listed) -> Result<Manifest, CheckpointError> {
        let manifest = self.place.manifest(listed.id).await?;
        manifest.suits(&self.facts, self.layout)?;
        for shard in &manifest.shards {
            let why = match listed.files.get(&shard.file) {
                None => "it is missing".to_owned(),
                Some(bytes) if *bytes != shard.bytes => {
                    format!("it has {bytes} bytes, the manifest says {}", shard.bytes)
                }
                Some(_) => continue,
            };
            return Err(CheckpointError::Damaged {
                id: listed.id,
                file: shard.file.clone(),
                why,
            });
        }
        Ok(manifest)
    }
}
