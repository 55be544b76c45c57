//! The operator's configuration, and where nodes are by their labels.

use std::collections::BTreeMap;

/// The operator's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Image of workers whose job names none.
    pub image: Option<String>,
    /// Image of coordinators.
    pub coordinator_image: Option<String>,
    /// Priority class of coordinators whose job names none.
    pub coordinator_priority_class: Option<String>,
    /// Name of the GPU resource; none = workers ask for no GPU.
    pub gpu_resource: Option<String>,
    /// Taint prefixes and condition types that announce the end of a node, in addition to those of the job.
    pub node_signals: Vec<String>,
    /// Labels of nodes that say where they are, from the widest part to the narrowest, after [`TOPOLOGY_LABELS`].
    pub topology_labels: Vec<String>,
}

/// Labels by which clusters and clouds say where a node is, from the widest part to the narrowest.
pub const TOPOLOGY_LABELS: &[&str] = &[
    "topology.kubernetes.io/zone",
    // GKE, of nodes placed compactly.
    "cloud.google.com/gce-topology-block",
    "cloud.google.com/gce-topology-subblock",
    // EKS: the network's layers above a node.
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
    // Nodes whose GPUs share an NVLink switch.
    "nvidia.com/gpu.clique",
];

/// Maximum number of characters of a node's domain: the orders of each coordinator contain the domains of its workers' nodes.
const DOMAIN_MAX: usize = 512;

impl Settings {
    /// Where a node with these labels is; empty where none of them says.
    #[must_use]
    pub fn domain(&self, labels: &BTreeMap<String, String>) -> String {
        let known = TOPOLOGY_LABELS.iter().copied();
        let all = known.chain(self.topology_labels.iter().map(String::as_str));
        let parts: Vec<&str> = all.filter_map(|l| labels.get(l).map(String::as_str)).collect();
        parts.join("/").chars().take(DOMAIN_MAX).collect()
    }
}
