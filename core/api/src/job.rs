//! A job with every default filled in and every check passed.

use crate::lifecycle::{Disruption, Lifecycle};
use crate::training::Training;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use varuna_model::{Layout, Model};
use varuna_plan::{ScheduleSpec, SpareCopies};

/// A valid job. Made by [`crate::parse_job`] only, so that no caller needs to check it again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Name: a DNS label.
    pub name: String,
    /// Namespace; `default` where the file has none.
    pub namespace: String,
    /// The model.
    pub model: Model,
    /// Batch, steps and optimizer.
    pub training: Training,
    /// Number format of the training arithmetic.
    pub precision: Precision,
    /// The datasets.
    pub data: Data,
    /// How the model may be cut.
    pub pipeline: Pipelines,
    /// Minimum and maximum number of workers.
    pub elasticity: Elasticity,
    /// Resources, image and pod template of the workers.
    pub workers: Workers,
    /// Kinds of workers, in a cluster; none = all are `workers`. Not in the hash, as with `lifecycle`.
    #[serde(skip)]
    pub worker_groups: Vec<WorkerGroup>,
    /// Where state is saved, if anywhere.
    pub checkpoint: Option<Checkpoint>,
    /// Connections between workers.
    pub network: Network,
    /// Steps between comparisons of the state that several workers hold, at least 1; none = nothing is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare_every_steps: Option<u64>,
    /// Which signals announce the end of a worker.
    pub disruption: Disruption,
    /// The run is stopped until this is false again.
    pub suspend: bool,
    /// The queue of Kueue whose admission it waits for, in a cluster; none = it waits for none. Not in the hash, as with `lifecycle`.
    #[serde(skip)]
    pub queue: Option<String>,
    /// The WorkloadPriorityClass of Kueue that determines its priority in the queue; none = the priority of its pods. Not in the hash, as
    /// with `lifecycle`.
    #[serde(skip)]
    pub workload_priority_class: Option<String>,
    /// When the job ends for other reasons than its last step. Not in the hash: only the operator uses it, and it may change while the job
    /// runs.
    #[serde(skip)]
    pub lifecycle: Lifecycle,
    /// The coordinator's pod, in a cluster. Not in the hash, as with `lifecycle`.
    #[serde(skip)]
    pub coordinator: CoordinatorPod,
    /// Who may reach the job's pods, in a cluster. Not in the hash, as with `lifecycle`.
    #[serde(skip)]
    pub network_policy: NetworkPolicy,
}

/// Arithmetic of the training.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats throughout.
    Fp32,
    /// Parameters, activations and their gradients in 16 bits with the exponents of fp32; sums over samples, master parameters and moments in fp32.
    Bf16,
    /// The same in 16 bits with three more mantissa bits and a small range: the loss is scaled, so that gradients stay within it.
    Fp16,
}

impl Job {
    /// The units of its state: those of its model, divided into ranges if the optimizer's state is sharded.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.training.optimizer.sharding.layout(self.model.layout())
    }
}

impl Precision {
    /// Bytes of an element of an activation.
    #[must_use]
    pub fn element_bytes(self) -> u64 {
        match self {
            Precision::Fp32 => 4,
            Precision::Bf16 | Precision::Fp16 => 2,
        }
    }
}

/// The tokens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    /// The datasets that are trained on, at least one.
    pub train: Vec<DataSource>,
    /// What evaluation is done on.
    pub held_out: HeldOut,
}

/// A dataset that is trained on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataSource {
    /// Path of the dataset without `.bin` / `.idx`, as written; a relative path is relative to the working directory.
    pub path: String,
    /// Its weight among the others, a number above 0: only the ratios count.
    pub weight: f64,
}

/// What is held out for evaluation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HeldOut {
    /// This fraction of each dataset's samples, 0 to 0.5: the last ones.
    Fraction(f64),
    /// All samples of the dataset of this path.
    Dataset(String),
}

impl HeldOut {
    /// Whether nothing is held out.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == HeldOut::Fraction(0.0)
    }
}

/// Limits and order of the pipelines.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pipelines {
    /// Schedules that the planner may choose from, the preferred one first.
    pub schedules: Vec<ScheduleSpec>,
    /// Samples in a micro-batch, if the job fixes it; divides the global batch.
    pub micro_batch_size: Option<u32>,
    /// Fewest stages of a pipeline, at least 1.
    pub min_depth: u32,
    /// Most stages of a pipeline, at most the number of segments.
    pub max_depth: u32,
}

/// Limits of the number of workers, and protection against the loss of one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Elasticity {
    /// At least 1; with fewer, training waits.
    pub min_workers: u32,
    /// At least `min_workers`; none = no limit.
    pub max_workers: Option<u32>,
    /// Whether another worker keeps a copy of units that only one worker holds.
    #[serde(default, skip_serializing_if = "SpareCopies::is_off")]
    pub spare_copies: SpareCopies,
}

/// Resources, image and pod template of the workers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workers {
    /// Worker processes in a pod's container, at least 1.
    pub gpus_per_pod: u32,
    /// Container image, for clusters.
    pub image: Option<String>,
    /// Memory that a worker may use; none = what the device reports.
    pub device_memory_bytes: Option<u64>,
    /// What a worker computes on. Not in the hash of jobs that leave it to the workers: their hash is the same as before this field
    /// existed.
    #[serde(default, skip_serializing_if = "WorkerDevice::is_auto")]
    pub device: WorkerDevice,
    /// What carries tensors between workers' devices. Not in the hash of jobs that omit it, as with `device`.
    #[serde(default, skip_serializing_if = "WorkerTransport::is_auto")]
    pub transport: WorkerTransport,
    /// Threads for tensor operations; none = one.
    pub threads: Option<u32>,
    /// Memory of a pod's `/dev/shm`, bytes; none = what the container runtime gives. Like the two fields below, not in the hash if omitted,
    /// as with `device`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_bytes: Option<u64>,
    /// Resources of the worker's container, as written: a mapping of mappings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Value>,
    /// Pod template, as written.
    pub template: Option<Value>,
}

impl Workers {
    /// Identity of the settings that pods are made from (16 hex digits): pods with another one are outdated.
    #[must_use]
    pub fn pods_hash(&self) -> String {
        // Plain data always serialises.
        let value = serde_json::to_value(self).unwrap_or_default();
        let mut hash = crate::hash::of("varuna-pods-1", &[&value]);
        hash.truncate(16);
        hash
    }
}

/// Workers of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerGroup {
    /// Its name: a DNS label, unique in the job.
    pub name: String,
    /// Workers that it gets before any other group gets more than its own minimum.
    pub min_workers: u32,
    /// Workers that it may have; none = as many as the job.
    pub max_workers: Option<u32>,
    /// The settings of its pods: its own over those of the job.
    pub workers: Workers,
}

/// What a worker computes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerDevice {
    /// A GPU if there is one, otherwise the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU.
    Cuda,
}

impl WorkerDevice {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_auto(&self) -> bool {
        *self == WorkerDevice::Auto
    }
}

/// What carries tensors between the devices of workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerTransport {
    /// NCCL if all workers have it, otherwise TCP; TCP if the network encrypts.
    #[default]
    Auto,
    /// NCCL; a worker without it ends.
    Nccl,
    /// TCP, through the memory of the hosts.
    Tcp,
}

impl WorkerTransport {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    fn is_auto(&self) -> bool {
        *self == WorkerTransport::Auto
    }
}

/// Where checkpoints are saved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Folder or bucket.
    pub uri: String,
    /// The other job's checkpoint with which the job begins, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<CheckpointSource>,
    /// Steps between checkpoints, at least 1. This or `interval_seconds` is given.
    pub interval_steps: Option<u64>,
    /// Seconds between checkpoints, at least 1.
    pub interval_seconds: Option<u64>,
    /// Whether checkpoints are also made more often, while the losses of workers make this worth its cost. A job of an earlier build, which
    /// does not say, means the same as a job file that does not.
    #[serde(default = "Checkpoint::adaptive_by_default")]
    pub adaptive: bool,
    /// Regular checkpoints to keep, at least 1. Those that were made only because of losses do not count.
    pub keep: u32,
    /// Maximum bytes that a worker uploads per second; none = no limit.
    pub upload_bytes_per_second: Option<u64>,
}

/// A checkpoint of another job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointSource {
    /// Folder or bucket of that job's checkpoints.
    pub uri: String,
    /// Name of the other job.
    pub job: String,
    /// The checkpoint's step; none = the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Whether only the parameters are used: the optimizer and the steps begin anew.
    pub weights_only: bool,
}

impl Checkpoint {
    /// Whether checkpoints are also made more often, where that is not written.
    pub(crate) fn adaptive_by_default() -> bool {
        true
    }

    /// The interval in steps as a worker counts it. An interval in seconds is ordered by the coordinator.
    #[must_use]
    pub fn regular_steps(&self) -> u64 {
        self.interval_steps.unwrap_or(u64::MAX)
    }
}

/// Connections between workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// The encryption. It is the same for all workers: each takes it from the job that its coordinator gives it.
    pub encryption: Encryption,
}

/// Encryption between workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    /// The network is trusted.
    None,
    /// TLS 1.3.
    Tls,
}

/// Who may reach a job's pods, and whom they may reach, in a cluster.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct NetworkPolicy {
    /// Directions that are restricted.
    pub restriction: Restriction,
    /// Additional rules for who may reach them, as written: mappings.
    pub extra_ingress: Vec<Value>,
    /// Additional rules for whom they may reach, as written: mappings.
    pub extra_egress: Vec<Value>,
}

/// What a job's network policies restrict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Restriction {
    /// There are no policies.
    None,
    /// They restrict who may reach the job's pods.
    #[default]
    Ingress,
    /// Both directions are restricted.
    IngressAndEgress,
}

/// The pod of a job's coordinator, in a cluster.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CoordinatorPod {
    /// Its service account; none = that of the workers' template, or a separate one.
    pub service_account: Option<String>,
    /// Its pod template, as written.
    pub template: Option<Value>,
}
