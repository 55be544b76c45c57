//! The checkpoint of another job with which a job begins, as long as it has none of its own.
//!
//! Nothing is copied. `origin.json` in the job's folder names the checkpoint. It is written once, so the choice stays the same while the
//! other job continues. Workers read the shards from the other job's folder, and nothing is ever written there.

use super::Store;
use crate::CheckpointError;
use crate::listed::Listed;
use crate::location::Location;
use crate::name::folder_name;
use crate::shard::{Shard, ShardTensor};
use bytes::Bytes;
use object_store::{PutMode, PutOptions};
use serde::{Deserialize, Serialize};
use varuna_api::CheckpointSource;
use varuna_plan::state::Chain;
use varuna_plan::{Moments, StateId, Unit};

/// The file in a job's folder that names the checkpoint with which it began.
const ORIGIN: &str = "origin.json";
/// Maximum length of the chain of jobs that is searched for the files of a published model. Nobody continues training this often, and jobs
/// that name each other in a cycle must not be searched for ever.
const ORIGINS_MAX: usize = 16;

/// Names and contents.
type Files = Vec<(String, Bytes)>;

/// Where a job begins: `origin.json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The source named in the job file.
    #[serde(flatten)]
    pub source: CheckpointSource,
    /// The other job's state.
    pub state: StateId,
}

impl Origin {
    /// The state with which this job begins. If it continues from the full state, including the optimizer's counters, this is the other
    /// job's state; if only from the parameters, it is a state before the first step, as for an import.
    #[must_use]
    pub fn begins_with(&self) -> StateId {
        if !self.source.weights_only {
            return self.state;
        }
        let digest = blake3::hash(format!("weights of {}", folder_name(self.state)).as_bytes());
        let first = digest.as_bytes().iter().take(8);
        let chain = first.fold(0u64, |chain, byte| chain << 8 | u64::from(*byte));
        StateId {
            // 0 is the chain of the state that is made from the seed.
            chain: Chain(chain.max(1)),
            ..StateId::INITIAL
        }
    }
}

/// Another job's folder, and which of its checkpoints to use.
#[derive(Clone, Debug)]
pub(super) struct OtherJob {
    source: CheckpointSource,
    location: Location,
    /// The last step of this job, which must be after the checkpoint's step.
    last_step: u64,
}

impl OtherJob {
    pub(super) fn open(source: &CheckpointSource, last_step: u64) -> Result<OtherJob, CheckpointError> {
        Ok(OtherJob {
            source: source.clone(),
            location: Location::open(&source.uri)?.below(&source.job),
            last_step,
        })
    }

    fn wrong(&self, why: String) -> CheckpointError {
        CheckpointError::Origin {
            uri: self.source.uri.clone(),
            job: self.source.job.clone(),
            why,
        }
    }

    /// The newest checkpoint that matches the job's request.
    fn choose<'a>(&self, all: &'a [Listed]) -> Result<&'a Listed, CheckpointError> {
        let usable = || all.iter().filter(|l| l.is_usable());
        let meant = |l: &&Listed| self.source.step.is_none_or(|step| l.id.step.0 == step);
        usable().filter(meant).max_by_key(|l| l.id).ok_or_else(|| {
            let steps: Vec<String> = usable().map(|l| l.id.step.to_string()).collect();
            let what = self
                .source
                .step
                .map_or(String::new(), |step| format!(" of step {step}"));
            let rest = match steps.as_slice() {
                [] => "it has none at all".to_owned(),
                steps => format!("it has those of steps {}", steps.join(", ")),
            };
            self.wrong(format!("there is no complete checkpoint{what}: {rest}"))
        })
    }
}

impl Store {
    /// Where a job begins that has no checkpoint of its own: what `origin.json` says, or what it would say now. None if the job names no
    /// other job's checkpoint.
    ///
    /// # Errors
    /// A store fails; the other job has no such checkpoint, or it does not match this job's model; or the job began with another
    /// checkpoint.
    pub async fn origin(&self) -> Result<Option<Origin>, CheckpointError> {
        let Some(other) = &self.other_job else {
            return Ok(None);
        };
        match self.written_origin(other).await? {
            Some(origin) => Ok(Some(origin)),
            None => self.find_origin(other).await.map(Some),
        }
    }

    /// Like [`Store::origin`], and fixes the choice by writing it. Only for the owner of the location.
    ///
    /// # Errors
    /// The same errors.
    pub async fn settle_origin(&self) -> Result<Option<Origin>, CheckpointError> {
        let (Some(other), Some(origin)) = (&self.other_job, self.origin().await?) else {
            return Ok(None);
        };
        // Plain data always serialises.
        let text = serde_json::to_vec_pretty(&origin).unwrap_or_default();
        let path = self.location().root().child(ORIGIN);
        let create = PutOptions::from(PutMode::Create);
        match self.location().inner.put_opts(&path, text.into(), create).await {
            Ok(_) => Ok(Some(origin)),
            Err(object_store::Error::AlreadyExists { .. }) => self.written_origin(other).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn written_origin(&self, other: &OtherJob) -> Result<Option<Origin>, CheckpointError> {
        let path = self.location().root().child(ORIGIN);
        let Some(text) = self.location().origin_text().await? else {
            return Ok(None);
        };
        let origin: Origin =
            serde_json::from_slice(&text).map_err(|e| other.wrong(format!("{path} cannot be read: {e}")))?;
        if origin.source != other.source {
            let CheckpointSource { uri, job, .. } = &origin.source;
            return Err(other.wrong(format!(
                "this job began with {} of job {job} in {uri}, as {path} says: delete that file, or give the job another name",
                folder_name(origin.state)
            )));
        }
        Ok(Some(origin))
    }

    async fn find_origin(&self, other: &OtherJob) -> Result<Origin, CheckpointError> {
        let all = other.location.list().await?;
        let listed = other.choose(&all)?;
        let of_other = self.at(&other.location);
        match other.source.weights_only {
            true => of_other.check_parameters(listed).await?,
            // The job has named it, and may name other data too.
            false => of_other.check_state(listed).await?,
        };
        let (state, last) = (listed.id, other.last_step);
        if !other.source.weights_only && state.step.0 >= last {
            let step = state.step;
            return Err(other.wrong(format!(
                "its checkpoint is of step {step}, and this job ends with step {last}: raise training.steps, or set weightsOnly"
            )));
        }
        Ok(Origin {
            source: other.source.clone(),
            state,
        })
    }

    /// Reads a unit's shard of a state of this job, from the job's own checkpoint or the one with which it began, and checks length and
    /// digest. `arrived` is called for each part that arrives.
    ///
    /// # Errors
    /// A store fails, the shard is missing or damaged, or the job's own checkpoint was trained on other data: a coordinator that does not
    /// have the data cannot know that.
    pub async fn load(
        &self,
        id: StateId,
        unit: Unit,
        arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        self.load_in_order(id, unit, None, arrived).await
    }

    /// The same, with all parameters of the unit's segment in a given order (see [`Location::load_unit_in_order`]).
    ///
    /// # Errors
    /// The same errors.
    pub async fn load_in_order(
        &self,
        id: StateId,
        unit: Unit,
        wanted: Option<&[ShardTensor]>,
        arrived: impl FnMut(),
    ) -> Result<Shard, CheckpointError> {
        let (own, unit) = (self.location(), (self.layout(), unit));
        let missing = match own.manifest(id).await {
            Ok(manifest) => {
                manifest.suits_data(&self.facts)?;
                return own.load_unit_in_order(&manifest, unit, wanted, arrived).await;
            }
            Err(CheckpointError::Store(missing @ object_store::Error::NotFound { .. })) => missing,
            Err(error) => return Err(error),
        };
        let origin = match &self.other_job {
            Some(other) => self.written_origin(other).await?.map(|origin| (other, origin)),
            None => None,
        };
        let Some((other, origin)) = origin.filter(|(_, origin)| origin.begins_with() == id) else {
            return Err(missing.into());
        };
        let folder = &other.location;
        let manifest = folder.manifest(origin.state).await?;
        let shard = folder
            .load_unit_in_order(&manifest, unit, wanted, arrived)
            .await?;
        Ok(match origin.source.weights_only {
            true => parameters_alone(shard, id, self.moments()),
            false => shard,
        })
    }
}

impl Location {
    /// The files of a published model that are stored with a job's checkpoints (see [`Location::published`]); if there are none, those of
    /// the job with whose checkpoint it began, and so on. If none are found, also the reason why one of these jobs could not be examined.
    ///
    /// # Errors
    /// The job's own store fails.
    pub async fn published_or_of_origin(&self) -> Result<(Files, Option<CheckpointError>), CheckpointError> {
        let own = self.published().await?;
        if !own.is_empty() {
            return Ok((own, None));
        }
        Ok(match self.published_of_origin().await {
            Ok(files) => (files, None),
            Err(why) => (Vec::new(), Some(why)),
        })
    }

    /// The files of the first job that has any, among the jobs with whose checkpoints this one began.
    pub(crate) async fn published_of_origin(&self) -> Result<Files, CheckpointError> {
        let mut job = self.clone();
        for _ in 0..ORIGINS_MAX {
            let Some(source) = job.written_source().await? else {
                return Ok(Files::new());
            };
            let wrong = |why: CheckpointError| CheckpointError::Origin {
                uri: source.uri.clone(),
                job: source.job.clone(),
                why: why.to_string(),
            };
            job = Location::open_existing(&source.uri)
                .map_err(wrong)?
                .below(&source.job);
            let files = job.published().await.map_err(wrong)?;
            if !files.is_empty() {
                return Ok(files);
            }
        }
        Err(self.bad_origin(format!("more than {ORIGINS_MAX} jobs began with each other")))
    }

    /// The source with which the job of this folder began, whatever its job file says now.
    async fn written_source(&self) -> Result<Option<CheckpointSource>, CheckpointError> {
        let Some(text) = self.origin_text().await? else {
            return Ok(None);
        };
        let origin: Result<Origin, _> = serde_json::from_slice(&text);
        let origin = origin.map_err(|e| self.bad_origin(format!("it cannot be read: {e}")))?;
        Ok(Some(origin.source))
    }

    fn bad_origin(&self, why: String) -> CheckpointError {
        CheckpointError::Location {
            uri: self.root().child(ORIGIN).to_string(),
            why,
        }
    }

    /// `origin.json`, if there is one.
    async fn origin_text(&self) -> Result<Option<Bytes>, CheckpointError> {
        match self.inner.get(&self.root().child(ORIGIN)).await {
            Ok(found) => Ok(Some(found.bytes().await?)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The parameters, with fresh optimizer state.
fn parameters_alone(mut shard: Shard, id: StateId, moments: Moments) -> Shard {
    let parameters = shard.parameters();
    shard.data.truncate(parameters);
    shard.data.resize(parameters * (1 + moments.of_parameter()), 0.0);
    Shard {
        id,
        adam_steps: 0,
        loss_scale: None,
        failed_in_a_row: 0,
        moments,
        ..shard
    }
}
