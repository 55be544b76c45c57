//! Converts the cluster's objects to what decisions are made from. Pure.

use crate::decide::{ObservedJob, ObservedNode, ObservedRun, Settings};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use varuna_api::crd::{RunGoal, RunSpec, RunStatus, SAVE_AT, Status};
use varuna_api::manifest::{API_VERSION, KIND, OPERATOR, QUEUE_LABEL};
use varuna_api::{Job, parse_job_of_any_release};

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
    drop("", "coordinator");
    drop("", "workerGroups");
    drop("", "failurePolicy");
    drop("", "activeDeadlineSeconds");
    drop("", "ttlSecondsAfterFinished");
    drop("", "allowStateLoss");
    drop("", "managedBy");
    for field in ["image", "template", "gpusPerPod", "shmSize", "resources"] {
        drop("workers", field);
    }
    for field in ["policy", "extraIngress", "extraEgress"] {
        drop("network", field);
    }
    document(name, namespace, &spec)
}

/// The label of a job that names its queue.
#[must_use]
pub fn queue_label(object: &DynamicObject) -> Option<&String> {
    object.labels().get(QUEUE_LABEL)
}

/// Whether another controller looks after a job. Also that of a job whose spec cannot be read is left to it.
#[must_use]
pub fn is_managed_by_another(object: &DynamicObject) -> bool {
    let manager = object.data.pointer("/spec/managedBy").and_then(Value::as_str);
    manager.is_some_and(|manager| manager != OPERATOR)
}

/// Characters of the annotation that asks for a checkpoint: a time has fewer.
const SAVE_AT_MAX: usize = 64;

/// A job's object.
#[must_use]
pub fn job(object: &DynamicObject) -> ObservedJob {
    job_with(object, parsed_spec(object))
}

/// A job's spec, or everything that is wrong with it.
///
/// # Errors
/// The spec is not one.
pub fn parsed_spec(object: &DynamicObject) -> Result<Job, String> {
    let (name, namespace) = (object.name_any(), object.namespace().unwrap_or_default());
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    let mut document = document(&name, &namespace, &spec);
    if let Some(queue) = queue_label(object) {
        document["metadata"]["labels"] = json!({ QUEUE_LABEL: queue });
    }
    let document = document.to_string();
    parse_job_of_any_release(&document).map_err(|errors| errors.to_string())
}

/// A job's object, whose spec was parsed before.
#[must_use]
pub fn job_with(object: &DynamicObject, spec: Result<Job, String>) -> ObservedJob {
    ObservedJob {
        name: object.name_any(),
        namespace: object.namespace().unwrap_or_default(),
        uid: object.uid().unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or(0),
        spec,
        save_at: object
            .annotations()
            .get(SAVE_AT)
            .map(|text| text.chars().take(SAVE_AT_MAX).collect()),
        status: status(object.data.get("status").cloned().unwrap_or_default()),
        deleting: object.metadata.deletion_timestamp.is_some(),
    }
}

/// A job's status, which another release may have written: what this one cannot read of it is left out, and all the rest stays. A job that is
/// complete must not be trained again for a word that is new.
fn status(mut value: Value) -> Status {
    if let Ok(whole) = Status::deserialize(&value) {
        return whole;
    }
    let reads = |value: &Value| serde_json::from_value::<Status>(value.clone()).is_ok();
    if let Some(Value::Array(conditions)) = value.get_mut("conditions") {
        conditions.retain(|c| reads(&json!({ "conditions": [c] })));
    }
    lenient(value)
}

/// The orders and the reports in a `VarunaRun`. Reports are those of the coordinator in charge: none where none is wanted, and empty before it
/// has reported. What this release cannot read of a report is left out.
#[must_use]
pub fn run(object: &DynamicObject) -> (Option<RunSpec>, Option<ObservedRun>) {
    let Some(Ok(orders)) = object.data.get("spec").map(RunSpec::deserialize) else {
        return (None, None);
    };
    if orders.goal == RunGoal::None {
        return (Some(orders), None);
    }
    let status = lenient::<RunStatus>(object.data.get("status").cloned().unwrap_or_default());
    if status.coordinator != orders.coordinator {
        return (Some(orders), Some(ObservedRun::default()));
    }
    let run = ObservedRun {
        snapshot: status.state,
        loss: status.loss,
        skipped_steps: status.skipped_steps,
        loss_scale: status.loss_scale,
        checkpoints: status.checkpoints,
        address: status.address.and_then(|a| a.parse().ok()),
        health_address: status.health_address.and_then(|a| a.parse().ok()),
        messages: status.messages,
        recoveries: status.recoveries,
        ended: status.end,
    };
    (Some(orders), Some(run))
}

/// A document with only those of its fields that this release can read.
fn lenient<T: DeserializeOwned + Default>(mut value: Value) -> T {
    if let Ok(whole) = T::deserialize(&value) {
        return whole;
    }
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, field| serde_json::from_value::<T>(json!({ name: field })).is_ok());
    }
    serde_json::from_value(value).unwrap_or_default()
}

/// A node.
#[must_use]
pub fn node(node: &Node, settings: &Settings) -> ObservedNode {
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
        domain: settings.domain(node.labels()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::ConditionType;

    fn object(spec: &Value, status: &Value) -> DynamicObject {
        let metadata = json!({ "name": "j", "namespace": "n", "uid": "u" });
        serde_json::from_value(
            json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec,
            "status": status }),
        )
        .unwrap()
    }

    #[test]
    fn a_status_of_another_release_is_kept_but_for_what_is_new_in_it() {
        let complete = json!({ "type": "Complete", "status": "True", "reason": "LastStep", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({ "phase": "Hibernating", "step": 7, "plan": "P2xD2", "newestPod": 3, "newField": {},
            "conditions": [{ "type": "New", "status": 5 }, complete] });
        let found = job(&object(&json!({}), &status)).status;
        assert!(found.if_true(ConditionType::Complete).is_some());
        assert_eq!((found.step, found.newest_pod), (Some(7), 3));
        assert!(found.phase.is_none() && found.plan.is_none());
        assert_eq!(
            job(&object(&json!({}), &json!("nonsense"))).status,
            Status::default()
        );
    }

    #[test]
    fn a_job_of_another_controller_is_known_by_its_name_also_where_nothing_else_can_be_read() {
        let managed_by = |manager: &Value| {
            is_managed_by_another(&object(
                &json!({ "managedBy": manager, "training": 7 }),
                &json!({}),
            ))
        };
        assert!(managed_by(&json!("example.com/another")));
        assert!(!managed_by(&json!(OPERATOR)) && !managed_by(&Value::Null));
    }

    #[test]
    fn a_field_that_this_release_does_not_know_is_no_error() {
        let spec = json!({ "model": { "preset": "gpt2-tiny" }, "data": { "path": "d" }, "newField": 1,
            "training": { "globalBatchSize": 8, "steps": 10, "optimizer": { "learningRate": 0.001, "new": 1 } } });
        assert_eq!(job(&object(&spec, &json!({}))).spec.unwrap().training.steps, 10);
    }
}
