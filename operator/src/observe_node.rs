//! Converts nodes to what decisions are made from. Pure.

use crate::decide::{ObservedNode, ObservedTaint, Settings};
use crate::node_object::NodeObject;
use kube::ResourceExt;

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
