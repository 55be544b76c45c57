//! Parts of pods that the templates of workers and coordinators share.

use serde_json::{Map, Value, json};
use varuna_api::{WorkerDevice, fill_in};

/// What the names of our own labels and annotations begin with.
const OWN_PREFIX: &str = "varuna.dev/";

/// Adds the labels and annotations of a template, except those of our own domain. Those identify a pod: copied from the pod of another job,
/// they would make a pod that this job does not recognize and creates again and again.
pub(super) fn fill_in_metadata(meta: &mut Value, template: &Value) {
    for field in ["labels", "annotations"] {
        let mut given = template["metadata"][field].clone();
        if let Some(given) = given.as_object_mut() {
            given.retain(|name, _| !name.starts_with(OWN_PREFIX));
        }
        fill_in(&mut meta[field], &given);
    }
}

/// Takes the containers out of a pod's spec: the one of this name, empty where there is none, and the others.
pub(super) fn take_container(spec: &mut Map<String, Value>, name: &str) -> (Value, Vec<Value>) {
    let mut containers = spec
        .remove("containers")
        .and_then(|c| c.as_array().cloned())
        .unwrap_or_default();
    let at = containers.iter().position(|c| c["name"] == name);
    let found = at.map_or_else(|| json!({}), |at| containers.remove(at));
    (found, containers)
}

/// What every pod of a job may do, unless its template says otherwise.
pub(super) fn security_context() -> Value {
    json!({
        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
        // Else each start would change the owner of every file of a dataset.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// Adds more to a list, which may be missing.
pub(super) fn append(list: &mut Value, more: Vec<Value>) {
    fill_in(list, &json!([]));
    if let Some(list) = list.as_array_mut() {
        list.extend(more);
    }
}

/// Whether workers get a GPU each. A worker that may use a GPU or not gets one: otherwise it would never see any.
pub(super) fn may_use_gpu(device: WorkerDevice) -> bool {
    match device {
        WorkerDevice::Auto | WorkerDevice::Cuda => true,
        WorkerDevice::Cpu => false,
    }
}
