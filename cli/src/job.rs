//! Reads a job file and checks it, its data and its checkpoint location before any worker starts.

use crate::failure::Failure;
use crate::io;
use std::path::Path;
use std::time::Duration;
use varuna_api::{Job, parse_job, parse_job_of_any_release, sha256, steps_of_run};
use varuna_checkpoint::{CheckpointError, Claim, LEASE, Listed, Ownership, Store, answer_within};
use varuna_coordinator::Checkpointing;
use varuna_coordinator::location_lease::{claim_of_this_process, claimant_has_ended};
use varuna_dataset::{DataError, SampleShape, TrainingData};
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

/// The job as its run in `folder` began, and the steps that `file` asks for; `file` itself where no run has begun there. A folder with other
/// files is refused.
pub(crate) fn of_run(file: JobFile, folder: &Path) -> Result<JobFile, Failure> {
    let files = RunFiles::new(folder);
    if files.is_foreign() {
        return Err(Failure::Input(format!(
            "--run-dir: {} has files and is no run folder: name a new or an empty folder, or that of an earlier run",
            folder.display()
        )));
    }
    let path = files.job_path();
    if !files.has_begun() || !path.exists() {
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
    let bad = |error: DataError| Failure::Input(format!("{}: {error}", error.field(&job.data)));
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
/// model and data, and claims it for the run in `folder`.
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
    let at_uri = |error: CheckpointError| bad(format!("{}: {error}", settings.uri));
    let listed = listed.map_err(at_uri)?;
    if let Some(newest) = listed.iter().rev().find(|l| l.is_usable()) {
        match check(&store, newest, STORE_TIMEOUT).await {
            Err(error @ (CheckpointError::Unsuitable { .. } | CheckpointError::OtherData { .. })) => {
                return Err(bad(error.to_string()));
            }
            Err(error @ CheckpointError::NoAnswer { .. }) => return Err(at_uri(error)),
            // A damaged checkpoint is no error here: the run resumes from an older one.
            _ => {}
        }
    }
    if !listed.iter().any(Listed::is_usable) {
        origin(&store).await?;
    }
    let run = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let claim = claim_of_this_process(run.display().to_string());
    // As long as a coordinator that trains waits for it: a claim is several requests, one after another.
    let ownership = own(&store, claim.clone(), LEASE).await;
    let ownership = ownership.map_err(|error| match error {
        CheckpointError::Owned { .. } => {
            Failure::Busy(format!("spec.checkpoint.uri: {}: {error}", settings.uri))
        }
        error => at_uri(error),
    })?;
    Ok(Some(Checkpointing {
        store,
        keep: settings.keep as usize,
        claim,
        ownership: Some(ownership),
        event_files: false,
    }))
}

/// Whether the job can resume from a checkpoint.
async fn check(store: &Store, listed: &Listed, limit: Duration) -> Result<(), CheckpointError> {
    answer_within(limit, store.check(listed)).await.map(drop)
}

/// Claims the location.
async fn own(store: &Store, claim: Claim, limit: Duration) -> Result<Ownership, CheckpointError> {
    answer_within(limit, store.location().claim(claim, claimant_has_ended)).await
}

/// If the job begins with another job's checkpoint, checks that this checkpoint exists.
async fn origin(store: &Store) -> Result<(), Failure> {
    let bad = |error: String| Failure::Input(format!("spec.checkpoint.from: {error}"));
    let found = tokio::time::timeout(STORE_TIMEOUT, store.origin()).await;
    let found = found.map_err(|_| bad(format!("no answer within {} s", STORE_TIMEOUT.as_secs())))?;
    found.map(drop).map_err(|error| bad(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::net::TcpListener;
    use varuna_checkpoint::{Facts, Location};
    use varuna_plan::{Moments, StateId};

    /// A store on this port.
    fn store_at(port: &TcpListener) -> Store {
        let endpoint = format!("http://{}", port.local_addr().unwrap());
        let settings = [
            ("aws_endpoint", endpoint.as_str()),
            ("aws_allow_http", "true"),
            ("aws_access_key_id", "id"),
            ("aws_secret_access_key", "secret"),
            ("aws_region", "us-east-1"),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let job = parse_job(include_str!("../../examples/demo.yaml")).unwrap();
        let facts = Facts {
            job: job.name.clone(),
            model: serde_json::Value::Null,
            training_hash: String::new(),
            seed: 1,
            global_batch_size: 8,
            data_fingerprint: String::new(),
            moments: Moments::Adam,
        };
        let location = Location::open_with("s3://bucket/runs", settings).unwrap();
        Store::new(location, job.layout(), facts)
    }

    fn file(text: &str) -> JobFile {
        let job = parse_job(text).unwrap();
        JobFile {
            steps: job.training.steps,
            job,
            text: text.to_owned(),
        }
    }

    #[test]
    fn only_a_run_that_began_ties_its_folder_to_its_job() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path();
        let files = RunFiles::new(folder);
        let text = include_str!("../../examples/demo.yaml");
        let other = text.replace("name: demo", "name: other");
        assert_ne!(text, other);
        for name in ["lock", "job.yaml"] {
            std::fs::write(folder.join(name), &other).unwrap();
        }
        assert_eq!(of_run(file(text), folder).unwrap().job.name, "demo");
        std::fs::write(files.record_path(), "{}").unwrap();
        let why = of_run(file(text), folder).err().unwrap().to_string();
        assert!(why.contains("holds another job's run"), "{why}");
    }

    #[test]
    fn a_folder_with_other_files_is_refused_as_run_folder() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path();
        let text = include_str!("../../examples/demo.yaml");
        assert!(of_run(file(text), &folder.join("new")).is_ok());
        std::fs::create_dir(folder.join("lost+found")).unwrap();
        assert!(of_run(file(text), folder).is_ok(), "a disk of its own");
        std::fs::write(folder.join("job.yaml"), text).unwrap();
        let why = of_run(file(text), folder).err().unwrap().to_string();
        assert!(why.contains("has files and is no run folder"), "{why}");
        std::fs::write(RunFiles::new(folder).private_key_path(), "key").unwrap();
        assert!(of_run(file(text), folder).is_ok(), "its key was there before");
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_is_not_waited_for() {
        // It accepts connections, and nobody reads them.
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let store = store_at(&port);
        let limit = Duration::from_millis(50);
        let newest = Listed {
            id: StateId::INITIAL,
            manifest: true,
            marked_damaged: false,
            files: BTreeMap::new(),
        };
        let checked = check(&store, &newest, limit).await;
        assert!(
            matches!(checked, Err(CheckpointError::NoAnswer { .. })),
            "{checked:?}"
        );
        let owned = own(&store, claim_of_this_process("a-run".to_owned()), limit).await;
        assert!(
            matches!(owned, Err(CheckpointError::NoAnswer { .. })),
            "{owned:?}"
        );
    }
}
