//! What is reported of a job once a decision was carried out: its status, its conditions, its Events.

use super::conditions::conditions;
use super::coordinator;
use super::decision::{CoordinatorGoal, Decision, JobOutcome, Report, time};
use super::events::{events, newest_message};
use super::failed_parts::{Failure, JobPart};
use super::job_progress::{
    left_out, note_history, note_progress, note_recoveries, spare_copies, stage_to_rank_map,
};
use super::objects;
use super::observed::{Observed, ObservedPod, ObservedRun, whole};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use super::pods::newest_pod;
use super::problems::{failure_message, problem};
use super::queue::{known_in, waits_for};
use super::rollout::rollout_status;
use super::start_limit::given_up_in;
use super::suspend::suspending;
use super::time_limits::{deleted_in, note_times, seconds_left};
use super::worker_notices::seconds_until_notice;
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::crd::{CheckpointStatus, PlanStatus, Status, WorkerGroupStatus};
use varuna_api::{ConditionType, Job, JobPhase, PodGroup, Reason};
use varuna_protocol::coordinator::RunMode;

/// Reports on a job. `failures`: what could not be carried out, the decision included.
#[must_use]
pub fn report(observed: &Observed, decision: &Decision<'_>, failures: &[Failure]) -> Report {
    let mut status = progress(observed, decision, failures);
    if observed.job.deleting {
        return Report {
            status,
            events: vec![],
            reconcile_in: None,
        };
    }
    let run = observed.run.as_ref();
    let (phase, message) = phase_and_message(observed, decision, failures);
    let problem = coordinator::cannot_start(observed).or_else(|| problem(&decision.pods, failures));
    status.observed_generation = Some(observed.job.generation);
    status.phase = Some(phase);
    let rollout_waits = decision.rollout_waits.as_ref();
    status.message = message
        .or_else(|| problem.as_ref().map(|(_, message)| message.clone()))
        .or_else(|| rollout_waits.filter(|_| phase == JobPhase::Training).cloned());
    status.selector = Some(objects::worker_selector(&observed.job.name));
    let job = observed.job.spec.as_ref();
    workers(run, decision, job.ok(), &mut status);
    status.rollout = job
        .ok()
        .and_then(|job| rollout_status(observed, job, &decision.pods, gives_up_a_node(decision)));
    if let Some(run) = run {
        status.steps = run.last_step().or(status.steps);
        plan(run, &mut status);
        checkpoint(run, &mut status);
        note_recoveries(run, &mut status);
    }
    note_times(observed, &decision.outcome, &mut status);
    let lost = steps_lost(observed, decision);
    note_progress(observed, lost, &mut status);
    status.conditions = conditions(observed, &decision.outcome, phase, problem, &status);
    let retries = failures.iter().map(|f| f.retry_in);
    let runs = matches!(decision.outcome, JobOutcome::Run | JobOutcome::SaveThenSuspend);
    let deadline = job
        .ok()
        .filter(|_| runs)
        .and_then(|job| seconds_left(observed, job));
    // One that is due is carried out, or tried again as all else.
    let deletion = deleted_in(observed, &decision.outcome, &status).filter(|seconds| *seconds > 0);
    let silence = coordinator::reports_in(observed, &status);
    let events = events(observed, decision, failures, &status);
    note_history(observed, decision, &events, lost, &mut status);
    Report {
        events,
        status,
        reconcile_in: retries
            .chain(decision.replace_in)
            .chain(deadline)
            .chain(deletion)
            .chain(seconds_until_notice(observed))
            .chain(known_in(observed))
            .chain(silence)
            .chain(given_up_in(observed))
            .min(),
    }
}

/// What the job is doing, and what it waits for or why it does not run.
fn phase_and_message(
    observed: &Observed,
    decision: &Decision<'_>,
    failures: &[Failure],
) -> (JobPhase, Option<String>) {
    match &decision.outcome {
        JobOutcome::Refuse(_, why) if decision.coordinator == CoordinatorGoal::Run => {
            (phase_of(observed), Some(why.clone()))
        }
        JobOutcome::Refuse(reason, why) => (phase_of_refused(observed, *reason), Some(why.clone())),
        JobOutcome::Suspend => (JobPhase::Suspended, None),
        JobOutcome::Queue => (JobPhase::Queued, waits_for(observed)),
        JobOutcome::Complete => (JobPhase::Complete, None),
        JobOutcome::Fail(_, why) => (JobPhase::Failed, Some(why.clone())),
        JobOutcome::Run | JobOutcome::SaveThenSuspend => match phase_of(observed) {
            JobPhase::Training => (JobPhase::Training, None),
            phase => (phase, waiting_for(observed, decision, failures)),
        },
    }
}

/// The last status, updated with what is counted from one reconciliation to the next.
fn progress(observed: &Observed, decision: &Decision<'_>, failures: &[Failure]) -> Status {
    let before = &observed.job.status;
    Status {
        steps_lost: Some(before.steps_lost.unwrap_or(0) + steps_lost(observed, decision)),
        step: decision.progress.step,
        progressed_at: decision.progress.at.map(time),
        recent_failures: decision.recent_failures.clone(),
        crash_moments: decision.crash_moments.clone(),
        suspending: match decision.outcome {
            JobOutcome::SaveThenSuspend => Some(suspending(observed)),
            JobOutcome::Suspend => before.suspending.clone(),
            // The wait for a checkpoint is over, and does not begin again.
            JobOutcome::Run if observed.job.spec.as_ref().is_ok_and(|job| job.suspend) => {
                before.suspending.clone()
            }
            // Until the run has ended: the wait for its checkpoint is over.
            JobOutcome::Queue => before.suspending.clone().filter(|_| observed.run.is_some()),
            _ => None,
        },
        last_message: newest_message(observed).max(before.last_message),
        save_ordered: observed
            .orders
            .as_ref()
            .and_then(|o| o.save_at.clone())
            .or_else(|| before.save_ordered.clone()),
        // Numbers of pods that were not created are used later; those of pods that were are seen on the pods.
        newest_pod: if failures
            .iter()
            .any(|f| f.retry_in > 0 && f.part != JobPart::Policies)
        {
            newest_pod(observed)
        } else {
            decision.newest_pod
        },
        ..before.clone()
    }
}

/// Whether pods that run, and hold something, are replaced for a change of their template.
fn gives_up_a_node(decision: &Decision<'_>) -> bool {
    let deleted = decision.delete.iter();
    let rolled = deleted.filter(|d| d.event == Some(Reason::RollingUpdate));
    let rolled: BTreeSet<&str> = rolled.map(|d| d.name.as_str()).collect();
    let is_given_up = |p: &JudgedPod<'_>| {
        let holds = p.verdict == PodVerdict::Running && !decision.workers.holds_nothing(p.pod);
        holds && rolled.contains(p.pod.name.as_str())
    };
    decision.pods.iter().any(is_given_up)
}

/// How many workers there are, in all and by group. These are workers of running pods that the coordinator reports as attached, since a
/// process may have ended in a pod with several. Before a coordinator has heard from its workers, all of them count.
fn workers(run: Option<&ObservedRun>, decision: &Decision<'_>, job: Option<&Job>, status: &mut Status) {
    let attached = run.filter(|run| !run.is_settling()).map(|run| {
        let mut by_pod: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in run.workers(true) {
            *by_pod.entry(pod).or_default() += 1;
        }
        by_pod
    });
    // A process that was started again attaches before the one before it is given up.
    let of_pod = |pod: &ObservedPod, gpus: usize| {
        let attached = attached.as_ref().map(|a| a.get(pod.name.as_str()).copied());
        attached.map_or(gpus, |attached| attached.unwrap_or(0).min(gpus))
    };
    let running = || decision.pods.iter().filter(|p| p.verdict == PodVerdict::Running);
    let Some(job) = job else {
        // How many workers a pod is to have is in the spec, which cannot be read.
        status.workers = whole(running().map(|p| of_pod(p.pod, 1)).sum::<usize>());
        return;
    };
    let groups = job.pod_groups();
    let count = |group: &PodGroup<'_>| {
        let pods = running().filter(|p| p.pod.group.as_deref() == group.name);
        let workers = pods.map(|p| of_pod(p.pod, group.workers.gpus_per_pod as usize));
        whole(workers.sum::<usize>())
    };
    status.workers = groups.iter().map(count).sum();
    let of_group = |group: &PodGroup<'_>| {
        Some(WorkerGroupStatus {
            name: group.name?.to_owned(),
            workers: count(group),
            wanted: i64::from(group.pods) * i64::from(group.workers.gpus_per_pod),
        })
    };
    status.worker_groups = groups.iter().filter_map(of_group).collect();
}

/// The number of steps by which the job has gone back since the last report.
fn steps_lost(observed: &Observed, decision: &Decision<'_>) -> i64 {
    let steps = observed.job.status.step.zip(decision.progress.step);
    steps.map_or(0, |(before, now)| (before - now).max(0))
}

/// The phase of a job that is refused. One that has failed, whose spec cannot be read now, has failed still.
fn phase_of_refused(observed: &Observed, reason: Reason) -> JobPhase {
    let failed = observed.job.status.if_true(ConditionType::Failed);
    match failed {
        Some(_) if reason == Reason::InvalidSpec => JobPhase::Failed,
        _ => JobPhase::Refused,
    }
}

/// The phase of a job that runs, by its coordinator.
fn phase_of(observed: &Observed) -> JobPhase {
    let Some(run) = &observed.run else {
        return JobPhase::Pending;
    };
    match run.snapshot.as_ref().map(|s| s.run.mode) {
        Some(RunMode::Training | RunMode::Changing) => JobPhase::Training,
        Some(RunMode::Launching | RunMode::Recovering | RunMode::Persisting) if run.step() > 0 => {
            JobPhase::Recovering
        }
        Some(RunMode::Waiting) => JobPhase::Waiting,
        Some(RunMode::Done) => JobPhase::Complete,
        // Of a later release, whose steps and workers are known all the same.
        Some(RunMode::Unknown) => observed.job.status.phase.unwrap_or(JobPhase::Starting),
        _ => JobPhase::Starting,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "milliseconds of a step are far below 2^53"
)]
fn plan(run: &ObservedRun, status: &mut Status) {
    let Some(snapshot) = run.snapshot.as_ref().filter(|_| run.generation() > 0) else {
        return;
    };
    if status
        .plan
        .as_ref()
        .is_some_and(|p| p.generation < run.generation())
    {
        let before = status.reconfigurations.unwrap_or(0);
        status.reconfigurations = Some(before.saturating_add(1));
    }
    let attached = run.workers(true).count();
    status.plan = Some(PlanStatus {
        generation: run.generation(),
        shape: snapshot.run.plan.clone().unwrap_or_default(),
        rank_map: stage_to_rank_map(snapshot),
        workers: whole(snapshot.run.members),
        idle: whole(attached.saturating_sub(snapshot.run.members)),
        left_out: left_out(snapshot),
        spare_copies: spare_copies(snapshot),
        predicted_step_ms: snapshot.run.predicted_ms.map(|ms| ms.round() as i64),
        observed_step_ms: snapshot.run.observed_ms.map(|ms| ms.round() as i64),
    });
    // A coordinator that has published a step says how many were skipped. The step may have no loss: that of an earlier one would not be its own.
    if run.skipped_steps.is_some() || run.loss.is_some() {
        status.loss = run.loss.map(|loss| format!("{loss:.4}"));
    }
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    status.skipped_steps = run.skipped_steps.map(number).or(status.skipped_steps);
    status.loss_scale = run.loss_scale.map(number).or(status.loss_scale);
}

fn checkpoint(run: &ObservedRun, status: &mut Status) {
    let Some(saved) = &run.checkpoints else {
        return;
    };
    let known = status.checkpoint.take().unwrap_or_default();
    let newest = saved.newest_step.map(whole).or(known.newest_step);
    // Another coordinator sees for the first time what is old.
    let is_known = newest == known.newest_step && known.newest_at.is_some();
    let newest_at = if is_known {
        known.newest_at
    } else {
        saved.newest_at.clone()
    };
    status.checkpoint = Some(CheckpointStatus {
        newest_step: newest,
        newest_at,
        steps_behind: status.step.map(|step| (step - newest.unwrap_or(0)).max(0)),
        failing: saved.failing.clone(),
    });
}

/// What a job that does not train waits for.
fn waiting_for(observed: &Observed, decision: &Decision<'_>, failures: &[Failure]) -> Option<String> {
    let job = observed.job.spec.as_ref().ok()?;
    let run = observed.run.as_ref();
    let attached = run.map_or(0, |r| r.workers(true).count());
    let need = job.elasticity.min_workers as usize;
    let too_few = |why: &str| Some(format!("{attached} workers of at least {need} are there; {why}"));
    if let (Some(failure), true) = (failures.first(), attached < need) {
        return too_few(&failure_message(failure).1);
    }
    if let (Some((_, why)), true) = (coordinator::cannot_start(observed), attached < need) {
        return too_few(&why);
    }
    let store_fails = run.and_then(|r| r.checkpoints.as_ref()?.failing.as_ref());
    if let Some(why) = store_fails
        && run.is_some_and(|r| r.generation() == 0)
    {
        return Some(format!(
            "whether there is a checkpoint to resume from is not known: {why}"
        ));
    }
    if attached >= need {
        return None;
    }
    let why = decision.pods.iter().find_map(|p| match &p.verdict {
        PodVerdict::CannotStart(reason, message) => Some(format!("a pod says: {reason}: {message}")),
        PodVerdict::Pending(Some(message)) => Some(format!("a pod says: {message}")),
        _ => None,
    });
    too_few(why.as_deref().unwrap_or("its pods start"))
}
