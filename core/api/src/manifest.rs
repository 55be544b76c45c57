//! The job file as written: `VarunaJob` of `varuna.dev/v1alpha1`, every field optional.
//!
//! These types only define the fields. Which fields must be there, their defaults and their limits are decided in
//! one place, `resolve`, so that all errors of a file can be shown at once. The comments here become the field's help.
//!
//! The attributes for `kubernetes` state what an API server refuses by itself, and with which message. They take limits and names
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
/// Label of a job: the name of the queue of Kueue whose admission it waits for. Kueue defines this label.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Label of a job in a queue: the WorkloadPriorityClass that determines its priority there. Kueue defines this label.
pub const PRIORITY_CLASS_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// `spec.managedBy` of jobs that the operator manages. It also manages jobs without this field.
pub const OPERATOR: &str = "varuna.dev/operator";

/// The whole file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VarunaJob {
    /// API version: `varuna.dev/v1alpha1`. Required.
    pub api_version: Option<String>,
    /// Kind: `VarunaJob`. Required.
    pub kind: Option<String>,
    /// Name, namespace, labels and annotations. Required.
    pub metadata: Option<Metadata>,
    /// The job. Required.
    pub spec: Option<Spec>,
}

/// The part of Kubernetes' object metadata that a person writes; what a server adds is not accepted in a job file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Name of the job. Required.
    pub name: Option<String>,
    /// Namespace of the job. Default: `default`.
    pub namespace: Option<String>,
    /// Labels of the job, kept as they are. Default: none.
    pub labels: Option<BTreeMap<String, String>>,
    /// Annotations of the job, kept as they are. Default: none.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Model, data and settings of a training run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("!has(self.pipeline) || !has(self.pipeline.minDepth) || (self.pipeline.minDepth <= self.elasticity.maxWorkers && (!has(self.elasticity.minWorkers) || self.pipeline.minDepth <= self.elasticity.minWorkers))",
            "make elasticity.minWorkers and maxWorkers at least pipeline.minDepth: a pipeline needs that many workers"),
        validation = ("!has(self.workers) || !has(self.workers.gpusPerPod) || (has(self.workerGroups) && self.workerGroups.exists(g, has(g.gpusPerPod))) || (self.elasticity.maxWorkers / self.workers.gpusPerPod) * self.workers.gpusPerPod >= (has(self.elasticity.minWorkers) ? self.elasticity.minWorkers : has(self.pipeline) && has(self.pipeline.minDepth) ? self.pipeline.minDepth : 1)",
            "raise elasticity.maxWorkers or lower workers.gpusPerPod: whole pods within maxWorkers must hold at least minWorkers"),
        validation = ("!has(self.workerGroups) || self.workerGroups.map(g, has(g.minWorkers) ? g.minWorkers : 0).sum() <= self.elasticity.maxWorkers",
            "raise elasticity.maxWorkers, or lower the groups' minWorkers: together they must fit into it"),
        validation = ("!has(self.workerGroups) || self.workerGroups.exists(g, !has(g.maxWorkers)) || self.workerGroups.map(g, has(g.maxWorkers) ? g.maxWorkers : 0).sum() >= (has(self.elasticity.minWorkers) ? self.elasticity.minWorkers : has(self.pipeline) && has(self.pipeline.minDepth) ? self.pipeline.minDepth : 1)",
            "raise maxWorkers of a group, or lower elasticity.minWorkers: the groups must be able to hold that many"),
        validation = ("has(self.training.masking) == (has(self.model.bidirectional) ? self.model.bidirectional : has(self.model.preset) && self.model.preset.startsWith('bert-'))",
            "set training.masking if model.bidirectional is true, as it is for BERT, and only then: a model that sees the next token cannot learn to predict it"),
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
            "training cannot change, except for training.steps, which can grow: make a new job"),
        validation = ("self.training.steps >= oldSelf.training.steps",
            "training.steps can grow, not shrink: suspend the job or delete it to end it sooner"),
        validation = ("has(self.pipeline) == has(oldSelf.pipeline) && (!has(self.pipeline) || self.pipeline == oldSelf.pipeline)",
            "pipeline cannot change: make a new job"),
        validation = ("has(self.checkpoint) == has(oldSelf.checkpoint) && (!has(self.checkpoint) || self.checkpoint == oldSelf.checkpoint)",
            "checkpoint cannot change: make a new job"),
        validation = ("(has(self.network) && has(self.network.encryption) ? self.network.encryption : 'none') == (has(oldSelf.network) && has(oldSelf.network.encryption) ? oldSelf.network.encryption : 'none')",
            "network.encryption cannot change: make a new job"),
        validation = ("(has(self.network) && has(self.network.policy) ? self.network.policy : 'ingress') == (has(oldSelf.network) && has(oldSelf.network.policy) ? oldSelf.network.policy : 'ingress')",
            "network.policy cannot change (extraIngress and extraEgress can; a rule {} allows everything): make a new job"),
        validation = ("has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
            "managedBy cannot change, because two controllers would manage the job for a while: make a new job"),
        validation = ("has(self.integrity) == has(oldSelf.integrity) && (!has(self.integrity) || self.integrity == oldSelf.integrity)", "integrity cannot change: make a new job"),
        validation = ("!(has(self.suspend) && self.suspend) || (has(oldSelf.suspend) && oldSelf.suspend) || has(self.checkpoint) || (has(self.allowStateLoss) && self.allowStateLoss)",
            "the job saves no checkpoints, so suspending it would lose all training progress: to suspend it anyway, set allowStateLoss to true"),
        validation = ("has(self.workerGroups) == has(oldSelf.workerGroups) && (!has(self.workerGroups) || oldSelf.workerGroups.all(o, self.workerGroups.exists(g, g.name == o.name)))",
            "groups of workers cannot be removed, and a job without groups cannot get any, because all affected pods would end at once: set maxWorkers of a group to 0 to empty it, or make a new job"),
        validation = ("has(self.elasticity.minWorkers) == has(oldSelf.elasticity.minWorkers) && (!has(self.elasticity.minWorkers) || self.elasticity.minWorkers == oldSelf.elasticity.minWorkers)",
            "elasticity.minWorkers cannot change: make a new job (maxWorkers can)"),
        validation = ("(has(self.workers) && has(self.workers.threads) ? self.workers.threads : 0) == (has(oldSelf.workers) && has(oldSelf.workers.threads) ? oldSelf.workers.threads : 0)",
            "workers.threads cannot change, because it changes the last bits of results: make a new job"),
        validation = ("(has(self.workers) && has(self.workers.device) ? self.workers.device : 'auto') == (has(oldSelf.workers) && has(oldSelf.workers.device) ? oldSelf.workers.device : 'auto')",
            "workers.device cannot change, because it changes the last bits of results: make a new job"),
        validation = ("(has(self.workers) && has(self.workers.transport) ? self.workers.transport : 'auto') == (has(oldSelf.workers) && has(oldSelf.workers.transport) ? oldSelf.workers.transport : 'auto')",
            "workers.transport cannot change, because it changes the last bits of results: make a new job"),
        validation = ("(has(self.workers) && has(self.workers.deviceMemory) ? string(self.workers.deviceMemory) : '') == (has(oldSelf.workers) && has(oldSelf.workers.deviceMemory) ? string(oldSelf.workers.deviceMemory) : '')",
            "workers.deviceMemory cannot change, because plans depend on it: make a new job"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The model to train. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub model: Option<ModelSpec>,
    /// The datasets for training and evaluation. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub data: Option<DataSpec>,
    /// Batch size, number of steps, optimizer and evaluation. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub training: Option<TrainingSpec>,
    /// How the model may be divided into pipeline stages, and the order in which a stage computes.
    pub pipeline: Option<PipelineSpec>,
    /// Minimum and maximum number of workers, and copies of state that protect against the loss of a worker.
    // `kubectl scale` needs a number to start from; a Deployment starts at one as well.
    #[cfg_attr(feature = "kubernetes", schemars(extend("default" = {})))]
    pub elasticity: Option<ElasticitySpec>,
    /// Resources, container image and pod template of the workers.
    pub workers: Option<WorkersSpec>,
    /// Groups of workers with different settings, such as spot nodes and on-demand nodes. Groups are filled in their order, after each
    /// group has its `minWorkers`. Without a cluster, the groups only limit the number of workers. Default: none, which means that all
    /// workers have the settings of `workers`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::named_mappings(limits::WORKER_GROUPS_MAX)))]
    pub worker_groups: Option<Vec<WorkerGroupSpec>>,
    /// Where and how often checkpoints are saved. Default: no checkpoints.
    pub checkpoint: Option<CheckpointSpec>,
    /// Encryption between workers, and network policies for the job's pods.
    pub network: Option<NetworkSpec>,
    /// Comparison of the training state that several workers hold.
    pub integrity: Option<IntegritySpec>,
    /// Signals that announce the end of a worker.
    pub disruption: Option<DisruptionSpec>,
    /// Pod of the job's coordinator, in a cluster.
    pub coordinator: Option<CoordinatorSpec>,
    /// Number of crashes after which the job fails, and of failures after which new pods avoid a node, in a cluster.
    pub failure_policy: Option<FailurePolicySpec>,
    /// Maximum time from the first start of the job to its end, in seconds. Time in which the job waits or is suspended counts too. A job
    /// that takes longer fails. Default: no limit.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub active_deadline_seconds: Option<u64>,
    /// Time in seconds after which a job that is complete or has failed is deleted, together with its pods and their logs. Default: never.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT_OR_NONE)))]
    pub ttl_seconds_after_finished: Option<u64>,
    /// Whether the job may lose its training progress. If true, the job can be suspended without a complete checkpoint, and it starts again
    /// from the beginning instead of failing when its state is lost. Default: false.
    pub allow_state_loss: Option<bool>,
    /// Whether the job is suspended. If true, the operator stops the run and deletes its pods. The run continues when the field is false
    /// again. Default: false.
    pub suspend: Option<bool>,
    /// Controller that manages the job in a cluster, such as `example.com/controller`. The operator ignores a job that names another
    /// controller. Default: `varuna.dev/operator`.
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
            "make optimizer.warmupSteps at most decaySteps (or steps, without decaySteps)"),
        validation = ("!has(self.optimizer.stableSteps) || self.optimizer.stableSteps <= (has(self.optimizer.decaySteps) ? self.optimizer.decaySteps : self.steps)",
            "make optimizer.stableSteps at most decaySteps (or steps, without decaySteps)"),
        validation = ("!has(self.lossScale) || (has(self.precision) && self.precision == 'fp16')",
            "leave lossScale out, or make precision fp16: wider numbers need no loss scale"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrainingSpec {
    /// Samples in an optimizer step, whatever the number of workers. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::COUNT)))]
    pub global_batch_size: Option<u64>,
    /// Samples in a micro-batch. It must divide `globalBatchSize`. Default: chosen by the planner.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::MICRO_BATCH)))]
    pub micro_batch_size: Option<u32>,
    /// Number of optimizer steps. It can be raised while the job runs, and also after it is complete if the job has checkpoints. It cannot
    /// be lowered. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::COUNT)))]
    pub steps: Option<u64>,
    /// Seed of the initial weights, the order of samples and dropout. Default: 0.
    pub seed: Option<u64>,
    /// Number format of the training. `fp32` uses 32-bit numbers throughout. `bf16` and `fp16` compute in 16 bits, and keep master
    /// parameters, moments and summed gradients in 32 bits. Default: `fp32`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::PRECISIONS.map(|(name, _)| name))))]
    pub precision: Option<String>,
    /// Loss scale, only with `precision: fp16`. Default: a dynamic loss scale that starts at 65536.
    pub loss_scale: Option<LossScaleSpec>,
    /// Maximum number of consecutive steps that the optimizer skips because a gradient or the loss is not finite. One more skipped step
    /// ends the run with an error. With a dynamic loss scale, only steps that are skipped at its minimum count. Default: 20.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::SKIP_LIMIT)))]
    pub skip_limit: Option<u32>,
    /// Optimizer and learning rate. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required))]
    pub optimizer: Option<OptimizerSpec>,
    /// Masked language modelling: the model learns to predict tokens that are hidden from it. Required with a bidirectional model, and not
    /// allowed with any other. Default: none, which means that the model learns to predict the next token.
    pub masking: Option<MaskingSpec>,
    /// Evaluation on held-out samples during training. Default: none.
    pub evaluation: Option<EvaluationSpec>,
}

/// When and on how much to evaluate.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {
    /// Steps between two evaluations. An evaluation takes place before each step that is a multiple of this number, counted from 0; nothing is
    /// evaluated after the last step. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::within(limits::COUNT)))]
    pub interval_steps: Option<u64>,
    /// Number of held-out samples in each evaluation. Default: one global batch.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub samples: Option<u64>,
}

/// How the model may be divided into pipelines.
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
    /// Order in which a stage computes forwards and backwards. With `1f1b`, forwards and backwards alternate after a warm-up. With `gpipe`,
    /// all forwards come first. With `interleaved`, the schedule is `1f1b` and each worker has two to four stages wherever that is
    /// predicted to be faster than one: pipelines fill and drain sooner, but activations are sent two to four times as often. Default:
    /// `1f1b`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::SCHEDULES.map(|(name, _)| name))))]
    pub schedule: Option<String>,
    /// Number of warm-up forwards that a stage computes for each later stage of its pipeline. It does not apply to interleaved stages, and
    /// is not allowed with `gpipe`. 1 is the classical schedule. 2 tolerates jitter best, but needs more memory for activations. Default:
    /// the faster of 1 and 2, chosen by the planner.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WARMUP_FACTOR)))]
    pub warmup_factor: Option<f64>,
    /// Recomputation of activations in the backward, which saves memory. `none` keeps all activations. `selective` recomputes attention
    /// only. `full` keeps only the input of a stage. `auto` recomputes as little as the memory of each stage allows. Default: `auto`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::one_of(choices::RECOMPUTE.map(|(name, _)| name))))]
    pub recompute: Option<String>,
    /// Minimum number of stages in a pipeline. For an interleaved pipeline, its workers are counted instead. Default: 1.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::SEGMENTS)))]
    pub min_depth: Option<u32>,
    /// Maximum number of stages in a pipeline. For an interleaved pipeline, its workers are counted instead. Default: the number of
    /// segments of the model.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::SEGMENTS)))]
    pub max_depth: Option<u32>,
}

/// Minimum and maximum number of workers, and copies that protect against the loss of one.
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
    /// Minimum number of workers. With fewer workers, training waits. Default: `pipeline.minDepth`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_CLUSTER)))]
    pub min_workers: Option<u32>,
    /// Maximum number of workers. `kubectl scale` sets this field. Default: 1 in a cluster, no limit on one machine.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::WORKERS_OF_A_CLUSTER), extend("default" = 1)))]
    pub max_workers: Option<u32>,
    /// Spare copies of training state that only one worker holds, as in a plan with a single pipeline. Another worker keeps the copy in its
    /// memory and updates it in every step. Then the loss of one worker costs no step, and no checkpoint is read. `0` keeps no copies. `1`
    /// keeps a copy wherever a worker has memory for it and its gradients take at most half of a step of any link. `auto` keeps copies if
    /// they cost less than the losses that they prevent, by memory, bandwidth and the observed losses. In a cluster, a change takes effect
    /// when the job is suspended and goes on. Default: 0.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string, transform = schema::one_of(choices::spare_copies().map(|(name, _)| name))))]
    pub spare_copies: Option<Value>,
}
