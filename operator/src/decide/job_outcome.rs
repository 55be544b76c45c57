//! What is to become of the job as a whole: run, suspended, complete, failed or refused.

use super::checkpoint_location::taken_by_another_run;
use super::decision::{JobOutcome, Progress};
use super::observed::{ContainerEnd, Observed, RunEnd};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use super::suspend::waits_for_checkpoint;
use varuna_api::crd::Condition;
use varuna_api::{ConditionType, Reason};

/// A job fails after this many crashes without a committed step between them.
pub(super) const CRASHES_MAX: usize = 6;
/// Characters of a crashed worker's last output that are shown.
const LAST_OUTPUT_MAX: usize = 1000;

/// The latest step that is known.
pub(super) fn progress(observed: &Observed) -> Progress {
    let status = &observed.job.status;
    let mut at = status.progressed_at.as_ref().map(|t| t.0.as_second());
    if status.if_true(ConditionType::Failed).is_some() && failed(observed).is_none() {
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

/// The condition `Failed`, if it is true of the present spec.
fn failed(observed: &Observed) -> Option<&Condition> {
    let found = observed.job.status.if_true(ConditionType::Failed)?;
    (found.observed_generation == Some(observed.job.generation)).then_some(found)
}

/// Decides what is to become of the job.
pub(super) fn job_outcome(observed: &Observed, pods: &[JudgedPod<'_>], progress: Progress) -> JobOutcome {
    let job = match &observed.job.spec {
        Ok(job) => job,
        Err(why) => return JobOutcome::Refuse(Reason::InvalidSpec, why.clone()),
    };
    let complete = observed.job.status.if_true(ConditionType::Complete).is_some();
    let ended = observed.run.as_ref().and_then(|r| r.ended.as_ref());
    if complete || ended == Some(&RunEnd::Done) {
        return JobOutcome::Complete;
    }
    // A job that failed is tried again when its spec is changed.
    if let Some(failed) = failed(observed) {
        let reason = match Reason::parse(&failed.reason) {
            Some(reason @ (Reason::StateLost | Reason::Diverged)) => reason,
            _ => Reason::WorkersCrash,
        };
        return JobOutcome::Fail(reason, failed.message.clone());
    }
    if let Some(RunEnd::StateLost(units)) = ended {
        return JobOutcome::Fail(
            Reason::StateLost,
            format!("no worker and no checkpoint holds {units} any more"),
        );
    }
    if let Some(RunEnd::Diverged(why)) = ended {
        return JobOutcome::Fail(Reason::Diverged, why.clone());
    }
    if let Some(message) = taken_by_another_run(observed, job) {
        return JobOutcome::Refuse(Reason::CheckpointsTaken, message);
    }
    if job.suspend {
        return if waits_for_checkpoint(observed, job) {
            JobOutcome::SaveThenSuspend
        } else {
            JobOutcome::Suspend
        };
    }
    let since = progress.at.unwrap_or(0);
    let crashes: Vec<&ContainerEnd> = pods
        .iter()
        .filter_map(|p| match &p.verdict {
            PodVerdict::Crashed(end) if end.at > since => Some(end),
            _ => None,
        })
        .collect();
    match crashes.last() {
        Some(last) if crashes.len() >= CRASHES_MAX => {
            JobOutcome::Fail(Reason::WorkersCrash, crash_message(crashes.len(), last))
        }
        _ => JobOutcome::Run,
    }
}

fn crash_message(times: usize, last: &ContainerEnd) -> String {
    let output = last.message.trim();
    let skipped = output.chars().count().saturating_sub(LAST_OUTPUT_MAX);
    let output: String = output.chars().skip(skipped).collect();
    let hint = if last.reason == "OOMKilled" {
        "; raise the memory limit in spec.workers.template or use more workers"
    } else {
        ""
    };
    let output = if output.is_empty() {
        String::new()
    } else {
        format!("; its last output: {output}")
    };
    format!(
        "{times} workers crashed without a step between them, the last with exit code {} ({}){hint}{output}",
        last.code, last.reason
    )
}
