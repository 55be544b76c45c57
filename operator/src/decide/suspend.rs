//! A suspension waits for a checkpoint, so that little has to be trained again; not for ever.

use super::say;
use super::seen::Observed;
use varuna_api::Job;
use varuna_api::crd::Suspending;

/// A suspended job waits so long for the checkpoint that it ordered.
pub(super) const SAVING_SECONDS: i64 = 300;

/// Since when a suspension waits for a checkpoint, and of which step.
pub(super) fn suspending(seen: &Observed) -> Suspending {
    let known = seen.job.status.suspending.clone();
    known.unwrap_or_else(|| Suspending {
        since: say::time(seen.now),
        step: seen.run.as_ref().map_or(0, |r| r.step),
    })
}

/// Whether the run of a suspended job goes on for a checkpoint, which it makes at the next step.
pub(super) fn saving(seen: &Observed, job: &Job) -> bool {
    let (Some(_), Some(run)) = (&job.checkpoint, &seen.run) else {
        return false;
    };
    let Some(saved) = run.saved.as_ref().filter(|s| s.failing.is_none()) else {
        return false;
    };
    let trains = run.ended.is_none() && run.mode.is_training();
    let wait = suspending(seen);
    let since = say::parse_time(&wait.since).unwrap_or(0);
    trains && saved.newest.is_none_or(|newest| newest < wait.step) && seen.now - since < SAVING_SECONDS
}
