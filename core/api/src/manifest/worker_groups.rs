//! `spec.workerGroups`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A group of workers with settings of its own, such as the workers on spot nodes. What a group does not set is taken from `workers`.
/// Mappings are merged field by field, and a list of the group replaces that of `workers`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.minWorkers) || !has(self.maxWorkers) || self.minWorkers <= self.maxWorkers",
            "make minWorkers of a group at most its maxWorkers"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkerGroupSpec {
    /// Name of the group. Its pods have this name in the label `varuna.dev/worker-group`. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::label))]
    pub name: Option<String>,
    /// Number of workers that the group gets before any other group gets more than its own `minWorkers`. Default: 0.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_GROUP)))]
    pub min_workers: Option<u32>,
    /// Maximum number of workers in the group. 0 empties it. Groups are filled in their order. Default: as many as the job may have.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_GROUP)))]
    pub max_workers: Option<u32>,
    /// Number of GPUs in a pod of this group. Default: `workers.gpusPerPod`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::GPUS_PER_POD)))]
    pub gpus_per_pod: Option<u32>,
    /// Container image of the group's workers. Default: `workers.image`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub image: Option<String>,
    /// Resources of the worker container. They are merged over `workers.resources`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub resources: Option<Value>,
    /// Labels of the nodes on which the group's pods run. They are merged over `nodeSelector` of the pod template.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub node_selector: Option<Value>,
    /// Pod template. It is merged over `workers.template`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub template: Option<Value>,
}
