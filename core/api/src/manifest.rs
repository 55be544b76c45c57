//! The job file as written: `VarunaJob` of `varuna.dev/v1alpha1`, every field optional.
//!
//! These types only define the fields. Which fields must be there, their defaults and their limits are decided in
//! one place, `resolve`, so that all errors of a file can be shown at once. The comments here become the field's help.
//!
//! The attributes for `kubernetes` say what an API server refuses by itself, and with which message. They take limits and names
//! from `limits` and `choices`, as the resolver does. There is no `serde(default)`: an option needs none, and `KubeSchema` copies a struct
//! without its `Default`.

#![cfg_attr(
    feature = "kubernetes",
    expect(unreachable_pub, reason = "KubeSchema copies a struct into a function")
)]

#[cfg(feature = "kubernetes")]
use crate::{choices, limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

mod checkpoint;
mod coordinator;
mod data;
mod disruption;
mod exported;
mod failure_policy;
mod loss_scale;
mod masking;
mod model;
mod network;
mod optimizer;
mod rope_scaling;
mod worker_groups;
mod workers;
pub use checkpoint::{CheckpointSourceSpec, CheckpointSpec, IntegritySpec};
pub use coordinator::CoordinatorSpec;
pub use data::{DataSourceSpec, DataSpec, PackingSpec};
pub use disruption::DisruptionSpec;
pub use exported::{ExportedSampleSpec, ExportedSegmentSpec, ExportedSpec};
pub use failure_policy::FailurePolicySpec;
pub use loss_scale::LossScaleSpec;
pub use masking::MaskingSpec;
pub use model::ModelSpec;
pub use network::NetworkSpec;
pub use optimizer::OptimizerSpec;
pub use rope_scaling::RopeScalingSpec;
pub use worker_groups::WorkerGroupSpec;
pub use workers::WorkersSpec;

/// `apiVersion` of a job file.
pub const API_VERSION: &str = "varuna.dev/v1alpha1";
/// `kind` of a job file.
pub const KIND: &str = "VarunaJob";
/// Label of a job that waits for the admission of a queue of Kueue, and that queue's name. Kueue's own name for it.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Label of a job in a queue, and the WorkloadPriorityClass by which that queue prefers it to others. Kueue's own name for it.
pub const PRIORITY_CLASS_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// `spec.managedBy` of jobs that the operator looks after, as it does after those that leave the field out.
pub const OPERATOR: &str = "varuna.dev/operator";

/// The whole file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VarunaJob {
    /// `varuna.dev/v1alpha1`.
    pub api_version: Option<String>,
    /// `VarunaJob`.
    pub kind: Option<String>,
    /// Name, namespace, labels.
    pub metadata: Option<Metadata>,
    /// The job.
    pub spec: Option<Spec>,
}

/// The part of Kubernetes' object metadata that a person writes; what a server adds is not accepted in a job file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Name of the job. Required.
    pub name: Option<String>,
    /// Namespace; `default` where left out.
    pub namespace: Option<String>,
    /// Labels, passed through.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations, passed through.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What to train, on what, how.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.pipeline) || !has(self.pipeline.minDepth) || (self.pipeline.minDepth <= self.elasticity.maxWorkers && (!has(self.elasticity.minWorkers) || self.pipeline.minDepth <= self.elasticity.minWorkers))",
            "make elasticity.minWorkers and maxWorkers at least pipeline.minDepth: a pipeline needs that many workers"),
        validation = ("!has(self.workers) || !has(self.workers.gpusPerPod) || (self.elasticity.maxWorkers / self.workers.gpusPerPod) * self.workers.gpusPerPod >= (has(self.elasticity.minWorkers) ? self.elasticity.minWorkers : 1)",
            "raise elasticity.maxWorkers or lower workers.gpusPerPod: whole pods within maxWorkers must hold at least minWorkers"),
        validation = ("!has(self.workerGroups) || self.workerGroups.map(g, has(g.minWorkers) ? g.minWorkers : 0).sum() <= self.elasticity.maxWorkers",
            "raise elasticity.maxWorkers, or lower the groups' minWorkers: together they must fit into it"),
        validation = ("!has(self.workerGroups) || self.workerGroups.exists(g, !has(g.maxWorkers)) || self.workerGroups.map(g, has(g.maxWorkers) ? g.maxWorkers : 0).sum() >= (has(self.elasticity.minWorkers) ? self.elasticity.minWorkers : 1)",
            "raise maxWorkers of a group, or lower elasticity.minWorkers: the groups must be able to hold that many"),
        validation = ("has(self.training.masking) == (has(self.model.bidirectional) ? self.model.bidirectional : has(self.model.preset) && self.model.preset.startsWith('bert-'))",
            "give training.masking where model.bidirectional is true, as it is in a BERT, and only there: a model that sees the next token cannot learn to predict it"),
        validation = ("!has(self.training.masking) || !has(self.model.vocabularySize) || self.training.masking.maskToken < self.model.vocabularySize",
            "make training.masking.maskToken less than model.vocabularySize"),
        validation = ("!has(self.training.masking) || !has(self.data.packing) || !has(self.data.packing.maskLoss) || !self.data.packing.maskLoss",
            "leave data.packing.maskLoss out: with training.masking no token is predicted from the one before"),
        validation = ("!has(self.training.evaluation) || !has(self.data.validationFraction) || self.data.validationFraction > 0.0",
            "leave training.evaluation out, or make data.validationFraction more than 0: no samples are held out"),
        validation = ("!has(self.workers) || !has(self.workers.transport) || self.workers.transport != 'nccl' || !has(self.network) || !has(self.network.encryption) || self.network.encryption != 'tls'",
            "make workers.transport auto or tcp, or network.encryption none: NCCL does not encrypt what it sends"),
        // What identifies the run. A run with another model or batch is another run.
        validation = ("self.model == oldSelf.model",
            "model cannot change: make a new job"),
        validation = ("self.data == oldSelf.data",
            "data cannot change: make a new job"),
        validation = ("self.training.globalBatchSize == oldSelf.training.globalBatchSize && self.training.optimizer == oldSelf.training.optimizer && has(self.training.microBatchSize) == has(oldSelf.training.microBatchSize) && (!has(self.training.microBatchSize) || self.training.microBatchSize == oldSelf.training.microBatchSize) && has(self.training.seed) == has(oldSelf.training.seed) && (!has(self.training.seed) || self.training.seed == oldSelf.training.seed) && has(self.training.precision) == has(oldSelf.training.precision) && (!has(self.training.precision) || self.training.precision == oldSelf.training.precision) && has(self.training.lossScale) == has(oldSelf.training.lossScale) && (!has(self.training.lossScale) || self.training.lossScale == oldSelf.training.lossScale) && has(self.training.skipLimit) == has(oldSelf.training.skipLimit) && (!has(self.training.skipLimit) || self.training.skipLimit == oldSelf.training.skipLimit) && has(self.training.masking) == has(oldSelf.training.masking) && (!has(self.training.masking) || self.training.masking == oldSelf.training.masking) && has(self.training.evaluation) == has(oldSelf.training.evaluation) && (!has(self.training.evaluation) || self.training.evaluation == oldSelf.training.evaluation)",
            "training cannot change, but for training.steps, which can grow: make a new job"),
        validation = ("self.training.steps >= oldSelf.training.steps",
            "training.steps can grow, not shrink: suspend the job or delete it to end it sooner"),
        validation = ("has(self.pipeline) == has(oldSelf.pipeline) && (!has(self.pipeline) || self.pipeline == oldSelf.pipeline)",
            "pipeline cannot change: make a new job"),
        validation = ("has(self.checkpoint) == has(oldSelf.checkpoint) && (!has(self.checkpoint) || self.checkpoint == oldSelf.checkpoint)",
            "checkpoint cannot change: make a new job"),
        validation = ("(has(self.network) && has(self.network.encryption) ? self.network.encryption : 'none') == (has(oldSelf.network) && has(oldSelf.network.encryption) ? oldSelf.network.encryption : 'none')",
            "network.encryption cannot change: make a new job"),
        validation = ("(has(self.network) && has(self.network.policy) ? self.network.policy : 'ingress') == (has(oldSelf.network) && has(oldSelf.network.policy) ? oldSelf.network.policy : 'ingress')",
            "network.policy cannot change (extraIngress and extraEgress can; a rule {} lets everything through): make a new job"),
        validation = ("has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
            "managedBy cannot change, as two controllers would look after the job for a while: make a new job"),
        validation = ("has(self.integrity) == has(oldSelf.integrity) && (!has(self.integrity) || self.integrity == oldSelf.integrity)", "integrity cannot change: make a new job"),
        validation = ("!(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || has(self.checkpoint) || (has(self.allowStateLoss) && self.allowStateLoss)",
            "the job saves no checkpoints, so that suspending it would lose all that it has trained: set allowStateLoss to true to do it all the same"),
        validation = ("has(self.workerGroups) == has(oldSelf.workerGroups) && (!has(self.workerGroups) || oldSelf.workerGroups.all(o, self.workerGroups.exists(g, g.name == o.name)))",
            "groups of workers cannot go, nor come to a job without any, as their pods would end all at once: set maxWorkers of a group to 0 to empty it, or make a new job"),
        validation = ("has(self.elasticity.minWorkers) == has(oldSelf.elasticity.minWorkers) && (!has(self.elasticity.minWorkers) || self.elasticity.minWorkers == oldSelf.elasticity.minWorkers)",
            "elasticity.minWorkers cannot change: make a new job (maxWorkers can)"),
        validation = ("(has(self.workers) && has(self.workers.threads) ? self.workers.threads : 0) == (has(oldSelf.workers) && has(oldSelf.workers.threads) ? oldSelf.workers.threads : 0)",
            "workers.threads cannot change, as it changes the last bits of results: make a new job"),
        validation = ("(has(self.workers) && has(self.workers.device) ? self.workers.device : 'auto') == (has(oldSelf.workers) && has(oldSelf.workers.device) ? oldSelf.workers.device : 'auto')",
            "workers.device cannot change, as it changes the last bits of results: make a new job"),
        validation = ("(has(self.workers) && has(self.workers.transport) ? self.workers.transport : 'auto') == (has(oldSelf.workers) && has(oldSelf.workers.transport) ? oldSelf.workers.transport : 'auto')",
            "workers.transport cannot change, as it changes the last bits of results: make a new job"),
        validation = ("(has(self.workers) && has(self.workers.deviceMemory) ? string(self.workers.deviceMemory) : '') == (has(oldSelf.workers) && has(oldSelf.workers.deviceMemory) ? string(oldSelf.workers.deviceMemory) : '')",
            "workers.deviceMemory cannot change, as plans are made for it: make a new job"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The model. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub model: Option<ModelSpec>,
    /// The tokens. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub data: Option<DataSpec>,
    /// Batch, steps, optimizer. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub training: Option<TrainingSpec>,
    /// How the model may be cut and in which order stages work.
    pub pipeline: Option<PipelineSpec>,
    /// Fewest and most workers.
    // `kubectl scale` needs a number to start from; a Deployment starts at one as well.
    #[cfg_attr(feature = "kubernetes", schemars(extend("default" = {})))]
    pub elasticity: Option<ElasticitySpec>,
    /// Resources, image and pod template of the workers.
    pub workers: Option<WorkersSpec>,
    /// Kinds of workers in a cluster, in the order in which they are filled; all are of one kind where left out. Without a cluster they say only
    /// how many workers there may be.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::named_mappings(limits::WORKER_GROUPS_MAX)))]
    pub worker_groups: Option<Vec<WorkerGroupSpec>>,
    /// Where and how often state is saved.
    pub checkpoint: Option<CheckpointSpec>,
    /// Connections between workers, and who may open them.
    pub network: Option<NetworkSpec>,
    /// Whether workers that hold the same state compare it.
    pub integrity: Option<IntegritySpec>,
    /// What announces the end of a worker.
    pub disruption: Option<DisruptionSpec>,
    /// The pod of the job's coordinator, in a cluster.
    pub coordinator: Option<CoordinatorSpec>,
    /// What crashing workers do to the job, in a cluster.
    pub failure_policy: Option<FailurePolicySpec>,
    /// Seconds from the start of a job to its end at most, waiting and suspension included; then it fails. No limit where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub active_deadline_seconds: Option<u64>,
    /// Seconds after which a job that is complete or has failed is deleted, with its pods and their logs; never where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT_OR_NONE)))]
    pub ttl_seconds_after_finished: Option<u64>,
    /// The job may lose what it has trained: it may be suspended although no checkpoint of it is complete, and begins anew where nothing of it
    /// is left, instead of failing. False where left out.
    pub allow_state_loss: Option<bool>,
    /// Stop the run and delete its pods until this is false again.
    pub suspend: Option<bool>,
    /// The controller that looks after the job in a cluster, as `example.com/controller`. The operator leaves a job alone that names another one than
    /// `varuna.dev/operator`, which is meant where it is left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::pattern(limits::MANAGER_PATTERN, limits::MANAGER)))]
    pub managed_by: Option<String>,
}

/// How the model is trained.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.microBatchSize) || self.globalBatchSize % self.microBatchSize == 0",
            "make microBatchSize a divisor of globalBatchSize, or leave it out: the planner chooses one"),
        validation = ("!has(self.optimizer.warmupSteps) || self.optimizer.warmupSteps <= (has(self.optimizer.decaySteps) ? self.optimizer.decaySteps : self.steps)",
            "make optimizer.warmupSteps at most decaySteps (steps, where decaySteps is left out)"),
        validation = ("!has(self.optimizer.stableSteps) || self.optimizer.stableSteps <= (has(self.optimizer.decaySteps) ? self.optimizer.decaySteps : self.steps)",
            "make optimizer.stableSteps at most decaySteps (steps, where decaySteps is left out)"),
        validation = ("!has(self.lossScale) || (has(self.precision) && self.precision == 'fp16')",
            "leave lossScale out, or make precision fp16: wider numbers need no loss scale"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingSpec {
    /// Samples in an optimizer step, whatever the number of workers. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::COUNT)))]
    pub global_batch_size: Option<u64>,
    /// Samples in a micro-batch; divides `globalBatchSize`. Chosen by the planner where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::MICRO_BATCH)))]
    pub micro_batch_size: Option<u32>,
    /// Optimizer steps. They may be raised while the job runs, and after it is complete where it has checkpoints; never lowered. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::COUNT)))]
    pub steps: Option<u64>,
    /// Seed of weights, sample order and dropout; 0 where left out.
    pub seed: Option<u64>,
    /// `fp32`, or `bf16` or `fp16`: computes in 16 bits with master parameters, moments and gradients in fp32. `fp32` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::PRECISIONS.map(|(name, _)| name))))]
    pub precision: Option<String>,
    /// The loss scale of `fp16`; dynamic from 65536 where left out.
    pub loss_scale: Option<LossScaleSpec>,
    /// Steps in a row that may be skipped because a gradient or the loss is not finite; one more ends the run with an error. With a dynamic
    /// loss scale only those count that are skipped at its minimum. 20 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::SKIP_LIMIT)))]
    pub skip_limit: Option<u32>,
    /// The optimizer. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub optimizer: Option<OptimizerSpec>,
    /// Hide tokens for the model to fill in; it learns to predict the next token where left out.
    pub masking: Option<MaskingSpec>,
    /// Evaluation on the held-out samples; none where left out.
    pub evaluation: Option<EvaluationSpec>,
}

/// When and on how much to evaluate.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {
    /// Before each step that is a multiple of this. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::COUNT)))]
    pub interval_steps: Option<u64>,
    /// Samples of the held-out split; one global batch where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub samples: Option<u64>,
}

/// How the model is cut into pipelines.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.warmupFactor) || !has(self.schedule) || self.schedule != 'gpipe'",
            "leave warmupFactor out: schedule gpipe has no warm-up"),
        validation = ("!has(self.minDepth) || !has(self.maxDepth) || self.minDepth <= self.maxDepth",
            "make minDepth at most maxDepth"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PipelineSpec {
    /// `1f1b` (where left out), `gpipe`, or `interleaved`: 1F1B in which each worker has two to four stages, wherever that is
    /// predicted to be faster than one. It makes pipelines fill and drain sooner and sends activations that many times as often.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::SCHEDULES.map(|(name, _)| name))))]
    pub schedule: Option<String>,
    /// Warm-up forwards per later stage, for stages that are not interleaved: 1 is the classical schedule, 2 tolerates jitter
    /// best; where left out, the planner takes the faster of the two.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WARMUP_FACTOR)))]
    pub warmup_factor: Option<f64>,
    /// `auto` (where left out), as little as a stage's memory allows; else `none`, `selective` (attention only) or `full`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::RECOMPUTE.map(|(name, _)| name))))]
    pub recompute: Option<String>,
    /// Fewest stages of a pipeline, an interleaved one counting as many as it has workers; 1 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::SEGMENTS)))]
    pub min_depth: Option<u32>,
    /// Most stages of a pipeline; the model's number of segments where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::SEGMENTS)))]
    pub max_depth: Option<u32>,
}

/// How the number of workers may change, and what guards against the loss of one.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.minWorkers) || self.minWorkers <= self.maxWorkers",
            "make maxWorkers at least minWorkers; to stop the job for a while, set spec.suspend to true"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ElasticitySpec {
    /// With fewer workers, training waits; `pipeline.minDepth` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_CLUSTER)))]
    pub min_workers: Option<u32>,
    /// Workers that the job may have; 1 where left out (run without a cluster: no limit). This is what `kubectl scale` sets.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_CLUSTER), extend("default" = 1)))]
    pub max_workers: Option<u32>,
    /// Copies of the training state that one worker alone holds, as in a plan of one pipeline: another worker keeps each in its memory and
    /// follows every step, so that the loss of one worker costs no step, and nothing is read from the checkpoint; 0 where left out. `1`: wherever
    /// some worker has room for it. `auto`: where it repays what it costs, by memory, bandwidth and the losses seen.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string, transform = schema::one_of(choices::spare_copies().map(|(name, _)| name))))]
    pub spare_copies: Option<Value>,
}
