//! Where a job's pods may go: the taints that they tolerate, and the nodes that they avoid. The same for workers and coordinators.

use super::decision::AvoidedNodes;
use super::objects::AVOIDS_ANNOTATION;
use super::pod_parts::{append, may_use_gpu};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use varuna_api::{Job, fill_in};

/// A pod on a node that does not answer is deleted after this time (Kubernetes' default: 300).
const UNREACHABLE_SECONDS: i64 = 15;
/// Taints by which clouds keep other pods off their GPU nodes: key, and value if the key is not specific enough.
const GPU_TAINTS: &[(&str, Option<&str>)] = &[
    ("nvidia.com/gpu", None),
    ("amd.com/gpu", None),
    ("sku", Some("gpu")),
];
/// Taints of nodes that may be taken away at any time, which is what Varuna is made for.
const SPOT_TAINTS: &[&str] = &[
    "cloud.google.com/gke-spot",
    "cloud.google.com/gke-preemptible",
    "kubernetes.azure.com/scalesetpriority",
];

/// Adds tolerations of nodes that do not answer for a moment, of GPU nodes, and of nodes that may be taken away at any time.
pub(super) fn tolerate(spec: &mut Map<String, Value>, job: &Job) {
    let given = spec.entry("tolerations").or_insert(Value::Null);
    fill_in(given, &json!([]));
    let Value::Array(tolerations) = given else {
        return;
    };
    let mut add = |key: &str, toleration: Value| {
        if tolerations.iter().all(|t| t["key"] != key) {
            tolerations.push(toleration);
        }
    };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        add(
            key,
            json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_SECONDS,
            }),
        );
    }
    let gpu: &[_] = if may_use_gpu(job.workers.device) {
        GPU_TAINTS
    } else {
        &[]
    };
    let spot = SPOT_TAINTS.iter().map(|key| (*key, None));
    for (key, value) in gpu.iter().copied().chain(spot) {
        let mut toleration = json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" });
        if let Some(value) = value {
            toleration["operator"] = "Equal".into();
            toleration["value"] = value.into();
        }
        add(key, toleration);
    }
}

/// Notes on a pod which nodes it must avoid: once they may be used again, the pod is created again.
pub(super) fn note_avoided(meta: &mut Value, avoid: &AvoidedNodes) {
    if !avoid.never.is_empty() {
        let nodes: Vec<&str> = avoid.never.iter().map(String::as_str).collect();
        meta["annotations"][AVOIDS_ANNOTATION] = nodes.join(",").into();
    }
}

/// Keeps the pod off some nodes, by their names: names are unique, labels are not.
pub(super) fn avoid_nodes(spec: &mut Map<String, Value>, avoid: &AvoidedNodes) {
    if avoid.never.is_empty() && avoid.rather_not.is_empty() {
        return;
    }
    let affinity = spec.entry("affinity").or_insert(Value::Null);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    if !avoid.never.is_empty() {
        let any_node = json!({ "nodeSelectorTerms": [{}] });
        fill_in(affinity, &json!({ "nodeAffinity": { required: any_node } }));
        let terms = affinity.pointer_mut(&format!("/nodeAffinity/{required}/nodeSelectorTerms"));
        // Any of the terms is enough for the scheduler: each must say it.
        for term in terms.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(term) = term.as_object_mut() {
                append(
                    term.entry("matchFields").or_insert(Value::Null),
                    none_of(&avoid.never),
                );
            }
        }
    }
    if !avoid.rather_not.is_empty() {
        fill_in(affinity, &json!({ "nodeAffinity": { preferred: [] } }));
        if let Some(preferences) = affinity.pointer_mut(&format!("/nodeAffinity/{preferred}")) {
            let preference = json!({ "matchFields": none_of(&avoid.rather_not) });
            append(
                preferences,
                vec![json!({ "weight": 100, "preference": preference })],
            );
        }
    }
}

/// Requirements of a term, all of which must be met. A field's requirement takes one value.
fn none_of(nodes: &BTreeSet<String>) -> Vec<Value> {
    let requirement = |node| json!({ "key": "metadata.name", "operator": "NotIn", "values": [node] });
    nodes.iter().map(requirement).collect()
}
