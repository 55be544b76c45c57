//! `spec.workerGroups`.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Workers of one kind among others, as those on spot nodes beside those on nodes that last. What a group does not say, `workers` says; mappings are
/// merged leaf by leaf, and a list of the group's stands for that of `workers`.
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
    /// Name of the group; its pods have it in the label `varuna.dev/worker-group`. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::label))]
    pub name: Option<String>,
    /// Workers that the group gets before any other gets more than its own `minWorkers`; 0 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_GROUP)))]
    pub min_workers: Option<u32>,
    /// Workers that the group may have, 0 to empty it; as many as the job where left out. Groups are filled in their order.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_GROUP)))]
    pub max_workers: Option<u32>,
    /// GPUs of a pod of this group.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::GPUS_PER_POD)))]
    pub gpus_per_pod: Option<u32>,
    /// Container image of the group's workers.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub image: Option<String>,
    /// Resources of the worker's container, merged over those of `workers`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub resources: Option<Value>,
    /// Labels of the nodes that the group's pods go to, merged over `nodeSelector` of the template.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub node_selector: Option<Value>,
    /// Pod template, merged over that of `workers`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub template: Option<Value>,
}
