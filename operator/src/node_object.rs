//! The object of a node, as far as the operator reads it.

use crate::object_document::WithoutManagedFields;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use serde::Deserialize;

/// The object of a node. Thousands of nodes report every few minutes that they are well, with all their images: what is not read is skipped.
#[derive(Clone, Debug, Default, Deserialize, kube_derive::Resource)]
#[resource(inherit = Node)]
pub struct NodeObject {
    #[serde(default, with = "WithoutManagedFields")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeSpec {
    taints: Option<Vec<NodeTaint>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatus {
    conditions: Option<Vec<NodeCondition>>,
}

/// Why pods are kept away from a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NodeTaint {
    pub(crate) key: String,
    time_added: Option<String>,
}

impl NodeTaint {
    /// When it was added, in seconds since 1970; none where it does not say so in a way that can be read.
    pub(crate) fn added_at(&self) -> Option<i64> {
        let at: Timestamp = self.time_added.as_deref()?.parse().ok()?;
        Some(at.as_second())
    }
}

/// A condition that a node reports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NodeCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
}

impl NodeObject {
    pub(crate) fn taints(&self) -> impl Iterator<Item = &NodeTaint> {
        self.spec.taints.iter().flatten()
    }

    pub(crate) fn conditions(&self) -> &[NodeCondition] {
        self.status.conditions.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::Resource as _;
    use serde_json::json;

    #[test]
    fn what_is_not_read_of_a_node_may_be_anything() {
        let node: NodeObject = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "a", "resourceVersion": "7", "labels": { "l": "1" }, "managedFields": "nonsense" },
            "spec": { "podCIDR": 5, "taints": [{ "key": "k", "effect": "NoSchedule", "timeAdded": "nonsense" }] },
            "status": { "images": {}, "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": 1 }] },
        }))
        .unwrap();
        assert_eq!(node.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(
            node.taints().map(|taint| taint.key.as_str()).collect::<Vec<_>>(),
            ["k"]
        );
        assert!(node.taints().all(|taint| taint.added_at().is_none()));
        let ready = &node.conditions()[0];
        assert_eq!((ready.kind.as_str(), ready.status.as_str()), ("Ready", "True"));
        assert_eq!(NodeObject::url_path(&(), None), "/api/v1/nodes");
    }

    #[test]
    fn a_taint_may_say_since_when_it_is_there() {
        let since = json!({ "key": "k", "effect": "NoExecute", "timeAdded": "2027-01-15T08:00:07Z" });
        let taints = json!([since, { "key": "l", "timeAdded": null }, { "key": "m" }]);
        let node: NodeObject =
            serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": { "taints": taints } }))
                .unwrap();
        let added: Vec<_> = node.taints().map(NodeTaint::added_at).collect();
        assert_eq!(added, [Some(1_800_000_007), None, None]);
    }

    #[test]
    fn a_node_that_says_nothing_can_be_read() {
        let node: NodeObject =
            serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": { "taints": null } }))
                .unwrap();
        assert!(node.taints().next().is_none() && node.conditions().is_empty());
    }
}
