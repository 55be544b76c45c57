//! A job's time limits: how long it may take, and when it is deleted after its end.

use super::decision::{JobOutcome, time};
use super::observed::Observed;
use varuna_api::Job;
use varuna_api::crd::Status;

/// Seconds until the job has taken as long as it may; none where it has no limit or has not started.
pub(super) fn seconds_left(observed: &Observed, job: &Job) -> Option<i64> {
    let limit = i64::try_from(job.lifecycle.active_deadline_seconds?).unwrap_or(i64::MAX);
    let started = observed.job.status.start_time.as_ref()?.0.as_second();
    Some(started.saturating_add(limit) - observed.now)
}

/// Seconds until a job that has ended is deleted, at most 0 if its time has come; none where it is not deleted.
pub(super) fn deleted_in(observed: &Observed, outcome: &JobOutcome, ended: &Status) -> Option<i64> {
    let job = observed.job.spec.as_ref().ok()?;
    let is_over = matches!(outcome, JobOutcome::Complete | JobOutcome::Fail(..));
    let ttl =
        i64::try_from(job.lifecycle.ttl_seconds_after_finished.filter(|_| is_over)?).unwrap_or(i64::MAX);
    let at = ended.completion_time.as_ref()?.0.as_second();
    Some(at.saturating_add(ttl) - observed.now)
}

/// Notes when the job started and ended.
pub(super) fn note_times(observed: &Observed, outcome: &JobOutcome, status: &mut Status) {
    let now = || Some(time(observed.now));
    match outcome {
        JobOutcome::Run | JobOutcome::SaveThenSuspend => {
            status.start_time = status.start_time.take().or_else(now);
            status.completion_time = None;
        }
        JobOutcome::Complete | JobOutcome::Fail(..) => {
            status.completion_time = status.completion_time.take().or_else(now);
        }
        JobOutcome::Refuse(..) | JobOutcome::Suspend | JobOutcome::Queue => {}
    }
}
