//! A job file with its data, checked as far as possible before any worker starts.

use crate::failure::Failure;
use std::path::Path;
use varuna_api::{Job, parse_job};
use varuna_data::TokenDataset;

/// A valid job and the text it came from.
pub(crate) struct JobFile {
    pub(crate) job: Job,
    pub(crate) text: String,
}

/// Reads and checks a job file.
pub(crate) fn read(path: &Path) -> Result<JobFile, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::Input(format!("cannot read the job file {}: {e}", path.display())))?;
    let job = parse_job(&text).map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
    Ok(JobFile { job, text })
}

/// Opens the job's dataset and checks that the model can take it; returns its fingerprint.
pub(crate) fn check_data(job: &Job) -> Result<String, Failure> {
    let bad =
        |error: varuna_data::DataError| Failure::Input(format!("spec.data.path {}: {error}", job.data.path));
    let data = TokenDataset::open(
        Path::new(&job.data.path),
        job.model.sequence_length,
        job.data.validation_fraction,
        job.training.seed,
    )
    .map_err(bad)?;
    data.check_vocabulary(job.model.vocabulary_size).map_err(bad)?;
    Ok(data.fingerprint())
}
