//! What is wrong with a job, each with a reason and a sentence that says what to do.

use super::failed_parts::{Failure, JobPart};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use varuna_api::Reason;

/// What is wrong although the job may be training: failures first, then the newest pod with the worst problem.
pub(super) fn problem(pods: &[JudgedPod<'_>], failures: &[Failure]) -> Option<(Reason, String)> {
    if let Some(first) = failures.first() {
        return Some(failure_message(first));
    }
    let newest_first = || pods.iter().rev().map(|p| &p.verdict);
    let cannot_start = newest_first().find_map(|v| match v {
        PodVerdict::CannotStart(reason, message) => Some((
            Reason::PodsCannotStart,
            format!("{reason}: {message}; correct spec.workers.image or the template"),
        )),
        _ => None,
    });
    let crashed = || {
        newest_first().find_map(|v| match v {
            PodVerdict::Crashed(end) => {
                let (code, reason, output) = (end.code, &end.reason, end.message.trim());
                let message = format!("a worker ended with exit code {code} ({reason}): {output}");
                Some((Reason::WorkersCrash, message))
            }
            _ => None,
        })
    };
    let init_failed = || {
        newest_first().find_map(|v| match v {
            PodVerdict::InitFailed(container, end) => {
                let (code, reason, output) = (end.code, &end.reason, end.message.trim());
                let message = format!(
                    "init container {container} of spec.workers.template ended with exit code {code} ({reason}): {output}"
                );
                Some((Reason::InitContainersFail, message))
            }
            _ => None,
        })
    };
    let rejected = || {
        pods.iter().rev().find_map(|p| match &p.verdict {
            PodVerdict::Rejected(rejection) | PodVerdict::NotStarted(rejection) => {
                let node = p.pod.node.as_deref().unwrap_or("its node");
                let message = format!(
                    "{node} does not take pod {}: {}: {}; others are preferred for a while",
                    p.pod.name, rejection.reason, rejection.message
                );
                Some((Reason::PodsRejected, message))
            }
            _ => None,
        })
    };
    let unschedulable = || {
        newest_first().find_map(|v| match v {
            PodVerdict::Pending(Some(message)) => Some((Reason::PodsCannotBeScheduled, message.clone())),
            _ => None,
        })
    };
    cannot_start
        .or_else(crashed)
        .or_else(init_failed)
        .or_else(rejected)
        .or_else(unschedulable)
}

/// What failed and what to do about it, in a sentence that does not change while the problem lasts.
pub(super) fn failure_message(failure: &Failure) -> (Reason, String) {
    let message = &failure.message;
    match failure.part {
        JobPart::Objects => (
            Reason::ObjectsRefused,
            format!("the API server refuses the job's objects: {message}"),
        ),
        JobPart::Pods if message.contains("exceeded quota") => (
            Reason::PodsRefused,
            format!(
                "the API server takes no more pods: {message}; raise the quota or lower spec.elasticity.maxWorkers"
            ),
        ),
        JobPart::Pods => (
            Reason::PodsRefused,
            format!("the API server takes no pod of spec.workers.template: {message}"),
        ),
        JobPart::Names => (
            Reason::NameTaken,
            format!("{message}; nothing of it is changed: delete it, or give the job another name"),
        ),
        JobPart::Workload => (
            Reason::ObjectsRefused,
            format!("the job's Workload in Kueue is refused: {message}"),
        ),
        JobPart::Policies => (
            Reason::ObjectsRefused,
            format!(
                "the API server refuses to change the job's disruption budget or network policies: {message}"
            ),
        ),
        JobPart::Deletions => (
            Reason::PodsRefused,
            format!("the API server does not delete the job's pods: {message}"),
        ),
        JobPart::JobDeletion => (
            Reason::ObjectsRefused,
            format!(
                "the API server does not delete the job, whose spec.ttlSecondsAfterFinished is over: {message}"
            ),
        ),
        JobPart::Server => (
            Reason::ServerFails,
            format!("the API server does not answer as it should: {message}; tried again within 10 s"),
        ),
        JobPart::Coordinator => (
            Reason::CoordinatorFails,
            format!("the job's coordinator cannot run: {message}"),
        ),
    }
}
