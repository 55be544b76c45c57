//! The conditions of a job.

use super::decision::{JobOutcome, time};
use super::job_outcome::wants_more_steps;
use super::observed::{Observed, ObservedRun};
use super::queue::{self, AdmissionState};
use super::suspend::would_lose_state;
use varuna_api::crd::{Condition, Status};
use varuna_api::{ConditionType, JobPhase, Reason};

/// One condition: its type, whether it is true, its reason and its message.
type Statement = (ConditionType, bool, Reason, String);

fn statement(kind: ConditionType, is: bool, reason: Reason, message: impl Into<String>) -> Statement {
    (kind, is, reason, message.into())
}

/// All conditions, each with the time at which it came to its present status. `status`: all the rest of the job's status.
pub(super) fn conditions(
    observed: &Observed,
    outcome: &JobOutcome,
    phase: JobPhase,
    problem: Option<(Reason, String)>,
    status: &Status,
) -> Vec<Condition> {
    let degraded = match problem {
        Some((reason, message)) => statement(ConditionType::Degraded, true, reason, message),
        None => statement(
            ConditionType::Degraded,
            false,
            Reason::AllIsWell,
            "nothing is wrong with the pods",
        ),
    };
    let condition =
        |(kind, is, reason, message): Statement| condition(observed, kind, is, reason.as_str(), message);
    let end = |stated: Statement| {
        let before = end_before(observed, outcome, stated.0);
        before.unwrap_or_else(|| condition(stated))
    };
    let others = [
        condition(accepted(observed, outcome)),
        condition(planned(observed.run.as_ref())),
        training(observed, phase),
        condition(degraded),
        condition(checkpoint_stale(observed, status)),
        condition(suspended(observed, outcome)),
        end(complete(observed, outcome)),
        end(failed(outcome)),
    ];
    others.into_iter().chain(admitted(observed)).collect()
}

/// A spec that cannot be read is reported as wrong, even if the job has ended.
fn accepted(observed: &Observed, outcome: &JobOutcome) -> Statement {
    let kind = ConditionType::Accepted;
    match (&observed.job.spec, outcome) {
        (Err(why), _) => statement(kind, false, Reason::InvalidSpec, why),
        (_, JobOutcome::Refuse(reason, why)) => statement(kind, false, *reason, why),
        _ => statement(kind, true, Reason::ValidSpec, "the spec is valid"),
    }
}

/// The end of a job as it was known, while its spec cannot be read: it was not checked whether the job has to continue.
fn end_before(observed: &Observed, outcome: &JobOutcome, kind: ConditionType) -> Option<Condition> {
    let is_unread = matches!(outcome, JobOutcome::Refuse(Reason::InvalidSpec, _));
    let known = observed.job.status.if_true(kind);
    known.filter(|_| is_unread).cloned()
}

fn complete(observed: &Observed, outcome: &JobOutcome) -> Statement {
    let (is, reason, message) = match outcome {
        JobOutcome::Complete
            if observed
                .job
                .spec
                .as_ref()
                .is_ok_and(|job| wants_more_steps(observed, job)) =>
        {
            (
                true,
                Reason::LastStep,
                "the last step is committed; spec.training.steps asks for more, but no checkpoint holds the job's state: make a new job",
            )
        }
        JobOutcome::Complete => (true, Reason::LastStep, "the last step is committed"),
        _ => (false, Reason::StepsLeft, "steps are left to train"),
    };
    statement(ConditionType::Complete, is, reason, message)
}

fn failed(outcome: &JobOutcome) -> Statement {
    let kind = ConditionType::Failed;
    match outcome {
        JobOutcome::Fail(reason, why) => statement(kind, true, *reason, why),
        _ => statement(kind, false, Reason::NotFailed, "the job has not failed"),
    }
}

/// Only for a job with a queue. While Kueue's objects are being listed, the last condition stays.
fn admitted(observed: &Observed) -> Option<Condition> {
    let kind = ConditionType::Admitted;
    let job = observed.job.spec.as_ref().ok()?;
    let (is, reason, message) = match queue::admission_state(observed, job) {
        AdmissionState::Free => return None,
        AdmissionState::Admitted(workload) => {
            (true, Reason::QuotaReserved, queue::admitted(observed, workload))
        }
        AdmissionState::Waits(reason, why) => (false, reason, why),
        AdmissionState::Unknown(why) => match observed.job.status.condition(kind) {
            Some(known) => return Some(known.clone()),
            None => (false, Reason::WaitsForQuota, why),
        },
    };
    Some(condition(observed, kind, is, reason.as_str(), message))
}

fn planned(run: Option<&ObservedRun>) -> Statement {
    let kind = ConditionType::Planned;
    let Some(run) = run else {
        return statement(kind, false, Reason::NoCoordinator, "no coordinator runs");
    };
    let Some(snapshot) = run.snapshot.as_ref().filter(|s| s.run.generation.0 > 0) else {
        return statement(kind, false, Reason::NoPlan, "no plan yet");
    };
    let message = format!(
        "plan {} uses {} of {} workers as {}",
        run.generation(),
        snapshot.run.members,
        run.workers(true).count(),
        snapshot.run.plan.as_deref().unwrap_or_default()
    );
    statement(kind, true, Reason::PlanInForce, message)
}

/// The only condition whose reason is the phase.
fn training(observed: &Observed, phase: JobPhase) -> Condition {
    let trains = phase == JobPhase::Training;
    let message = if trains {
        "steps are committed".to_owned()
    } else {
        let steps = observed.run.as_ref().map_or(0, ObservedRun::step);
        format!("the job is not training: {phase}, {steps} steps so far")
    };
    condition(observed, ConditionType::Training, trains, phase.as_str(), message)
}

fn checkpoint_stale(observed: &Observed, status: &Status) -> Statement {
    let kind = ConditionType::CheckpointStale;
    let settings = observed
        .job
        .spec
        .as_ref()
        .ok()
        .and_then(|j| j.checkpoint.as_ref());
    let (Some(settings), Some(checkpoint)) = (settings, &status.checkpoint) else {
        return statement(kind, false, Reason::NoCheckpoints, "no checkpoint is expected");
    };
    let behind = checkpoint.steps_behind.unwrap_or(0);
    let step = checkpoint.newest_step;
    let newest = step.map_or("none yet".to_owned(), |s| format!("of step {s}"));
    if let Some(why) = &checkpoint.failing {
        let message = format!(
            "{} cannot be used ({why}); training goes on, the newest checkpoint is {newest}",
            settings.uri
        );
        return statement(kind, true, Reason::StoreFails, message);
    }
    // Whether it is too old depends on intervals of steps and of seconds: the coordinator decides it.
    let reported = observed.run.as_ref().and_then(|r| r.checkpoints.as_ref());
    if reported.is_some_and(|c| c.stale) {
        let message = format!("the newest checkpoint is {newest}, {behind} steps behind");
        return statement(kind, true, Reason::NoneForLong, message);
    }
    statement(
        kind,
        false,
        Reason::Fresh,
        format!("the newest checkpoint is {newest}"),
    )
}

fn suspended(observed: &Observed, outcome: &JobOutcome) -> Statement {
    let stopped = observed.run.as_ref().is_none_or(|r| r.ended.is_some());
    let job = observed.job.spec.as_ref().ok();
    let would_lose = job.is_some_and(|job| would_lose_state(observed, job));
    let saves = job.is_some_and(|job| job.checkpoint.is_some());
    let (is, reason, message) = match (outcome, stopped) {
        (JobOutcome::Run, false) if would_lose && saves => (
            false,
            Reason::WouldLoseState,
            "the job goes on: no checkpoint of it is complete, and its workers alone hold what it has trained; it is suspended when one is, or at once \
             with spec.allowStateLoss set to true",
        ),
        (JobOutcome::Run, false) if would_lose => (
            false,
            Reason::WouldLoseState,
            "the job goes on: it saves no checkpoints, and its workers alone hold what it has trained; set spec.allowStateLoss to true \
             to suspend it all the same",
        ),
        (JobOutcome::SaveThenSuspend, _) => (
            false,
            Reason::Saving,
            "the run goes on until a checkpoint holds what it has trained",
        ),
        (JobOutcome::Suspend, true) => (
            true,
            Reason::SuspendIsTrue,
            "the job is suspended; set spec.suspend to false to go on",
        ),
        (JobOutcome::Suspend | JobOutcome::Queue, false) => {
            (false, Reason::Stopping, "the run is being stopped")
        }
        _ => (false, Reason::SuspendIsFalse, "the job is not suspended"),
    };
    statement(ConditionType::Suspended, is, reason, message)
}

fn condition(observed: &Observed, kind: ConditionType, is: bool, reason: &str, message: String) -> Condition {
    let status = if is { "True" } else { "False" };
    let before = observed.job.status.condition(kind);
    let since = before
        .filter(|c| c.status == status)
        .map(|c| c.last_transition_time.clone());
    Condition {
        type_: kind.to_string(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or_else(|| time(observed.now)),
        observed_generation: Some(observed.job.generation),
    }
}
