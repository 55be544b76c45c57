//! Reads a job file and checks it, its data and its checkpoint location before any worker starts.

use crate::failure::Failure;
use crate::io;
use std::path::Path;
use std::time::Duration;
use varuna_api::{Job, parse_job, parse_job_of_any_release, sha256, steps_of_run};
use varuna_checkpoint::{CheckpointError, Listed, Store};
use varuna_coordinator::Checkpointing;
use varuna_coordinator::location_lease::{claim_of_this_process, claimant_has_ended};
use varuna_dataset::{SampleShape, TrainingData};
use varuna_model::Model;
use varuna_run_folder::RunFiles;

/// How long a checkpoint store may take to answer at the start.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

/// A valid job and the text of its file.
pub(crate) struct JobFile {
    pub(crate) job: Job,
    pub(crate) text: String,
    /// Steps to train: of a run that has begun they may be more than its job's.
    pub(crate) steps: u64,
}

/// Reads and checks a job file.
pub(crate) fn read(path: &Path) -> Result<JobFile, Failure> {
    let text = io::read(path)?;
    let job = parse_job(&text).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
    let steps = job.training.steps;
    Ok(JobFile { job, text, steps })
}

/// The job of the run in a folder.
pub(crate) fn of_folder(folder: &Path) -> Result<Job, Failure> {
    let path = RunFiles::new(folder).job_path();
    let job = parse_job_of_any_release(&io::read(&path)?);
    job.map_err(|e| Failure::Input(format!("{}: {e}", path.display())))
}

/// The job as its run in `folder` began, and the steps that `file` asks for; `file` itself where no run has begun there.
pub(crate) fn of_run(file: JobFile, folder: &Path) -> Result<JobFile, Failure> {
    let path = RunFiles::new(folder).job_path();
    if !path.exists() {
        return Ok(file);
    }
    let text = io::read(&path)?;
    let other = |error: String| {
        let folder = folder.display();
        Failure::Input(format!(
            "the run folder {folder} holds another job's run; choose another --run-dir: {error}"
        ))
    };
    let steps = steps_of_run(&text, &file.text).map_err(|e| other(e.to_string()))?;
    let job = parse_job_of_any_release(&text).map_err(|e| other(e.to_string()))?;
    Ok(JobFile { job, text, steps })
}

/// Opens the job's datasets and checks that their tokens fit the model's vocabulary. Returns their fingerprint.
pub(crate) fn check_data(job: &Job) -> Result<String, Failure> {
    let bad = |error: varuna_dataset::DataError| Failure::Input(format!("spec.data: {error}"));
    let shape = SampleShape {
        length: job.model.sample_length(),
        records: job.model.reads_records(),
    };
    let data = TrainingData::open(&job.data, shape, job.training.seed).map_err(bad)?;
    data.check_vocabulary(job.model.vocabulary_size()).map_err(bad)?;
    Ok(data.fingerprint())
}

/// Checks that the folder of a user-defined model exists and is the one that the job names: workers on this machine read it at the same
/// path.
pub(crate) fn check_model(job: &Job) -> Result<(), Failure> {
    let Model::Exported(model) = &job.model else {
        return Ok(());
    };
    let file = Path::new(&model.path).join("manifest.json");
    let shown = file.display();
    let bytes = std::fs::read(&file)
        .map_err(|e| Failure::Input(format!("spec.model.exported.path: cannot read {shown}: {e}")))?;
    let found = sha256(&bytes);
    if found == model.digest {
        return Ok(());
    }
    Err(Failure::Input(format!(
        "spec.model.exported.digest: {} — {found}, the SHA-256 of {shown}: the model was exported anew, so take its model.yaml into the job file",
        model.digest
    )))
}

/// Opens the job's checkpoint location, if it has one: checks that it answers and that its newest checkpoint is of the job's
/// model, and claims it for the run in `folder`.
pub(crate) async fn checkpoints(
    job: &Job,
    fingerprint: &str,
    folder: &Path,
) -> Result<Option<Checkpointing>, Failure> {
    let bad = |error: String| Failure::Input(format!("spec.checkpoint.uri: {error}"));
    let store = Store::of_job(job, fingerprint).map_err(|e| bad(e.to_string()))?;
    let (Some(store), Some(settings)) = (store, &job.checkpoint) else {
        return Ok(None);
    };
    let listed = store.location().list_within(STORE_TIMEOUT).await;
    let listed = listed.map_err(|e| bad(format!("{}: {e}", settings.uri)))?;
    if let Some(newest) = listed.iter().rev().find(|l| l.is_usable())
        && let Err(error @ CheckpointError::Unsuitable { .. }) = store.check(newest).await
    {
        // A damaged checkpoint is no error here: the run resumes from an older one.
        return Err(bad(error.to_string()));
    }
    if !listed.iter().any(Listed::is_usable) {
        origin(&store).await?;
    }
    let run = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let claim = claim_of_this_process(run.display().to_string());
    let ownership = store.location().claim(claim.clone(), claimant_has_ended).await;
    let ownership = ownership.map_err(|error| match error {
        CheckpointError::Owned { .. } => {
            Failure::Busy(format!("spec.checkpoint.uri: {}: {error}", settings.uri))
        }
        error => bad(error.to_string()),
    })?;
    Ok(Some(Checkpointing {
        store,
        keep: settings.keep as usize,
        claim,
        ownership: Some(ownership),
        event_files: false,
    }))
}

/// If the job begins with another job's checkpoint, checks that this checkpoint exists.
async fn origin(store: &Store) -> Result<(), Failure> {
    let bad = |error: String| Failure::Input(format!("spec.checkpoint.from: {error}"));
    let found = tokio::time::timeout(STORE_TIMEOUT, store.origin()).await;
    let found = found.map_err(|_| bad(format!("no answer within {} s", STORE_TIMEOUT.as_secs())))?;
    found.map(drop).map_err(|error| bad(error.to_string()))
}
