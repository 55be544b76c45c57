//! Converts the cluster's objects to what decisions are made from. Pure.

use crate::decide::objects::{JOB_LABEL, NUMBER_LABEL};
use crate::decide::{ContainerEnd, ObservedJob, ObservedNode, ObservedPod, PodPhase};
use k8s_openapi::api::core::v1::{ContainerStatus, Node, Pod, PodStatus};
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::{Value, json};
use varuna_api::manifest::{API_VERSION, KIND};
use varuna_api::{Job, parse_job};

/// The job as `varuna run` would read it: what a server added to the object is left out.
#[must_use]
pub fn document(name: &str, namespace: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": KIND,
        "metadata": { "name": name, "namespace": namespace },
        "spec": spec,
    })
}

/// The job file for a job's coordinator and workers: without what may change while they run, so that `kubectl scale` or another
/// image does not make another job of it.
#[must_use]
pub fn run_document(name: &str, namespace: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    let mut drop = |at: &str, field: &str| {
        let map = if at.is_empty() {
            Some(&mut spec)
        } else {
            spec.get_mut(at)
        };
        if let Some(map) = map.and_then(Value::as_object_mut) {
            map.remove(field);
        }
    };
    drop("", "suspend");
    drop("", "disruption");
    drop("elasticity", "maxWorkers");
    for field in ["image", "template", "gpusPerPod"] {
        drop("workers", field);
    }
    document(name, namespace, &spec)
}

/// A job's object.
#[must_use]
pub fn job(object: &DynamicObject) -> ObservedJob {
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let parsed: Result<Job, String> =
        parse_job(&document(&name, &namespace, &spec).to_string()).map_err(|errors| errors.to_string());
    let status = object.data.get("status").cloned().unwrap_or_default();
    ObservedJob {
        name,
        namespace,
        uid: object.uid().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or(0),
        spec: parsed,
        // A status that another version wrote is written anew.
        status: serde_json::from_value(status).unwrap_or_default(),
        deleting: object.metadata.deletion_timestamp.is_some(),
    }
}

/// Name of the job that a pod belongs to.
#[must_use]
pub fn job_of(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(JOB_LABEL).map(String::as_str)
}

/// A worker pod; none where it is not one of ours.
#[must_use]
pub fn pod(pod: &Pod) -> Option<ObservedPod> {
    let number = pod.metadata.labels.as_ref()?.get(NUMBER_LABEL)?.parse().ok()?;
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
    Some(ObservedPod {
        name: pod.name_any(),
        number,
        phase: match status.phase.as_deref() {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            _ => PodPhase::Pending,
        },
        node: pod.spec.as_ref().and_then(|s| s.node_name.clone()),
        deleting: pod.metadata.deletion_timestamp.is_some(),
        disrupted: disruption.or_else(|| status.reason.clone()),
        unschedulable,
        waiting: containers.iter().find_map(waiting),
        ended: ended(containers),
    })
}

fn waiting(container: &ContainerStatus) -> Option<(String, String)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((
        waiting.reason.clone()?,
        waiting.message.clone().unwrap_or_default(),
    ))
}

/// The first container that failed; else the last one that ended.
fn ended(containers: &[ContainerStatus]) -> Option<ContainerEnd> {
    let ends = containers.iter().filter_map(|c| {
        let end = c.state.as_ref()?.terminated.as_ref()?;
        Some(ContainerEnd {
            at: end.finished_at.as_ref().map_or(0, |t| t.0.as_second()),
            code: end.exit_code,
            reason: end.reason.clone().unwrap_or_default(),
            message: end.message.clone().unwrap_or_default(),
        })
    });
    ends.min_by_key(|end| (end.code == 0, if end.code == 0 { -end.at } else { end.at }))
}

/// A node.
#[must_use]
pub fn node(node: &Node) -> ObservedNode {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let conditions = node
        .status
        .as_ref()
        .and_then(|s| s.conditions.as_deref())
        .unwrap_or_default();
    ObservedNode {
        // A node that says nothing of itself is new.
        ready: conditions
            .iter()
            .all(|c| c.type_ != "Ready" || c.status == "True"),
        taints: taints.into_iter().flatten().map(|t| t.key.clone()).collect(),
        conditions: conditions
            .iter()
            .filter(|c| c.status == "True")
            .map(|c| c.type_.clone())
            .collect(),
    }
}
