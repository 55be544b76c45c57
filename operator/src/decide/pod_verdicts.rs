//! The state of each pod, from what the API shows of it and of its node.
//!
//! A preemption costs no retry; a crash does, and so does a node that does not take the pod. Kubernetes distinguishes them by the condition
//! DisruptionTarget, by the reason a kubelet gives, by a deletion, and by the exit code: 143 and 137 are SIGTERM and SIGKILL. Only the
//! worker's container counts: a sidecar may outlive it. An init container that fails is the template's fault, unless there is evidence
//! against its node (`failures.rs`).

use super::observed::{
    ContainerEnd, Observed, ObservedNode, ObservedPod, ObservedRun, ObservedTaint, PodPhase, Rejection,
};
use super::start_limit::not_started;
use super::workers::Workers;
use varuna_api::FailureKind;

/// A signal that announces the end of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeSignal {
    /// The prefix of a taint's key, or a condition's type.
    pub name: &'static str,
    /// How long after the signal the node ends at the earliest, in seconds; none where that is not known, or where the signal's sender deletes
    /// the pods itself, so that their deletion says it.
    pub notice_seconds: Option<i64>,
}

const fn signal(name: &'static str, notice_seconds: Option<i64>) -> NodeSignal {
    NodeSignal { name, notice_seconds }
}

/// The signals that are known, on any cloud. One that several events have in common has the shortest of their notices.
pub const NODE_SIGNALS: &[NodeSignal] = &[
    // The autoscaler and Karpenter evict the pods.
    signal("ToBeDeletedByClusterAutoscaler", None),
    signal("karpenter.sh/disrupted", None),
    signal("karpenter.sh/disruption", None),
    // EC2 tells of the end of a spot instance two minutes before.
    signal("aws-node-termination-handler/spot-itn", Some(120)),
    // The time of an Auto Scaling group's hook is that group's.
    signal("aws-node-termination-handler/asg-lifecycle-termination", None),
    signal("aws-node-termination-handler/scheduled-maintenance", None),
    // Azure's Preempt of a spot VM comes 30 seconds before, other events minutes.
    signal("remediator.kubernetes.azure.com/unschedulable", Some(30)),
    // A spot VM has 30 seconds, and GKE gives pods the first half of them; before maintenance a VM with GPUs has an hour.
    signal("cloud.google.com/impending-node-termination", Some(15)),
    signal("node.kubernetes.io/out-of-service", None),
    signal("VMEventScheduled", None),
    signal("DrainInProgress", None),
    signal("GracefulNodeShutdownInProgress", None),
];

/// How much later than the cloud's notice its taint is there, in seconds: what sets it asks the cloud every few seconds.
const TAINT_DELAY_SECONDS: i64 = 5;

/// Reasons of a waiting container that do not go away by waiting.
const CANNOT_START: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    // Of an init container, which holds the worker up: the kubelet starts it again and again.
    "CrashLoopBackOff",
];

/// Whether a container that waits for this reason will not start without a change.
#[must_use]
pub fn cannot_start(reason: &str) -> bool {
    CANNOT_START.contains(&reason)
}

/// The state of a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PodVerdict {
    /// The pod is running.
    Running,
    /// It waits to start; why it cannot be scheduled, where that is known.
    Pending(Option<String>),
    /// The pod cannot start as it is: image or configuration. Reason and message.
    CannotStart(String, String),
    /// The pod's node announces its end: which node, and by which signal.
    NodeLeaving(String),
    /// The pod's node does not answer or is gone.
    NodeLost(String),
    /// The pod is being deleted.
    Terminating,
    /// The pod ended because it was preempted or evicted, for this reason.
    Preempted(String),
    /// Its node did not take it, or ended it for its own fault.
    Rejected(Rejection),
    /// Its node has not started it in time.
    NotStarted(Rejection),
    /// One of its init containers ended with an error: its name and its end.
    InitFailed(String, ContainerEnd),
    /// The pod's process was killed from outside, not for memory.
    Killed(ContainerEnd),
    /// The pod's process ended with an error.
    Crashed(ContainerEnd),
    /// The pod ended well: the coordinator released it.
    Released(ContainerEnd),
}

impl PodVerdict {
    /// All labels.
    pub const LABELS: [&'static str; 7] = [
        "running", "pending", "broken", "doomed", "lost", "leaving", "ended",
    ];

    /// The label `state` of the metric `varuna_job_pods`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            PodVerdict::Running => "running",
            PodVerdict::Pending(_) => "pending",
            PodVerdict::CannotStart(..) | PodVerdict::NotStarted(_) => "broken",
            PodVerdict::NodeLeaving(_) => "doomed",
            PodVerdict::NodeLost(_) => "lost",
            PodVerdict::Terminating => "leaving",
            _ => "ended",
        }
    }

    /// Whether it counts against the number of pods that the job may have.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(
            self,
            PodVerdict::Running | PodVerdict::Pending(_) | PodVerdict::CannotStart(..)
        )
    }

    /// How and when it failed, if it did: it is replaced after a delay only.
    #[must_use]
    pub fn failure(&self) -> Option<PodFailure> {
        let (kind, end) = match self {
            PodVerdict::Crashed(end) => (FailureKind::Crashed, end),
            PodVerdict::Killed(end) => (FailureKind::Killed, end),
            PodVerdict::InitFailed(_, end) => (FailureKind::InitFailed, end),
            PodVerdict::Released(end) => (FailureKind::Left, end),
            PodVerdict::Rejected(rejection) => return Some(rejection.as_failure(FailureKind::Rejected)),
            PodVerdict::NotStarted(rejection) => return Some(rejection.as_failure(FailureKind::NotStarted)),
            _ => return None,
        };
        Some(PodFailure {
            kind,
            began: end.started,
            at: end.at,
        })
    }
}

/// The failure of a pod. Times are seconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PodFailure {
    /// Kind of the failure.
    pub kind: FailureKind,
    /// When the container that failed started, or the pod was made where none did.
    pub began: i64,
    /// Time of the failure, in seconds since 1970.
    pub at: i64,
}

impl Rejection {
    fn as_failure(&self, kind: FailureKind) -> PodFailure {
        PodFailure {
            kind,
            began: self.made,
            at: self.at,
        }
    }
}

/// A pod and its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JudgedPod<'a> {
    /// The pod.
    pub pod: &'a ObservedPod,
    /// Verdict on the pod.
    pub verdict: PodVerdict,
}

/// All pods of a job with their states, oldest first.
#[must_use]
pub(super) fn judge_pods<'a>(observed: &'a Observed, workers: &Workers<'_>) -> Vec<JudgedPod<'a>> {
    let signals = node_signals(observed);
    let judged = |pod: &'a ObservedPod| JudgedPod {
        pod,
        verdict: judge(observed, pod, &signals, workers),
    };
    let mut pods: Vec<_> = observed.pods.iter().map(judged).collect();
    pods.sort_by_key(|p| p.pod.number);
    pods
}

/// The known signals, the operator's and the job's.
pub(super) fn node_signals(observed: &Observed) -> Vec<String> {
    let spec = observed.job.spec.as_ref();
    let of_job = spec.map_or(&[][..], |j| &j.disruption.node_signals);
    let known = NODE_SIGNALS.iter().map(|s| s.name.to_owned());
    let configured = observed.settings.node_signals.iter().chain(of_job);
    known.chain(configured.cloned()).collect()
}

/// The signal by which a node announces its end, if it does.
#[must_use]
pub fn announced_end<'a>(node: &'a ObservedNode, signals: &[String]) -> Option<&'a str> {
    let announces = |key: &&String| signals.iter().any(|s| key.starts_with(s.as_str()));
    let taint = node.taints.iter().map(|t| &t.key).find(announces);
    // Conditions are matched by name, not by prefix.
    let condition = node.conditions.iter().find(|c| signals.contains(c));
    taint.or(condition).map(String::as_str)
}

/// When a node ends at the earliest by the taints that announce it, in seconds since 1970. A taint that does not say since when it is there
/// counts from `since`, or from `now` if its notice would be over: then the taint came later. None where no taint has a notice of known length,
/// or where that is over at `now`, so that it was another.
pub(super) fn announced_end_at(node: &ObservedNode, since: i64, now: i64) -> Option<i64> {
    let end = |taint: &ObservedTaint| {
        let signal = NODE_SIGNALS.iter().find(|s| taint.key.starts_with(s.name))?;
        let seconds = signal.notice_seconds? - TAINT_DELAY_SECONDS;
        let seen = if since.saturating_add(seconds) > now {
            since
        } else {
            now
        };
        Some(taint.added_at.unwrap_or(seen).saturating_add(seconds))
    };
    let ends = node.taints.iter().filter_map(end);
    ends.filter(|at| *at > now).min()
}

/// The state of one pod. A worker that answers its coordinator is not lost, whatever its kubelet does. After an outage of the API server no
/// node seems to answer for a moment, and an operator that relied on that would end every job.
#[must_use]
pub fn judge_pod(
    observed: &Observed,
    pod: &ObservedPod,
    signals: &[String],
    run: Option<&ObservedRun>,
) -> PodVerdict {
    judge(observed, pod, signals, &Workers::of(run))
}

fn judge(observed: &Observed, pod: &ObservedPod, signals: &[String], workers: &Workers<'_>) -> PodVerdict {
    match pod.phase {
        PodPhase::Succeeded | PodPhase::Failed => return judge_ended(pod),
        _ if pod.deleting => return PodVerdict::Terminating,
        _ if pod.ended.is_some() => return judge_ended(pod),
        PodPhase::Pending | PodPhase::Running => {}
    }
    if let Some(name) = &pod.node {
        match observed.nodes.get(name) {
            // Pods and nodes come by two watches: a new node may be known later than its pod.
            None if !workers.may_answer(pod) => return PodVerdict::NodeLost(format!("node {name} is gone")),
            Some(node) if !node.ready && !workers.may_answer(pod) => {
                return PodVerdict::NodeLost(format!("node {name} does not answer"));
            }
            node => {
                if let Some(signal) = node.and_then(|n| announced_end(n, signals)) {
                    return PodVerdict::NodeLeaving(format!("node {name}: {signal}"));
                }
            }
        }
    }
    // Where the worker runs, a sidecar that is started again is no concern of the job's.
    if let Some((reason, message)) = &pod.waiting
        && pod.phase == PodPhase::Pending
        && cannot_start(reason)
    {
        return PodVerdict::CannotStart(reason.clone(), message.clone());
    }
    match pod.phase {
        PodPhase::Running => PodVerdict::Running,
        _ => not_started(observed, pod).map_or_else(
            || PodVerdict::Pending(pod.unschedulable.clone()),
            PodVerdict::NotStarted,
        ),
    }
}

fn judge_ended(pod: &ObservedPod) -> PodVerdict {
    if let Some(reason) = &pod.disrupted {
        return PodVerdict::Preempted(reason.clone());
    }
    if pod.deleting {
        return PodVerdict::Terminating;
    }
    let was_killed = |end: &ContainerEnd| matches!(end.code, 137 | 143) && end.reason != "OOMKilled";
    match (pod.ended.clone(), pod.init_failed.clone()) {
        (Some(end), _) if end.code == 0 => PodVerdict::Released(end),
        (Some(end), _) | (None, Some((_, end))) if was_killed(&end) => PodVerdict::Killed(end),
        (Some(end), _) => PodVerdict::Crashed(end),
        (None, Some((container, end))) => PodVerdict::InitFailed(container, end),
        (None, None) => PodVerdict::Rejected(pod.rejected.clone().unwrap_or_default()),
    }
}
