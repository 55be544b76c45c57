//! Converts the cluster's objects to what decisions are made from. Pure.

use crate::decide::{ObservedNode, ObservedRun, Settings};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use varuna_api::crd::{RunGoal, RunSpec, RunStatus};

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
pub(crate) fn lenient<T: DeserializeOwned + Default>(mut value: Value) -> T {
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
