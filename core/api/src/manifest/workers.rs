//! `spec.workers`.

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Resources, image and pod template of the workers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.transport) || self.transport != 'nccl' || !has(self.device) || self.device != 'cpu'",
            "make transport auto or tcp, or device cuda: NCCL needs GPUs"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkersSpec {
    /// GPUs of a pod, and so workers in its container, which reach each other's memory; 1 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::GPUS_PER_POD)))]
    pub gpus_per_pod: Option<u32>,
    /// Container image of the worker, for clusters.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub image: Option<String>,
    /// Memory that a worker may use for state and activations (`300Mi`, `16Gi`, or bytes); what the device reports where
    /// left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string))]
    pub device_memory: Option<Value>,
    /// `auto` (where left out), a GPU where there is one and else the processor, `cpu`, or `cuda`, which fails where there is no
    /// GPU: what a worker computes on.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::DEVICES.map(|(name, _)| name))))]
    pub device: Option<String>,
    /// `auto` (where left out), NCCL between workers that all have it and else TCP, `nccl`, with which a worker that has none ends, or `tcp`:
    /// what carries tensors between the devices of workers. Workers that share a GPU need `tcp`. NCCL does not encrypt: with `encryption: tls` of
    /// the network `auto` is TCP, and `nccl` is refused.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::TRANSPORTS.map(|(name, _)| name))))]
    pub transport: Option<String>,
    /// Threads of a worker for tensor operations; the machine's cores shared out among its workers where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::THREADS)))]
    pub threads: Option<u32>,
    /// Memory (`16Gi`, or bytes) of the folder `/dev/shm` of a pod, through which NCCL and data loaders share data; it counts as memory of
    /// the container. What the container runtime gives where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string))]
    pub shm_size: Option<Value>,
    /// Resources of the worker's container, as in a pod: `limits` and `requests` by name. A resource that the template gives takes
    /// precedence; the GPUs are added where neither names any.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub resources: Option<Value>,
    /// Pod template; the operator completes it and changes no other field.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub template: Option<Value>,
}
