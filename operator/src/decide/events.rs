//! What has changed about a job, as Events.

use super::decision::{Decision, EventNote};
use super::failed_parts::Failure;
use super::observed::Observed;
use super::pod_verdicts::{JudgedPod, PodVerdict};
use super::problems::failure_message;
use varuna_api::crd::Status;
use varuna_api::{JobPhase, Reason};

/// What has changed, as Events. Created pods have Events of their own.
pub(super) fn events(
    observed: &Observed,
    decision: &Decision<'_>,
    failures: &[Failure],
    after: &Status,
) -> Vec<EventNote> {
    let before = &observed.job.status;
    let mut events = Vec::new();
    let mut note = |warning, reason, text: String| {
        events.push(EventNote {
            warning,
            lasting: false,
            reason,
            text,
        });
    };
    if before.phase != after.phase
        && let Some(phase) = after.phase
    {
        let message = after
            .message
            .as_ref()
            .map_or_else(String::new, |m| format!(": {m}"));
        let warning = matches!(phase, JobPhase::Failed | JobPhase::Refused | JobPhase::Waiting);
        note(warning, Reason::Phase, format!("the job is now {phase}{message}"));
    }
    let generation = |s: &Status| s.plan.as_ref().map_or(0, |p| p.generation);
    if let Some(plan) = after.plan.as_ref().filter(|p| p.generation > generation(before)) {
        let text = format!(
            "plan {}: {} with {} workers",
            plan.generation, plan.shape, plan.workers
        );
        note(false, Reason::Planned, text);
    }
    events.extend(new_messages(observed));
    events.extend(decision.pods.iter().filter_map(preempted_pod));
    events.extend(failures.iter().map(failure_event));
    events
}

/// Number of the newest message of the coordinator.
pub(super) fn newest_message(observed: &Observed) -> Option<i64> {
    observed.run.as_ref()?.messages.last().map(|m| m.number)
}

/// What the coordinator has said since the last reconciliation.
fn new_messages(observed: &Observed) -> impl Iterator<Item = EventNote> {
    let known = observed.job.status.last_message.unwrap_or(0);
    let messages = observed.run.iter().flat_map(|run| &run.messages);
    messages.filter(move |m| m.number > known).map(|m| EventNote {
        warning: false,
        lasting: false,
        reason: if m.resumed { Reason::Resumed } else { Reason::Run },
        text: m.text.clone(),
    })
}

/// Pods that are deleted because of their node, a preemption or a new template. Only the reconciliation that deletes them knows why: its caller
/// publishes these before it deletes them.
#[must_use]
pub fn deletion_events(decision: &Decision<'_>) -> Vec<EventNote> {
    let deleted = decision.delete.iter().filter_map(|deletion| {
        let reason = deletion.event?;
        Some(EventNote {
            warning: reason != Reason::RollingUpdate,
            lasting: false,
            reason,
            text: format!("pod {}: {}", deletion.name, deletion.why),
        })
    });
    deleted.collect()
}

/// A pod that Kubernetes deletes: evicted, preempted by priority, from a node with a NoExecute taint. It is seen until its grace
/// period is over.
fn preempted_pod(judged: &JudgedPod<'_>) -> Option<EventNote> {
    let (pod, terminating) = (judged.pod, judged.verdict == PodVerdict::Terminating);
    let why = pod.disrupted.as_ref().filter(|_| terminating)?;
    let node = pod.node.as_deref().unwrap_or("no node");
    Some(EventNote {
        warning: true,
        lasting: true,
        reason: Reason::WorkerPreempted,
        text: format!("pod {} on {node} is taken away ({why})", pod.name),
    })
}

fn failure_event(failure: &Failure) -> EventNote {
    let (reason, text) = failure_message(failure);
    EventNote {
        warning: true,
        lasting: true,
        reason,
        text,
    }
}
