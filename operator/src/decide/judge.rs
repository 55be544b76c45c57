//! What has become of a pod, from what the API shows of it and of its node.
//!
//! A preemption is nobody's fault and costs no retry; a crash is the job's. Kubernetes tells them apart by the condition
//! DisruptionTarget, by the reason a kubelet gives, by a deletion, and by the exit code: 143 and 137 are SIGTERM and SIGKILL.

use super::seen::{Ended, NodeSeen, Phase, PodSeen, RunSeen};
use std::collections::BTreeMap;

/// Waiting reasons that no waiting mends.
const BROKEN: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// What has become of a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It runs.
    Running,
    /// It waits to start; why it cannot, where that is known.
    Pending(Option<String>),
    /// It cannot start as it is: image or configuration. Reason and message.
    Broken(String, String),
    /// Its node announces its end by this signal.
    Doomed(String),
    /// Its node does not answer or is gone.
    Lost(String),
    /// It is being deleted.
    Leaving,
    /// It ended because it was preempted or evicted, for this reason.
    Preempted(String),
    /// Its process was killed from outside, not for memory.
    Killed(Ended),
    /// It ended by itself with an error.
    Crashed(Ended),
    /// It ended well: released by the coordinator.
    Released(Ended),
}

impl Verdict {
    /// All labels.
    pub const LABELS: [&'static str; 7] = [
        "running", "pending", "broken", "doomed", "lost", "leaving", "ended",
    ];

    /// In a word, for metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Verdict::Running => "running",
            Verdict::Pending(_) => "pending",
            Verdict::Broken(..) => "broken",
            Verdict::Doomed(_) => "doomed",
            Verdict::Lost(_) => "lost",
            Verdict::Leaving => "leaving",
            _ => "ended",
        }
    }

    /// It takes one of the places that the job has.
    #[must_use]
    pub fn occupies(&self) -> bool {
        matches!(self, Verdict::Running | Verdict::Pending(_) | Verdict::Broken(..))
    }

    /// It ended by itself, or was killed: its place is filled again after a while only.
    #[must_use]
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            Verdict::Killed(ended) | Verdict::Crashed(ended) | Verdict::Released(ended) => Some(ended),
            _ => None,
        }
    }
}

/// The signal by which a node announces its end, if it does.
#[must_use]
pub fn signal<'a>(node: &'a NodeSeen, signals: &[String]) -> Option<&'a str> {
    let announces = |name: &&String| signals.iter().any(|s| name.starts_with(s.as_str()));
    let taint = node.taints.iter().find(announces);
    // Conditions are named, not prefixed.
    let condition = node.conditions.iter().find(|c| signals.contains(c));
    taint.or(condition).map(String::as_str)
}

/// Judges one pod. A worker that answers its coordinator is not lost, whatever its kubelet does: after an outage of the API
/// server no node seems to answer for a moment, and whoever believed that would end every job.
#[must_use]
pub fn judge(
    pod: &PodSeen,
    nodes: &BTreeMap<String, NodeSeen>,
    signals: &[String],
    run: Option<&RunSeen>,
) -> Verdict {
    match pod.phase {
        Phase::Succeeded | Phase::Failed => return end(pod),
        _ if pod.deleting => return Verdict::Leaving,
        Phase::Pending | Phase::Running => {}
    }
    if let Some(name) = &pod.node {
        let Some(node) = nodes.get(name) else {
            return Verdict::Lost(format!("node {name} is gone"));
        };
        if !node.ready && !answers(pod, run) {
            return Verdict::Lost(format!("node {name} does not answer"));
        }
        if let Some(signal) = signal(node, signals) {
            return Verdict::Doomed(format!("node {name}: {signal}"));
        }
    }
    if let Some((reason, message)) = &pod.waiting
        && BROKEN.contains(&reason.as_str())
    {
        return Verdict::Broken(reason.clone(), message.clone());
    }
    match pod.phase {
        Phase::Running => Verdict::Running,
        _ => Verdict::Pending(pod.unschedulable.clone()),
    }
}

/// Whether the pod's worker answers its coordinator, or could: one that has just taken over has not heard of anyone yet.
fn answers(pod: &PodSeen, run: Option<&RunSeen>) -> bool {
    pod.phase == Phase::Running && run.is_none_or(|r| r.mode.is_settling() || r.up.contains(&pod.name))
}

fn end(pod: &PodSeen) -> Verdict {
    if let Some(reason) = &pod.disrupted {
        return Verdict::Preempted(reason.clone());
    }
    if pod.deleting {
        return Verdict::Leaving;
    }
    let Some(ended) = pod.ended.clone() else {
        // A pod that failed without ever running was turned away by its node.
        return Verdict::Preempted("NeverStarted".into());
    };
    match ended.code {
        0 => Verdict::Released(ended),
        137 | 143 if ended.reason != "OOMKilled" => Verdict::Killed(ended),
        _ => Verdict::Crashed(ended),
    }
}
