//! Two jobs on one place of checkpoints: the second is refused, and tried again now and then.

use super::say;
use super::seen::{Ending, Observed};
use varuna_api::Job;

/// The reason of a job whose place of checkpoints is another run's.
pub(super) const TAKEN: &str = "CheckpointsTaken";
/// Such a job is tried again after so many seconds: the other one may have ended.
const TAKEN_SECONDS: i64 = 300;

/// Whether another run writes to the job's place of checkpoints, in words.
pub(super) fn taken(seen: &Observed, job: &Job) -> Option<String> {
    if let Some(Ending::Taken(run)) = seen.run.as_ref().and_then(|r| r.ended.as_ref()) {
        let uri = job.checkpoint.as_ref().map_or("", |c| c.uri.as_str());
        return Some(format!(
            "spec.checkpoint.uri {uri} is written by {run}: give this job another place, or end that run; tried again after \
             {} minutes",
            TAKEN_SECONDS / 60
        ));
    }
    let found = seen
        .job
        .status
        .conditions
        .iter()
        .find(|c| c.kind == "Accepted" && c.status == "False" && c.reason == TAKEN)?;
    let since = say::parse_time(&found.last_transition_time).unwrap_or(0);
    let present = found.observed_generation == Some(seen.job.generation);
    (present && seen.now - since < TAKEN_SECONDS).then(|| found.message.clone())
}
