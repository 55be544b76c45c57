//! `spec.workers`.

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Resources, container image and pod template of the workers.
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
    /// Number of GPUs in a pod. Its container runs one worker for each GPU, and these workers can access each other's memory. Default: 1.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::GPUS_PER_POD)))]
    pub gpus_per_pod: Option<u32>,
    /// Container image of the workers, in a cluster. Default: the image that the operator is configured with.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub image: Option<String>,
    /// Memory that a worker may use for state and activations, in bytes or with a suffix (`300Mi`, `16Gi`). Default: the memory that the
    /// device reports.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string))]
    pub device_memory: Option<Value>,
    /// Device on which a worker computes. `auto` is a GPU if there is one, otherwise the CPU. `cpu` is the CPU. `cuda` is a GPU, and a
    /// worker that finds none ends with an error. Default: `auto`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::DEVICES.map(|(name, _)| name))))]
    pub device: Option<String>,
    /// Transport of tensors between the devices of workers. `auto` is NCCL if all workers have it, otherwise TCP. `nccl` is NCCL, and a
    /// worker without it ends. `tcp` is TCP. Workers that share a GPU need `tcp`. NCCL does not encrypt: with `network.encryption: tls`,
    /// `auto` is TCP and `nccl` is refused. Default: `auto`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::TRANSPORTS.map(|(name, _)| name))))]
    pub transport: Option<String>,
    /// Number of threads that a worker uses for tensor operations. Default: one thread.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::THREADS)))]
    pub threads: Option<u32>,
    /// Size of the folder `/dev/shm` in a pod, in bytes or with a suffix (`16Gi`). NCCL and data loaders share data in it. It counts as
    /// memory of the container. Default: the size that the container runtime gives.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string))]
    pub shm_size: Option<Value>,
    /// Resources of the worker container, as in a pod: `limits` and `requests`. A resource in `template` takes precedence. The GPUs are
    /// added if neither names any.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub resources: Option<Value>,
    /// Pod template of the workers. The operator adds what workers need, and changes no other field.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::open_object))]
    pub template: Option<Value>,
}
