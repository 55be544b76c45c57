//! One job's checkpoints: writes them, and checks which ones the job may resume from.

mod origin;
mod parts;
pub use origin::Origin;

use crate::CheckpointError;
use crate::listed::Listed;
use crate::location::Location;
use crate::manifest::{Facts, Manifest, ShardEntry};
use crate::name::{MANIFEST, shard_file, unit_name};
use crate::rate_limit::RateLimit;
use crate::shard::{HEADER_GUESS, HEADERS, ShardFacts, ShardFile};
use futures::{StreamExt, TryStreamExt};
use object_store::PutPayload;
use origin::OtherJob;
use parts::{PART_BYTES, put_parts};
use std::sync::Arc;
use varuna_api::{Job, Training, model_hash};
use varuna_model::Model;
use varuna_plan::{Layout, Moments, StateId, Unit};

/// The checkpoints of one job. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    location: Location,
    layout: Layout,
    facts: Facts,
    /// All settings that the hash of the job's training includes, if this is the store of a job file.
    settings: Option<Arc<(Model, Training)>>,
    /// The other job with whose checkpoint this job begins, if any.
    other_job: Option<OtherJob>,
}

impl Store {
    /// The store of a job; None if the job has no `spec.checkpoint`. `fingerprint`: the dataset's, empty if not known; then manifests
    /// contain neither it nor the hash that includes it.
    ///
    /// # Errors
    /// The location cannot be used.
    pub fn of_job(job: &Job, fingerprint: &str) -> Result<Option<Store>, CheckpointError> {
        let Some(checkpoint) = &job.checkpoint else {
            return Ok(None);
        };
        let training_hash = match fingerprint {
            "" => String::new(),
            known => model_hash(&job.model, &job.training, known),
        };
        let facts = Facts {
            job: job.name.clone(),
            model: serde_json::to_value(&job.model).unwrap_or_default(),
            training_hash,
            seed: job.training.seed,
            global_batch_size: job.training.global_batch_size,
            data_fingerprint: fingerprint.to_owned(),
            moments: job.training.optimizer.rule.moments(),
        };
        let location = Location::open(&checkpoint.uri)?;
        let other_job = checkpoint
            .from
            .as_ref()
            .map(|from| OtherJob::open(from, job.training.steps))
            .transpose()?;
        Ok(Some(Store {
            other_job,
            settings: Some(Arc::new((job.model.clone(), job.training.clone()))),
            ..Store::new(location, job.layout(), facts)
        }))
    }

    /// The moments that the job's optimizer keeps for each parameter.
    #[must_use]
    pub fn moments(&self) -> Moments {
        self.facts.moments
    }

    /// The units of the model.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The checkpoints of `facts.job` in its folder below a location.
    #[must_use]
    pub fn new(location: Location, layout: Layout, facts: Facts) -> Store {
        Store {
            location: location.below(&facts.job),
            layout,
            facts,
            settings: None,
            other_job: None,
        }
    }

    /// A store with this job's facts over another job's folder.
    fn at(&self, location: &Location) -> Store {
        Store {
            location: location.clone(),
            other_job: None,
            ..self.clone()
        }
    }

    /// The job's folder, for operations that do not need the job.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Whether a unit's shard of this length exists. Equal names mean equal bits, so it need not be written again. A shard of another
    /// length was written by another build, or is damaged.
    ///
    /// # Errors
    /// The store fails.
    pub async fn has_shard(&self, id: StateId, unit: Unit, bytes: u64) -> Result<bool, CheckpointError> {
        let path = self.location.path(id, &shard_file(self.layout, unit));
        match self.location.inner.head(&path).await {
            Ok(meta) => Ok(meta.size == bytes),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Uploads a unit's shard within a rate limit, unless it already exists (see [`Store::has_shard`]).
    ///
    /// # Errors
    /// The store fails.
    pub async fn put_shard(
        &self,
        id: StateId,
        unit: Unit,
        file: impl Into<ShardFile>,
        limit: &RateLimit,
    ) -> Result<(), CheckpointError> {
        let file = file.into();
        if self.has_shard(id, unit, file.bytes()).await? {
            return Ok(());
        }
        self.write_shard(id, unit, file, limit).await
    }

    /// Uploads a unit's shard within a rate limit, whether or not it exists. A repeated or late upload writes the same bytes.
    ///
    /// # Errors
    /// The store fails.
    pub async fn write_shard(
        &self,
        id: StateId,
        unit: Unit,
        file: ShardFile,
        limit: &RateLimit,
    ) -> Result<(), CheckpointError> {
        let path = self.location.path(id, &shard_file(self.layout, unit));
        let bytes = usize::try_from(file.bytes()).unwrap_or(usize::MAX);
        if bytes <= PART_BYTES {
            limit.wait(bytes).await;
            let payload: PutPayload = file.pieces(PART_BYTES).collect();
            self.location.inner.put(&path, payload).await?;
            return self.location.sync(vec![path]).await;
        }
        let mut upload = self.location.inner.put_multipart(&path).await?;
        put_parts(&mut *upload, &file, limit).await?;
        self.location.sync(vec![path]).await
    }

    /// Whether a listing shows all shards of a checkpoint, no manifest, and no mark of damage: [`Store::complete`] can complete it.
    #[must_use]
    pub fn lacks_manifest_alone(&self, listed: &Listed) -> bool {
        !listed.manifest && !listed.marked_damaged && self.shards_of(listed).is_some()
    }

    /// The units with the files and lengths of their shards; none if one is missing.
    fn shards_of(&self, listed: &Listed) -> Option<Vec<(Unit, String, u64)>> {
        let shard = |unit| {
            let file = shard_file(self.layout, unit);
            let bytes = *listed.files.get(&file)?;
            Some((unit, file, bytes))
        };
        self.layout.all_units().map(shard).collect()
    }

    /// Writes the manifest if it is missing and all shards exist. Returns whether the checkpoint is complete now.
    ///
    /// # Errors
    /// The store fails, or a shard's content does not match its name.
    pub async fn complete(&self, id: StateId) -> Result<bool, CheckpointError> {
        let Some(listed) = self.location.find(id).await? else {
            return Ok(false);
        };
        if listed.manifest {
            return Ok(true);
        }
        let Some(files) = self.shards_of(&listed) else {
            return Ok(false);
        };
        let entries = files
            .into_iter()
            .map(|(unit, file, bytes)| self.entry(id, unit, file, bytes));
        let shards = futures::stream::iter(entries)
            .buffered(HEADERS)
            .try_collect()
            .await?;
        let manifest = Manifest::new(id, self.layout, self.facts.clone(), shards);
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| CheckpointError::Damaged {
            id,
            file: MANIFEST.into(),
            why: e.to_string(),
        })?;
        // Once there is a manifest, older checkpoints are deleted, so all files of this one must survive a power failure.
        let mut paths: Vec<_> = manifest
            .shards
            .iter()
            .map(|s| self.location.path(id, &s.file))
            .collect();
        paths.extend(self.location.folders(id));
        self.location.sync(paths).await?;
        self.location.create(id, MANIFEST, text).await?;
        let mut paths = vec![self.location.path(id, MANIFEST)];
        paths.extend(self.location.folders(id));
        self.location.sync(paths).await?;
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
        if bytes == 0 {
            // A disk may have such a file after a power failure. A store refuses a range request for an empty object, which would look like
            // a failure of the store.
            return Err(CheckpointError::Damaged {
                id,
                file,
                why: "it is empty".into(),
            });
        }
        let mut start = self.location.range(id, &file, 0..bytes.min(HEADER_GUESS)).await?;
        let end = ShardFacts::header_end(&start).unwrap_or(0);
        if end > start.len() as u64 && end <= bytes {
            start = self.location.range(id, &file, 0..end).await?;
        }
        let facts = ShardFacts::read(id, &name, &start)?;
        if facts.bytes() != bytes {
            return Err(CheckpointError::Damaged {
                id,
                file,
                why: format!("it has {bytes} bytes, its header says {}", facts.bytes()),
            });
        }
        Ok(ShardEntry {
            unit: name,
            file,
            bytes,
            digest: facts.digest().clone(),
        })
    }

    /// Checks that this job may resume from a listed checkpoint of its own: the manifest is readable and matches the job's model, optimizer
    /// and data, and every shard exists with its length. (Digests are checked when shards are read.)
    ///
    /// # Errors
    /// The checkpoint cannot be used, or the store fails.
    pub async fn check(&self, listed: &Listed) -> Result<Manifest, CheckpointError> {
        let manifest = self.check_state(listed).await?;
        manifest.suits_data(&self.facts)?;
        Ok(manifest)
    }

    /// In which settings this job differs from itself when it saved a checkpoint, as a sentence. None if they are the same, or not known.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub async fn other_settings(&self, id: StateId) -> Result<Option<String>, CheckpointError> {
        let Some(settings) = &self.settings else {
            return Ok(None);
        };
        let (model, training) = &**settings;
        let manifest = self.location.manifest(id).await?;
        Ok(manifest.other_settings(&self.facts, (model, training)))
    }

    /// The same as [`Store::check`] for a checkpoint of another job, whose data may be others.
    async fn check_state(&self, listed: &Listed) -> Result<Manifest, CheckpointError> {
        let manifest = self.check_parameters(listed).await?;
        manifest.suits_optimizer(&self.facts)?;
        Ok(manifest)
    }

    /// The same, for the parameters only.
    async fn check_parameters(&self, listed: &Listed) -> Result<Manifest, CheckpointError> {
        let manifest = self.location.manifest(listed.id).await?;
        manifest.suits(&self.facts, self.layout)?;
        for shard in &manifest.shards {
            if listed.files.get(&shard.file) != Some(&shard.bytes) {
                // A checkpoint that is found damaged is marked permanently, so the length is checked in the store itself: a listing may be
                // outdated.
                self.location.check_length(listed.id, shard).await?;
            }
        }
        Ok(manifest)
    }
}
