//! Two jobs with one checkpoint location: the second is refused, and tried again from time to time.

use super::observed::{Observed, RunEnd};
use varuna_api::{ConditionType, Job, Reason};

/// Seconds after which such a job is tried again: the other one may have ended.
const RETRY_SECONDS: i64 = 300;

/// Whether another run writes to the job's checkpoint location: the message of the refusal.
pub(super) fn taken_by_another_run(observed: &Observed, job: &Job) -> Option<String> {
    if let Some(RunEnd::CheckpointsTaken(run)) = observed.run.as_ref().and_then(|r| r.ended.as_ref()) {
        let uri = job.checkpoint.as_ref().map_or("", |c| c.uri.as_str());
        return Some(format!(
            "spec.checkpoint.uri {uri} is written by {run}: give this job another location, or end that run; tried again after \
             {} minutes",
            RETRY_SECONDS / 60
        ));
    }
    let found = observed.job.status.condition(ConditionType::Accepted)?;
    let refused = found.status == "False" && found.reason == Reason::CheckpointsTaken.as_str();
    let of_this_spec = found.observed_generation == Some(observed.job.generation);
    let recent = observed.now - found.last_transition_time.0.as_second() < RETRY_SECONDS;
    (refused && of_this_spec && recent).then(|| found.message.clone())
}
