//! Converts pods to what decisions are made from. Pure.

use crate::decide::objects::{
    AVOIDS_ANNOTATION, COORDINATOR, COORDINATOR_LABEL, GROUP_LABEL, JOB_LABEL, MADE_FROM_ANNOTATION,
    NUMBER_LABEL, WORKER, WORKLOAD_ANNOTATION,
};
use crate::decide::{ContainerEnd, Deletion, ObservedPod, PodPhase, Rejection, Unstarted, cannot_start};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

/// Name of the job that a pod belongs to.
#[must_use]
pub fn job_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(JOB_LABEL).map(String::as_str)
}

/// A worker's pod; none where it is something else.
#[must_use]
pub fn pod(pod: &Pod) -> Option<ObservedPod> {
    numbered(pod, NUMBER_LABEL, WORKER)
}

/// A coordinator's pod; none where it is something else.
#[must_use]
pub fn coordinator_pod(pod: &Pod) -> Option<ObservedPod> {
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let image = containers
        .filter(|c| c.name == COORDINATOR)
        .find_map(|c| c.image.clone());
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    let runs_since = statuses.filter(|c| c.name == COORDINATOR).find_map(runs_since);
    let behind = pod.status.as_ref().map_or(0, clock_behind);
    let runs_since = runs_since.map(|since| since.saturating_add(behind));
    let observed = numbered(pod, COORDINATOR_LABEL, COORDINATOR)?;
    Some(ObservedPod {
        image,
        runs_since,
        ..observed
    })
}

/// A pod with a number, by the label that holds it and the name of the container that counts.
fn numbered(pod: &Pod, label: &str, container: &str) -> Option<ObservedPod> {
    let number = pod.metadata.labels.as_ref()?.get(label)?.parse().ok()?;
    let none = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&none);
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let condition = |kind: &str, is: &str| conditions.iter().find(|c| c.type_ == kind && c.status == is);
    let disruption =
        condition("DisruptionTarget", "True").map(|c| c.reason.clone().unwrap_or("DisruptionTarget".into()));
    let unschedulable = condition("PodScheduled", "False")
        .filter(|c| c.reason.as_deref() == Some("Unschedulable"))
        .map(|c| c.message.clone().unwrap_or_default());
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    // Others may come and go, whatever their names begin with.
    let behind = clock_behind(status);
    let mut own = containers.iter().filter(|c| c.name == container);
    let ended = own.find_map(|c| ended(c, behind));
    let taken_away = status.reason.clone().filter(|r| TAKEN_AWAY.contains(&r.as_str()));
    let disrupted = disruption.or(taken_away);
    let never_ran = status.phase.as_deref() == Some("Failed") && ended.is_none();
    let init_failed = init_failed(pod, status).filter(|_| never_ran);
    let is_rejected = never_ran && init_failed.is_none() && disrupted.is_none();
    let rejected = is_rejected.then(|| rejection(pod, status));
    let annotation = |name: &str| pod.metadata.annotations.as_ref()?.get(name);
    let phase = match status.phase.as_deref() {
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        _ => PodPhase::Pending,
    };
    Some(ObservedPod {
        name: pod.name_any(),
        number,
        group: pod.metadata.labels.as_ref()?.get(GROUP_LABEL).cloned(),
        phase,
        unready: phase == PodPhase::Running && condition("Ready", "False").is_some(),
        node: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        deletion: deletion(pod),
        disrupted,
        unschedulable,
        waiting: waiting(status),
        init_failed,
        ended,
        rejected,
        unstarted: unstarted(pod, status),
        avoids: annotation(AVOIDS_ANNOTATION)
            .into_iter()
            .flat_map(|nodes| nodes.split(','))
            .map(str::to_owned)
            .collect(),
        made_from: annotation(MADE_FROM_ANNOTATION).cloned(),
        image: None,
        runs_since: None,
        workload: annotation(WORKLOAD_ANNOTATION).cloned(),
    })
}

/// When a pod was asked to go, and when it has to be gone: its deletion timestamp says the latter.
fn deletion(pod: &Pod) -> Option<Deletion> {
    let deadline = pod.metadata.deletion_timestamp.as_ref()?.0.as_second();
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    Some(Deletion {
        at: deadline.saturating_sub(grace),
        deadline,
    })
}

/// Reasons in a pod's status with which a kubelet ends a pod that did nothing wrong. An eviction for pressure of the node has the condition
/// DisruptionTarget as well; one for what the pod itself has used up does not.
const TAKEN_AWAY: &[&str] = &["Preempting", "Terminated", "Shutdown", "NodeShutdown", "NodeLost"];

/// A pod that failed although none of its containers did.
fn rejection(pod: &Pod, status: &PodStatus) -> Rejection {
    let conditions = status.conditions.iter().flatten();
    let changed = conditions.filter_map(|c| c.last_transition_time.as_ref());
    let made = pod.metadata.creation_timestamp.as_ref();
    let at = changed.chain(status.start_time.as_ref()).chain(made);
    Rejection {
        made: made.map_or(0, |t| t.0.as_second()),
        at: at.map(|t| t.0.as_second()).max().unwrap_or(0),
        reason: status.reason.clone().unwrap_or("NeverStarted".into()),
        message: status.message.clone().unwrap_or_default(),
    }
}

/// Why a container waits: reason and message. Containers wait for init containers, which come first, and any of several may be the one that holds
/// the pod up.
fn waiting(status: &PodStatus) -> Option<(String, String)> {
    let init = status.init_container_statuses.iter().flatten();
    let init = init.filter_map(|container| {
        let (reason, message) = waits_for(container)?;
        Some((reason, format!("init container {}: {message}", container.name)))
    });
    let others = status.container_statuses.iter().flatten().filter_map(waits_for);
    let mut all: Vec<_> = init.chain(others).collect();
    let first = all
        .iter()
        .position(|(reason, _)| cannot_start(reason))
        .unwrap_or(0);
    (first < all.len()).then(|| all.swap_remove(first))
}

fn waits_for(container: &ContainerStatus) -> Option<(String, String)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((
        waiting.reason.clone()?,
        waiting.message.clone().unwrap_or_default(),
    ))
}

/// The init container that ended with an error: its name and its end. One that is to run all the time, as a sidecar, ends with its pod.
fn init_failed(pod: &Pod, status: &PodStatus) -> Option<(String, ContainerEnd)> {
    let specs = || pod.spec.iter().flat_map(|s| s.init_containers.iter().flatten());
    let is_sidecar =
        |name: &str| specs().any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"));
    let behind = clock_behind(status);
    let containers = status.init_container_statuses.iter().flatten();
    let mut ends = containers
        .filter(|c| !is_sidecar(&c.name))
        .filter_map(|c| Some((c.name.clone(), ended(c, behind)?)));
    ends.find(|(_, end)| end.code != 0)
}

fn runs_since(container: &ContainerStatus) -> Option<i64> {
    let running = container.state.as_ref()?.running.as_ref()?;
    Some(running.started_at.as_ref()?.0.as_second())
}

/// How many seconds the clock of the pod's node is behind at the least. The node's kubelet says when it took the pod, and the API server said before
/// that when the pod was bound to the node. Times of containers are those of the node's clock, and all others those of the control plane. How far a
/// clock is ahead is not known: a kubelet may take a pod late.
fn clock_behind(status: &PodStatus) -> i64 {
    let taken = status.start_time.as_ref().map(|time| time.0.as_second());
    bound_at(status)
        .zip(taken)
        .map_or(0, |(bound, taken)| bound.saturating_sub(taken).max(0))
}

/// When a pod was bound to its node, in seconds since 1970.
fn bound_at(status: &PodStatus) -> Option<i64> {
    let is_bound = |c: &&PodCondition| c.type_ == "PodScheduled" && c.status == "True";
    let bound = status.conditions.iter().flatten().find(is_bound)?;
    Some(bound.last_transition_time.as_ref()?.0.as_second())
}

/// That a node has the pod, and none of its containers has started. From Kubernetes 1.37 on the kubelet says by a condition with this reason that
/// the pod lacks its volumes or its network, and pulls no image until then. An earlier one gives no reason: before 1.36 its condition stays as it
/// is while it pulls the first image (kubernetes/kubernetes#134660), so it may be pulling.
fn unstarted(pod: &Pod, status: &PodStatus) -> Option<Unstarted> {
    pod.spec.as_ref()?.node_name.as_ref()?;
    let has_started = |container: &ContainerStatus| {
        let state = container.state.as_ref();
        container.restart_count > 0 || state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    };
    let init = status.init_container_statuses.iter().flatten();
    let mut containers = init.chain(status.container_statuses.iter().flatten());
    let waits = status.phase.as_deref().unwrap_or("Pending") == "Pending";
    if !waits || containers.any(has_started) {
        return None;
    }
    let lacks = |c: &PodCondition| {
        let is_said = c.reason.as_deref() == Some("PodSandboxNotReady");
        c.type_ == "PodReadyToStartContainers" && c.status == "False" && is_said
    };
    let is_taken = status.start_time.is_some();
    Some(Unstarted {
        bound: bound_at(status)?,
        may_pull: is_taken && !status.conditions.iter().flatten().any(lacks),
    })
}

/// The end of a container, if it has ended. `behind`: how many seconds the clock of its node is behind.
fn ended(container: &ContainerStatus, behind: i64) -> Option<ContainerEnd> {
    let end = container.state.as_ref()?.terminated.as_ref()?;
    let seconds = |time: Option<&Time>| time.map_or(0, |t| t.0.as_second().saturating_add(behind));
    Some(ContainerEnd {
        started: seconds(end.started_at.as_ref()),
        at: seconds(end.finished_at.as_ref()),
        code: end.exit_code,
        reason: end.reason.clone().unwrap_or_default(),
        message: end.message.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn observed(status: Value) -> ObservedPod {
        observed_with(json!({ "containers": [], "nodeName": "n" }), status)
    }

    fn observed_with(spec: Value, status: Value) -> ObservedPod {
        let labels = json!({ NUMBER_LABEL: "1" });
        let metadata =
            json!({ "name": "j-w1", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z" });
        let document = json!({ "metadata": metadata, "spec": spec, "status": status });
        pod(&serde_json::from_value(document).unwrap()).unwrap()
    }

    fn container(name: &str, state: &Value) -> Value {
        json!({
            "name": name, "image": "i", "imageID": "i", "ready": false, "restartCount": 0, "state": state,
        })
    }

    fn terminated(code: i32) -> Value {
        json!({ "terminated": {
            "exitCode": code, "reason": "Error", "startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:00:40Z",
        } })
    }

    #[test]
    fn the_worker_counts_and_no_sidecar() {
        let running = json!({ "running": {} });
        let statuses = json!([container("proxy", &running), container("worker", &terminated(1))]);
        let dead = observed(json!({ "phase": "Running", "containerStatuses": statuses }));
        let end = dead.ended.unwrap();
        assert_eq!((end.code, end.at - end.started), (1, 30));
        let statuses = json!([container("proxy", &terminated(1)), container("worker", &running)]);
        let alive = observed(json!({ "phase": "Running", "containerStatuses": statuses }));
        assert_eq!(alive.ended, None);
    }

    #[test]
    fn a_pod_that_runs_may_be_unready() {
        let is_unready = |phase: &str, ready: &str| {
            let conditions = json!([{ "type": "Ready", "status": ready }]);
            observed(json!({ "phase": phase, "conditions": conditions })).unready
        };
        assert!(is_unready("Running", "False"), "a sidecar of it does not run");
        assert!(!is_unready("Running", "True"));
        assert!(!is_unready("Pending", "False"), "no pod that starts is ready");
        assert!(
            !observed(json!({ "phase": "Running" })).unready,
            "it does not say so"
        );
    }

    #[test]
    fn sidecar_with_a_similar_name_is_no_worker() {
        let running = json!({ "running": {} });
        for name in ["worker-logs", "worker-1", "my-worker"] {
            let statuses = json!([container(name, &terminated(0)), container("worker", &running)]);
            let alive = observed(json!({ "phase": "Running", "containerStatuses": statuses }));
            assert_eq!(alive.ended, None, "{name}");
        }
    }

    #[test]
    fn of_a_coordinator_is_known_since_when_its_container_runs() {
        let running = json!({ "running": { "startedAt": "2026-01-01T00:00:07Z" } });
        let since = |name: &str, state: &Value| {
            let statuses = json!([container("coordinator-proxy", &running), container(name, state)]);
            let document = json!({
                "metadata": { "name": "j-coordinator-u-1", "labels": { COORDINATOR_LABEL: "1" } },
                "spec": { "containers": [] },
                "status": { "phase": "Running", "containerStatuses": statuses },
            });
            let pod: Pod = serde_json::from_value(document).unwrap();
            coordinator_pod(&pod).unwrap().runs_since
        };
        let made = "2026-01-01T00:00:07Z"
            .parse::<k8s_openapi::jiff::Timestamp>()
            .unwrap();
        assert_eq!(since("coordinator", &running), Some(made.as_second()));
        assert_eq!(since("proxy", &running), None);
        assert_eq!(since("coordinator", &terminated(1)), None);
    }

    #[test]
    fn times_of_a_node_whose_clock_is_behind_are_corrected() {
        let running = json!({ "running": { "startedAt": "2026-01-01T00:00:13Z" } });
        let times = |taken: &str| {
            let bound = json!([{ "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:03:05Z" }]);
            let status = |states: &Value| json!({ "phase": "Running", "conditions": bound, "startTime": taken, "containerStatuses": states });
            let worker = observed(status(&json!([container("worker", &terminated(1))])));
            let document = json!({
                "metadata": { "name": "j-coordinator-u-1", "labels": { COORDINATOR_LABEL: "1" } },
                "spec": { "containers": [] }, "status": status(&json!([container("coordinator", &running)])),
            });
            let coordinator: Pod = serde_json::from_value(document).unwrap();
            let (end, since) = (
                worker.ended.unwrap(),
                coordinator_pod(&coordinator).unwrap().runs_since,
            );
            [end.started, end.at, since.unwrap()]
        };
        let right = times("2026-01-01T00:03:06Z");
        // It says that it has taken the pod three minutes before the pod was bound.
        let behind = times("2026-01-01T00:00:05Z");
        assert_eq!(behind, right.map(|at| at + 180));
    }

    #[test]
    fn rejected_pod_differs_from_a_preempted_one() {
        let rejected = |status: Value| observed(status).rejected;
        let device = rejected(json!({
            "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices",
            "startTime": "2026-01-01T00:00:07Z",
        }))
        .unwrap();
        assert_eq!(
            (device.reason.as_str(), device.at - device.made),
            ("UnexpectedAdmissionError", 7)
        );
        // Evicted because of its own fault: it used more of the disk than allowed.
        assert!(rejected(json!({ "phase": "Failed", "reason": "Evicted" })).is_some());
        let target =
            json!([{ "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" }]);
        let evicted = observed(json!({ "phase": "Failed", "reason": "Evicted", "conditions": target }));
        assert_eq!(
            (evicted.rejected, evicted.disrupted.as_deref()),
            (None, Some("TerminationByKubelet"))
        );
        let shutdown = observed(json!({ "phase": "Failed", "reason": "Terminated" }));
        assert_eq!(
            (shutdown.rejected, shutdown.disrupted.as_deref()),
            (None, Some("Terminated"))
        );
        let statuses = json!([container("worker", &terminated(1))]);
        assert_eq!(
            rejected(json!({ "phase": "Failed", "containerStatuses": statuses })),
            None
        );
    }

    fn sidecar() -> Value {
        json!([{ "name": "mesh", "image": "i", "restartPolicy": "Always" }, { "name": "fetch", "image": "i" }])
    }

    fn with_init(status: Value) -> ObservedPod {
        observed_with(
            json!({ "initContainers": sidecar(), "containers": [], "nodeName": "n" }),
            status,
        )
    }

    #[test]
    fn an_init_container_that_holds_the_worker_up_is_named() {
        let waits = |reason: &str| json!({ "waiting": { "reason": reason, "message": "why" } });
        let worker = json!([container("worker", &waits("PodInitializing"))]);
        let pod = |init: Value| {
            let status =
                json!({ "phase": "Pending", "initContainerStatuses": init, "containerStatuses": worker });
            with_init(status).waiting.unwrap()
        };
        let pulls = pod(json!([
            container("mesh", &json!({ "running": {} })),
            container("fetch", &waits("ImagePullBackOff"))
        ]));
        assert_eq!(
            pulls,
            ("ImagePullBackOff".into(), "init container fetch: why".into())
        );
        let restarting = pod(json!([
            container("mesh", &waits("PodInitializing")),
            container("fetch", &waits("CrashLoopBackOff"))
        ]));
        assert_eq!(restarting.0, "CrashLoopBackOff");
        let statuses = json!([
            container("worker", &waits("ContainerCreating")),
            container("proxy", &waits("ErrImagePull"))
        ]);
        let second = observed(json!({ "phase": "Pending", "containerStatuses": statuses }));
        assert_eq!(second.waiting.unwrap().0, "ErrImagePull");
    }

    #[test]
    fn of_an_unstarted_pod_is_known_whether_it_may_pull() {
        let creating = json!({ "waiting": { "reason": "ContainerCreating" } });
        let unstarted = |ready: Option<(&str, Option<&str>)>, states: &Value| {
            let mut conditions = vec![
                json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:03:05Z" }),
            ];
            conditions.extend(ready.map(
                |(is, why)| json!({ "type": "PodReadyToStartContainers", "status": is, "reason": why }),
            ));
            let mut status = json!({ "phase": "Pending", "startTime": "2026-01-01T00:03:06Z" });
            status["conditions"] = conditions.into();
            status["containerStatuses"] = json!([container("worker", states)]);
            observed(status).unstarted
        };
        let may_pull = |ready| unstarted(ready, &creating).unwrap().may_pull;
        let lacks = Some(("False", Some("PodSandboxNotReady")));
        assert!(!may_pull(lacks), "it has no network yet");
        assert!(may_pull(Some(("False", None))), "the same during a pull");
        assert!(may_pull(Some(("True", None))));
        assert!(may_pull(None), "its kubelet does not say");
        let running = unstarted(Some(("True", None)), &json!({ "running": {} }));
        assert_eq!(running, None);
        let unbound = observed(json!({ "phase": "Pending" }));
        assert_eq!(unbound.unstarted, None);
    }

    #[test]
    fn init_failure_and_sidecar_end_are_no_rejection() {
        let worker = |state: &Value| json!([container("worker", state)]);
        let initializing = json!({ "waiting": { "reason": "PodInitializing" } });
        let ended = |mesh: i32, fetch: i32, worker: &Value| {
            let init = json!([
                container("mesh", &terminated(mesh)),
                container("fetch", &terminated(fetch))
            ]);
            let status =
                json!({ "phase": "Failed", "initContainerStatuses": init, "containerStatuses": worker });
            with_init(status)
        };
        let failed = ended(137, 3, &worker(&initializing));
        let (container, end) = failed.init_failed.unwrap();
        assert_eq!((container.as_str(), end.code), ("fetch", 3));
        assert_eq!((failed.rejected, failed.ended), (None, None));
        let crashed = ended(137, 0, &worker(&terminated(1)));
        assert_eq!((crashed.init_failed, crashed.rejected), (None, None));
        assert_eq!(crashed.ended.unwrap().code, 1);
        let rejected = ended(137, 0, &worker(&initializing));
        assert!(rejected.init_failed.is_none() && rejected.rejected.is_some());
    }
}
