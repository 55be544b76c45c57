//! The object of a `VarunaJob`, as the operator keeps it.

use crate::decide::ObservedJob;
use crate::object_document::{ObjectDocument, readable_fields};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{ApiResource, ObjectMeta};
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;
use varuna_api::crd::{SAVE_AT, Status, api_resource};
use varuna_api::manifest::{API_VERSION, KIND, OPERATOR, PRIORITY_CLASS_LABEL, QUEUE_LABEL};
use varuna_api::{Job, parse_job_of_any_release};

/// Characters of the annotation that asks for a checkpoint: a time has fewer.
const SAVE_AT_MAX: usize = 64;
/// Where `kubectl apply` keeps the whole job file once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

static RESOURCE: LazyLock<ApiResource> = LazyLock::new(api_resource);

/// The object of a job. Any object can be read as one, whatever its spec and its status are: a job that does not parse must not hide all others.
/// The spec is kept as text: what is made of it is kept elsewhere ([`JobObject::parsed_spec`]), and a document as values takes ten times
/// as much memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "ObjectDocument")]
pub struct JobObject {
    metadata: ObjectMeta,
    /// JSON.
    spec: Box<str>,
    status: Status,
    is_managed_by_another: bool,
}

/// The part of a spec that can be read whatever else is wrong with it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manager {
    managed_by: Option<String>,
}

impl From<ObjectDocument> for JobObject {
    fn from(document: ObjectDocument) -> JobObject {
        let manager: Manager = serde_json::from_str(document.spec()).unwrap_or_default();
        let mut object = JobObject {
            is_managed_by_another: manager.managed_by.is_some_and(|manager| manager != OPERATOR),
            spec: document.spec().into(),
            status: status(document.status()),
            metadata: document.metadata,
        };
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        object
    }
}

impl Resource for JobObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        RESOURCE.kind.as_str().into()
    }

    fn group((): &()) -> Cow<'_, str> {
        RESOURCE.group.as_str().into()
    }

    fn version((): &()) -> Cow<'_, str> {
        RESOURCE.version.as_str().into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        RESOURCE.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl JobObject {
    /// The labels that name the job's queue and its priority.
    #[must_use]
    pub fn queue_labels(&self) -> BTreeMap<String, String> {
        let of_queue = |name: &String| [QUEUE_LABEL, PRIORITY_CLASS_LABEL].contains(&name.as_str());
        let labels = self.labels().iter().filter(|(name, _)| of_queue(name));
        labels
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    /// Whether the job is of a queue.
    #[must_use]
    pub fn has_queue(&self) -> bool {
        self.labels().contains_key(QUEUE_LABEL)
    }

    /// Whether another controller manages the job. This is also known of a job whose spec cannot be read otherwise.
    #[must_use]
    pub fn is_managed_by_another(&self) -> bool {
        self.is_managed_by_another
    }

    /// The job's spec, or everything that is wrong with it.
    ///
    /// # Errors
    /// The spec is not one.
    pub fn parsed_spec(&self) -> Result<Job, String> {
        let mut document = self.document(self.spec());
        document["metadata"]["labels"] = json!(self.queue_labels());
        let document = document.to_string();
        parse_job_of_any_release(&document).map_err(|errors| errors.to_string())
    }

    /// The job as it is observed, whose spec was parsed before.
    #[must_use]
    pub fn observed(&self, spec: Result<Job, String>) -> ObservedJob {
        ObservedJob {
            name: self.name_any(),
            namespace: self.namespace().unwrap_or_default(),
            uid: self.uid().unwrap_or_default(),
            generation: self.metadata.generation.unwrap_or(0),
            spec,
            save_at: self
                .annotations()
                .get(SAVE_AT)
                .map(|text| text.chars().take(SAVE_AT_MAX).collect()),
            status: self.status.clone(),
            deleting: self.metadata.deletion_timestamp.is_some(),
        }
    }

    /// The job file for the job's coordinator and workers: without what may change while they run, so that `kubectl scale` or another
    /// image does not make another job of it.
    #[must_use]
    pub fn run_document(&self) -> Value {
        let mut spec = self.spec();
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
        self.document(spec)
    }

    /// The job as `varuna run` would read it: what a server added to the object is left out.
    fn document(&self, spec: Value) -> Value {
        let namespace = self.namespace().unwrap_or_default();
        json!({
            "apiVersion": API_VERSION, "kind": KIND,
            "metadata": { "name": self.name_any(), "namespace": namespace },
            "spec": spec,
        })
    }

    fn spec(&self) -> Value {
        // It was checked when it was read.
        serde_json::from_str(&self.spec).unwrap_or_default()
    }
}

/// A job's status, which another release may have written: what this one cannot read of it is left out, and all the rest stays. A job that is
/// complete must not be trained again for a word that is new.
fn status(text: &str) -> Status {
    if let Ok(whole) = serde_json::from_str(text) {
        return whole;
    }
    let mut value: Value = serde_json::from_str(text).unwrap_or_default();
    let reads = |value: &Value| serde_json::from_value::<Status>(value.clone()).is_ok();
    if let Some(Value::Array(conditions)) = value.get_mut("conditions") {
        conditions.retain(|c| reads(&json!({ "conditions": [c] })));
    }
    readable_fields(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::ConditionType;

    fn object(spec: &Value, status: &Value) -> JobObject {
        let metadata = json!({ "name": "j", "namespace": "n", "uid": "u" });
        serde_json::from_value(
            json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec,
            "status": status }),
        )
        .unwrap()
    }

    #[test]
    fn status_of_another_release_keeps_known_fields() {
        let complete = json!({ "type": "Complete", "status": "True", "reason": "LastStep", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({ "phase": "Hibernating", "step": 7, "plan": "P2xD2", "newestPod": 3, "newField": {},
            "conditions": [{ "type": "New", "status": 5 }, complete] });
        let found = object(&json!({}), &status).status;
        assert!(found.if_true(ConditionType::Complete).is_some());
        assert_eq!((found.step, found.newest_pod), (Some(7), 3));
        assert!(found.phase.is_none() && found.plan.is_none());
        assert_eq!(object(&json!({}), &json!("nonsense")).status, Status::default());
    }

    #[test]
    fn what_only_others_use_is_not_kept() {
        let found: JobObject = serde_json::from_value(json!({
            "apiVersion": API_VERSION, "kind": KIND,
            "metadata": { "name": "j", "namespace": "n", "annotations": { LAST_APPLIED: "{}", SAVE_AT: "now" },
                "managedFields": [{ "manager": "kubectl", "operation": "Apply" }] },
        }))
        .unwrap();
        assert!(found.meta().managed_fields.is_none());
        assert_eq!(found.annotations().keys().collect::<Vec<_>>(), [SAVE_AT]);
        assert_eq!(
            found.observed(found.parsed_spec()).save_at.as_deref(),
            Some("now")
        );
    }

    #[test]
    fn job_of_another_controller_is_recognized_unread() {
        let managed_by = |manager: &Value| {
            object(&json!({ "managedBy": manager, "training": 7 }), &json!({})).is_managed_by_another()
        };
        assert!(managed_by(&json!("example.com/another")));
        assert!(!managed_by(&json!(OPERATOR)) && !managed_by(&Value::Null));
    }

    #[test]
    fn a_field_that_this_release_does_not_know_is_no_error() {
        let spec = json!({ "model": { "preset": "gpt2-tiny" }, "data": { "path": "d" }, "newField": 1,
            "training": { "globalBatchSize": 8, "steps": 10, "optimizer": { "learningRate": 0.001, "new": 1 } } });
        assert_eq!(
            object(&spec, &json!({})).parsed_spec().unwrap().training.steps,
            10
        );
    }
}
