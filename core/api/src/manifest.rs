//! The job file as written: `VarunaJob` of `varuna.dev/v1alpha1`, every field optional.
//!
//! These types only define the fields. Which fields must be there, their defaults and their limits are decided in
//! one place, `resolve`, so that all errors of a file can be shown at once. The comments here become the field's help.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// `apiVersion` of a job file.
pub const API_VERSION: &str = "varuna.dev/v1alpha1";
/// `kind` of a job file.
pub const KIND: &str = "VarunaJob";

/// The whole file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
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
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
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
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Spec {
    /// The model. Required.
    pub model: Option<ModelSpec>,
    /// The tokens. Required.
    pub data: Option<DataSpec>,
    /// Batch, steps, optimizer. Required.
    pub training: Option<TrainingSpec>,
    /// How the model may be cut and in which order stages work.
    pub pipeline: Option<PipelineSpec>,
    /// Fewest and most workers.
    pub elasticity: Option<ElasticitySpec>,
    /// Resources, image and pod template of the workers.
    pub workers: Option<WorkersSpec>,
    /// Where and how often state is saved.
    pub checkpoint: Option<CheckpointSpec>,
    /// What announces the end of a worker.
    pub disruption: Option<DisruptionSpec>,
    /// Stop the run and delete its pods until this is false again.
    pub suspend: Option<bool>,
}

/// A preset, explicit sizes, or a preset with some sizes replaced.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ModelSpec {
    /// `gpt2-tiny`, `gpt2-small`, `gpt2-medium`, `gpt2-large` or `gpt2-1.5b` (also `gpt2-xl`).
    pub preset: Option<String>,
    /// Transformer blocks.
    pub layers: Option<u32>,
    /// Width; a multiple of `heads`.
    pub hidden_size: Option<u32>,
    /// Attention heads.
    pub heads: Option<u32>,
    /// Tokens in a sample.
    pub sequence_length: Option<u32>,
    /// Rows of the embedding table: at least the dataset's vocabulary (byte tokenizer 257, GPT-2 50257).
    pub vocabulary_size: Option<u32>,
    /// The head shares the token embedding; true where left out.
    pub tied_head: Option<bool>,
    /// Dropout probability, 0 <= p < 1; 0 where left out.
    pub dropout: Option<f64>,
}

/// Where the tokens are.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DataSpec {
    /// Path of an indexed dataset without its `.bin` / `.idx`. Required.
    pub path: Option<String>,
    /// Share of the samples that is held out for evaluation, 0 to 0.5; 0.05 where left out.
    pub validation_fraction: Option<f64>,
}

/// How the model is trained.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TrainingSpec {
    /// Samples in an optimizer step, whatever the number of workers. Required.
    pub global_batch_size: Option<u64>,
    /// Samples in a micro-batch; divides `globalBatchSize`. Chosen by the planner where left out.
    pub micro_batch_size: Option<u32>,
    /// Optimizer steps. Required.
    pub steps: Option<u64>,
    /// Seed of weights, sample order and dropout; 0 where left out.
    pub seed: Option<u64>,
    /// `fp32`.
    pub precision: Option<String>,
    /// The optimizer. Required.
    pub optimizer: Option<OptimizerSpec>,
    /// Evaluation on the held-out samples; none where left out.
    pub evaluation: Option<EvaluationSpec>,
}

/// `AdamW` with linear warm-up and cosine decay.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OptimizerSpec {
    /// Peak learning rate. Required.
    pub learning_rate: Option<f64>,
    /// Learning rate at the end of the decay; a tenth of the peak where left out.
    pub min_learning_rate: Option<f64>,
    /// Steps of linear warm-up; 0 where left out.
    pub warmup_steps: Option<u64>,
    /// Step at which the decay ends; `steps` where left out.
    pub decay_steps: Option<u64>,
    /// Decay of the first moment; 0.9 where left out.
    pub beta1: Option<f64>,
    /// Decay of the second moment; 0.95 where left out.
    pub beta2: Option<f64>,
    /// Added to the root of the second moment; 1e-8 where left out.
    pub epsilon: Option<f64>,
    /// Decoupled weight decay; 0.1 where left out.
    pub weight_decay: Option<f64>,
    /// Limit of the gradient's global norm; 1 where left out, 0 = no clipping.
    pub clip_norm: Option<f64>,
}

/// When and on how much to evaluate.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EvaluationSpec {
    /// Before each step that is a multiple of this. Required.
    pub interval_steps: Option<u64>,
    /// Samples of the held-out split; one global batch where left out.
    pub samples: Option<u64>,
}

/// How the model is cut into pipelines.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PipelineSpec {
    /// `1f1b` (where left out), `gpipe`, or `interleaved`: 1F1B in which each worker has two to four stages, wherever that is
    /// predicted to be faster than one. It makes pipelines fill and drain sooner and sends activations that many times as often.
    pub schedule: Option<String>,
    /// Warm-up forwards per later stage, for stages that are not interleaved: 1 is the classical schedule, 2 tolerates jitter
    /// best; where left out, the planner takes the faster of the two.
    pub warmup_factor: Option<f64>,
    /// `auto` (where left out), as little as a stage's memory allows; else `none`, `selective` (attention only) or `full`.
    pub recompute: Option<String>,
    /// Fewest stages of a pipeline, an interleaved one counting as many as it has workers; 1 where left out.
    pub min_depth: Option<u32>,
    /// Most stages of a pipeline; the model's number of segments where left out.
    pub max_depth: Option<u32>,
}

/// How the number of workers may change.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ElasticitySpec {
    /// With fewer workers, training waits; `pipeline.minDepth` where left out.
    pub min_workers: Option<u32>,
    /// Workers that the job may have; no limit where left out.
    pub max_workers: Option<u32>,
}

/// Resources, image and pod template of the workers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct WorkersSpec {
    /// GPUs (and so worker processes) in a pod; 1 where left out.
    pub gpus_per_pod: Option<u32>,
    /// Container image of the worker, for clusters.
    pub image: Option<String>,
    /// Memory that a worker may use for state and activations (`300Mi`, `16Gi`, or bytes); what the device reports where
    /// left out.
    #[cfg_attr(feature = "kubernetes", schemars(schema_with = "crate::crd::int_or_string"))]
    pub device_memory: Option<Value>,
    /// Threads of a worker for tensor operations; the machine's cores shared out among its workers where left out.
    pub threads: Option<u32>,
    /// Pod template; the operator completes it and changes no other field.
    #[cfg_attr(feature = "kubernetes", schemars(schema_with = "crate::crd::open_object"))]
    pub template: Option<Value>,
}

/// Where and how often state is saved.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Folder or bucket. Required.
    pub uri: Option<String>,
    /// Steps between checkpoints. This or intervalSeconds is required.
    pub interval_steps: Option<u64>,
    /// Seconds between checkpoints while training goes on. May be given together with intervalSteps.
    pub interval_seconds: Option<u64>,
    /// Checkpoints to keep; 3 where left out.
    pub keep: Option<u32>,
    /// Bytes that each worker uploads in a second at most (`50Mi`); no limit where left out.
    #[cfg_attr(feature = "kubernetes", schemars(schema_with = "crate::crd::int_or_string"))]
    pub upload_per_second: Option<Value>,
}

/// What announces the end of a worker.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DisruptionSpec {
    /// Prefixes of node taints and names of node conditions that announce the end of a node.
    pub node_signals: Option<Vec<String>>,
    /// Seconds between a notice and the end of the worker; 25 where left out.
    pub notice_seconds: Option<u32>,
}
