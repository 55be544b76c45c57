//! What is decided about the job as a whole: it runs, or is suspended, complete, failed or refused.

use super::checkpoint_location::taken_by_another_run;
use super::decision::{JobOutcome, Progress};
use super::failures::crash_limit;
use super::observed::{ContainerEnd, Observed, ObservedRun, RunEnd};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use super::queue::{AdmissionState, admission_state};
use super::suspend::{waits_for_checkpoint, would_lose_state};
use super::time_limits::seconds_left;
use varuna_api::crd::Condition;
use varuna_api::{ConditionType, Job, Reason};

/// Characters of a crashed worker's last output that are shown.
const LAST_OUTPUT_MAX: usize = 1000;

/// The latest step that is known.
pub(super) fn progress(observed: &Observed) -> Progress {
    let status = &observed.job.status;
    let mut at = status.progressed_at.as_ref().map(|t| t.0.as_second());
    let is_readable = observed.job.spec.is_ok();
    if is_readable && status.if_true(ConditionType::Failed).is_some() && failed(observed).is_none() {
        // The spec of a failed job was changed: earlier crashes do not count any more.
        at = Some(observed.now);
    }
    match &observed.run {
        Some(run) if run.generation() > 0 && status.step.is_none_or(|known| run.step() > known) => Progress {
            step: Some(run.step()),
            at: Some(observed.now),
        },
        // A coordinator that has just taken over does not know the step yet; in training, a lower one is true: the run went
        // back to a checkpoint.
        Some(run) if run.is_training() => Progress {
            step: Some(run.step()),
            at,
        },
        _ => Progress {
            step: status.step,
            at,
        },
    }
}

/// The steps of a run that has ended; none where an earlier release did not note them.
fn steps_at_end(observed: &Observed) -> Option<i64> {
    let run = observed.run.as_ref().and_then(ObservedRun::last_step);
    run.or(observed.job.status.steps)
}

/// The spec asks for more steps than a run that has ended had.
pub(super) fn wants_more_steps(observed: &Observed, job: &Job) -> bool {
    let wanted = i64::try_from(job.training.steps).unwrap_or(i64::MAX);
    steps_at_end(observed).is_some_and(|had| wanted > had)
}

/// Whether a run that has ended is resumed. It can only be resumed from its last checkpoint.
fn is_resumed(observed: &Observed, job: &Job) -> bool {
    job.checkpoint.is_some() && wants_more_steps(observed, job)
}

/// The condition `Failed`, if it is true of the present spec.
fn failed(observed: &Observed) -> Option<&Condition> {
    let found = observed.job.status.if_true(ConditionType::Failed)?;
    (found.observed_generation == Some(observed.job.generation)).then_some(found)
}

/// How the job has ended, if it has. This does not need a readable spec: a job that has ended is not trained again because of a label, or
/// because another release reads its spec in another way.
fn end(observed: &Observed) -> Option<JobOutcome> {
    let complete = observed.job.status.if_true(ConditionType::Complete).is_some();
    let ended = observed.run.as_ref().and_then(|r| r.ended.as_ref());
    let spec = observed.job.spec.as_ref();
    if (complete || ended == Some(&RunEnd::Done)) && !spec.is_ok_and(|job| is_resumed(observed, job)) {
        return Some(JobOutcome::Complete);
    }
    // A job that failed is tried again when its spec is changed.
    if let Some(failed) = failed(observed) {
        let reason = match Reason::parse(&failed.reason) {
            Some(
                reason @ (Reason::StateLost
                | Reason::Diverged
                | Reason::DeadlineExceeded
                | Reason::InitContainersFail),
            ) => reason,
            _ => Reason::WorkersCrash,
        };
        return Some(JobOutcome::Fail(reason, failed.message.clone()));
    }
    match ended {
        Some(RunEnd::StateLost(units)) => Some(JobOutcome::Fail(
            Reason::StateLost,
            format!("no worker and no checkpoint holds {units} any more"),
        )),
        Some(RunEnd::Diverged(why)) => Some(JobOutcome::Fail(Reason::Diverged, why.clone())),
        _ => None,
    }
}

/// Whether any part of the job runs: its run, or workers that hold its state while they wait for the next coordinator.
fn is_under_way(observed: &Observed) -> bool {
    match &observed.run {
        Some(run) => run.ended.is_none(),
        None => observed.pods.iter().any(|pod| !pod.deleting && !pod.has_ended()),
    }
}

/// Decides about the job as a whole. `crashes`: how often workers crashed since the last committed step.
pub(super) fn job_outcome(observed: &Observed, pods: &[JudgedPod<'_>], crashes: usize) -> JobOutcome {
    if let Some(end) = end(observed) {
        return end;
    }
    let job = match &observed.job.spec {
        Ok(job) => job,
        Err(why) => return JobOutcome::Refuse(Reason::InvalidSpec, why.clone()),
    };
    if seconds_left(observed, job).is_some_and(|left| left <= 0) {
        let limit = job.lifecycle.active_deadline_seconds.unwrap_or_default();
        let message =
            format!("it has taken longer than spec.activeDeadlineSeconds, {limit} s, since its start");
        return JobOutcome::Fail(Reason::DeadlineExceeded, message);
    }
    if let Some(message) = taken_by_another_run(observed, job) {
        return JobOutcome::Refuse(Reason::CheckpointsTaken, message);
    }
    if job.suspend && !would_lose_state(observed, job) {
        return if waits_for_checkpoint(observed, job) {
            JobOutcome::SaveThenSuspend
        } else {
            JobOutcome::Suspend
        };
    }
    match admission_state(observed, job) {
        AdmissionState::Waits(..) if waits_for_checkpoint(observed, job) => {
            return JobOutcome::SaveThenSuspend;
        }
        AdmissionState::Waits(..) => return JobOutcome::Queue,
        AdmissionState::Unknown(_) if !is_under_way(observed) => return JobOutcome::Queue,
        AdmissionState::Unknown(_) | AdmissionState::Free | AdmissionState::Admitted(_) => {}
    }
    if crashes < crash_limit(job) {
        return JobOutcome::Run;
    }
    let ends = pods.iter().filter_map(|p| match &p.verdict {
        PodVerdict::Crashed(end) => Some((None, end)),
        PodVerdict::InitFailed(container, end) => Some((Some(container.as_str()), end)),
        _ => None,
    });
    let last = ends.max_by_key(|(_, end)| end.at);
    let reason = match last {
        Some((Some(_), _)) => Reason::InitContainersFail,
        _ => Reason::WorkersCrash,
    };
    JobOutcome::Fail(reason, crash_message(crashes, last))
}

/// `last`: the last crash, of a worker, or of the init container with this name.
fn crash_message(times: usize, last: Option<(Option<&str>, &ContainerEnd)>) -> String {
    let crashed = format!("workers crashed {times} times without a step between them");
    let Some((init_container, last)) = last else {
        return crashed;
    };
    let crashed = match init_container {
        Some(name) => format!(
            "workers crashed or could not start {times} times without a step between them, the last because init container {name} ended"
        ),
        None => format!("{crashed}, the last"),
    };
    let output = last.message.trim();
    let skipped = output.chars().count().saturating_sub(LAST_OUTPUT_MAX);
    let output: String = output.chars().skip(skipped).collect();
    let hint = if last.reason == "OOMKilled" && init_container.is_none() {
        "; raise the memory limit in spec.workers.resources or use more workers"
    } else {
        ""
    };
    let output = if output.is_empty() {
        String::new()
    } else {
        format!("; its last output: {output}")
    };
    format!(
        "{crashed} with exit code {} ({}){hint}{output}",
        last.code, last.reason
    )
}
