//! Checkpoints outside the regular intervals: those that a user asks for, and that of a suspension.
//!
//! A suspension waits for a checkpoint, so that few steps are trained again. It does not wait for ever.

use super::decision::time;
use super::observed::{Observed, ObservedRun, whole};
use varuna_api::Job;
use varuna_api::crd::Suspending;
use varuna_protocol::coordinator::RunMode;

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
        step: observed.run.as_ref().map_or(0, |run| known_step(observed, run)),
    })
}

/// The step that the run has come to. During a pause its coordinator may not know it: one that has just taken over has to hear from the workers first.
fn known_step(observed: &Observed, run: &ObservedRun) -> i64 {
    let before = observed.job.status.step.filter(|_| !run.is_training());
    run.step().max(before.unwrap_or(0))
}

/// Whether a suspension would lose everything that the job has trained, because only its workers hold it. If the job saves checkpoints, the
/// suspension first waits for one.
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

/// Whether the run of a suspended job continues until it has made a checkpoint, which it does at the next step. If the store has not answered
/// this coordinator yet, the checkpoints in the status count.
pub(super) fn waits_for_checkpoint(observed: &Observed, job: &Job) -> bool {
    let run = observed.run.as_ref().filter(|run| run.ended.is_none());
    let (Some(_), Some(run)) = (&job.checkpoint, run) else {
        return false;
    };
    let fails = run.checkpoints.as_ref().is_some_and(|c| c.failing.is_some());
    let before = observed.job.status.checkpoint.as_ref();
    let newest = match &run.checkpoints {
        Some(saved) => saved.newest_step.map(whole),
        None => before.and_then(|saved| saved.newest_step),
    };
    let wait = suspending(observed);
    let saved_enough = newest.is_some_and(|step| step >= wait.step);
    let waited = observed.now - wait.since.0.as_second();
    trains_soon(observed, run) && !fails && !saved_enough && waited < WAIT_MAX_SECONDS
}

/// Whether a run commits its next step soon: it trains, or pauses for a recovery or another coordinator. A run that waits for workers may
/// wait for long, and a run that pauses before its first step has nothing to save.
fn trains_soon(observed: &Observed, run: &ObservedRun) -> bool {
    let is_short = |mode: RunMode| {
        matches!(
            mode,
            RunMode::Starting
                | RunMode::Settling
                | RunMode::Launching
                | RunMode::Recovering
                | RunMode::Persisting
        )
    };
    // One that has not reported yet has just begun to.
    let pauses = run.snapshot.as_ref().is_none_or(|s| is_short(s.run.mode));
    run.is_training() || (pauses && known_step(observed, run) > 0)
}
