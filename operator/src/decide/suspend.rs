//! Checkpoints out of turn: one that a user asks for, and the one of a suspension.
//!
//! A suspension waits for a checkpoint, so that few steps are trained again; but not for ever.

use super::decision::time;
use super::observed::Observed;
use varuna_api::Job;
use varuna_api::crd::Suspending;

/// The longest wait for the checkpoint.
pub(super) const WAIT_MAX_SECONDS: i64 = 300;

/// The checkpoint that a user asks for, where the job saves any.
pub(super) fn asked_checkpoint(observed: &Observed) -> Option<String> {
    let saves = |job: &Job| job.checkpoint.is_some();
    let saves = observed.job.spec.as_ref().is_ok_and(saves);
    observed.job.save_at.clone().filter(|_| saves)
}

/// Since when a suspension waits for a checkpoint, or began to, and of which step.
pub(super) fn suspending(observed: &Observed) -> Suspending {
    let known = observed.job.status.suspending.clone();
    known.unwrap_or_else(|| Suspending {
        since: time(observed.now),
        step: observed.run.as_ref().map_or(0, |r| r.step()),
    })
}

/// Whether a suspension would throw away all that the job has trained: its workers hold it, and nothing else does. Where checkpoints are saved, one is
/// waited for first.
pub(super) fn would_lose_state(observed: &Observed, job: &Job) -> bool {
    let status = &observed.job.status;
    let trained = observed.run.as_ref().is_some_and(|run| {
        // A coordinator that has just taken over does not know the step yet.
        let known = status.step.filter(|_| run.is_settling());
        run.ended.is_none() && run.step().max(known.unwrap_or(0)) > 0
    });
    let reported = observed.run.as_ref().and_then(|run| run.checkpoints.as_ref());
    let before = status.checkpoint.as_ref().and_then(|saved| saved.newest_step);
    let has_one = job.checkpoint.is_some()
        && (reported.is_some_and(|saved| saved.newest_step.is_some()) || before.is_some());
    job.suspend
        && trained
        && !has_one
        && !waits_for_checkpoint(observed, job)
        && !job.lifecycle.allow_state_loss
}

/// Whether the run of a suspended job goes on until it has made a checkpoint, which it does at the next step.
pub(super) fn waits_for_checkpoint(observed: &Observed, job: &Job) -> bool {
    let (Some(_), Some(run)) = (&job.checkpoint, &observed.run) else {
        return false;
    };
    let Some(saved) = run.checkpoints.as_ref().filter(|s| s.failing.is_none()) else {
        return false;
    };
    let wait = suspending(observed);
    let saved_enough = saved
        .newest_step
        .is_some_and(|n| super::observed::whole(n) >= wait.step);
    let waited = observed.now - wait.since.0.as_second();
    run.ended.is_none() && run.is_training() && !saved_enough && waited < WAIT_MAX_SECONDS
}
