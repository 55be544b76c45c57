//! Converts the cluster's objects to what decisions are made from. Pure.

use crate::decide::{ObservedNode, ObservedRun, ObservedTaint, Settings};
use crate::node_object::NodeObject;
use kube::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use varuna_api::crd::{RunGoal, RunSpec, RunStatus};

/// What the coordinator in charge by these orders reports: none where none is wanted, and empty before it has reported. `status`: the
/// report, as JSON; what this release cannot read of it is left out.
#[must_use]
pub fn reports(orders: &RunSpec, status: &str) -> Option<ObservedRun> {
    if orders.goal == RunGoal::None {
        return None;
    }
    let status: RunStatus = parse_known_fields(status);
    if status.coordinator != orders.coordinator {
        return Some(ObservedRun::default());
    }
    Some(ObservedRun {
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
    })
}

/// A JSON document with only those of its fields that this release can read.
fn parse_known_fields<T: DeserializeOwned + Default>(text: &str) -> T {
    serde_json::from_str(text)
        .unwrap_or_else(|_| readable_fields(serde_json::from_str(text).unwrap_or_default()))
}

/// A document, of which not all can be read, with only those of its fields that can.
pub(crate) fn readable_fields<T: DeserializeOwned + Default>(mut document: Value) -> T {
    if let Value::Object(fields) = &mut document {
        fields.retain(|name, field| serde_json::from_value::<T>(json!({ name: field })).is_ok());
    }
    serde_json::from_value(document).unwrap_or_default()
}

/// A node.
#[must_use]
pub fn node(node: &NodeObject, settings: &Settings) -> ObservedNode {
    let conditions = node.conditions();
    let taints = node.taints().map(|taint| ObservedTaint {
        key: taint.key.clone(),
        added_at: taint.added_at(),
    });
    ObservedNode {
        // A node that says nothing of itself is new.
        ready: conditions.iter().all(|c| c.kind != "Ready" || c.status == "True"),
        taints: taints.collect(),
        conditions: conditions
            .iter()
            .filter(|c| c.status == "True")
            .map(|c| c.kind.clone())
            .collect(),
        domain: settings.domain(node.labels()),
    }
}
