//! A suspension waits for a checkpoint, so that little has to be trained again; not for ever.

use super::say;
use super::seen::Observed;
use varuna_api::Job;
use varuna_api::crd::Suspending;

/// A suspended job waits so long for a checkpoint: at least, at most.
pub(super) const SAVING_SECONDS: (i64, i64) = (30, 600);

/// Since when a suspension waits for a checkpoint, and of which step.
pub(super) fn suspending(seen: &Observed) -> Suspending {
    let known = seen.job.status.suspending.clone();
    known.unwrap_or_else(|| Suspending {
        since: say::time(seen.now),
        step: seen.run.as_ref().map_or(0, |r| r.step),
    })
}

/// Whether the run of a suspended job goes on for a checkpoint: one that comes will do, and soon.
pub(super) fn saving(seen: &Observed, job: &Job) -> bool {
    let (Some(checkpoint), Some(run)) = (&job.checkpoint, &seen.run) else {
        return false;
    };
    let Some(saved) = run.saved.as_ref().filter(|s| s.failing.is_none()) else {
        return false;
    };
    let trains = run.ended.is_none() && ["training", "changing"].contains(&run.mode.as_str());
    let wait = suspending(seen);
    let interval = i64::try_from(checkpoint.regular_steps()).unwrap_or(i64::MAX);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "milliseconds of a step are far below 2^53"
    )]
    let step_ms = run.observed_ms.map_or(1000, |ms| ms.ceil() as i64);
    // One may have been begun just before, and the next has to be trained and uploaded.
    let limit = interval.saturating_mul(step_ms).saturating_mul(2) / 1000;
    let limit = limit.clamp(SAVING_SECONDS.0, SAVING_SECONDS.1);
    let since = say::parse_time(&wait.since).unwrap_or(0);
    trains && saved.newest.is_none_or(|newest| newest < wait.step) && seen.now - since < limit
}
