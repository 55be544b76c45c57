//! `spec.checkpoint` and `spec.integrity`: what is saved, and which of it can be trusted.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where and how often checkpoints are saved.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(
    feature = "kubernetes",
    derive(KubeSchema),
    x_kube(
        crates(kube_core = "::kube_core"),
        validation = ("has(self.intervalSteps) || has(self.intervalSeconds)",
            "give intervalSteps, intervalSeconds or both"),
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointSpec {
    /// Folder or URI of a bucket (`s3://`, `gs://`, `az://`) for checkpoints. The job uses the subfolder with its own name. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::place(limits::TEXT)))]
    pub uri: Option<String>,
    /// Checkpoint of another job with the same model, from which this job begins. It must not be moved or deleted until this job has
    /// saved a checkpoint. Default: none, which means that the job begins from its seed.
    pub from: Option<CheckpointSourceSpec>,
    /// Steps between two checkpoints. At least one of `intervalSteps` and `intervalSeconds` is required.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub interval_steps: Option<u64>,
    /// Maximum age of the newest checkpoint while the job trains, in seconds. It can be combined with `intervalSteps`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub interval_seconds: Option<u64>,
    /// Whether checkpoints are also made more often than at the interval, while the losses of workers that the job has seen make this worth
    /// its cost. Default: true.
    pub adaptive: Option<bool>,
    /// Number of complete checkpoints to keep. Those that `adaptive` adds do not count. Default: 3.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::KEEP)))]
    pub keep: Option<u32>,
    /// Maximum upload rate of each worker, in bytes per second, such as `50Mi`. Default: no limit.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string))]
    pub upload_per_second: Option<Value>,
}

/// A checkpoint of another job with the same model. It is read where it is stored, and must stay there until the job has one of its own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointSourceSpec {
    /// Name of the other job. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::label))]
    pub job: Option<String>,
    /// Folder or URI of the other job's checkpoints. Default: `checkpoint.uri`.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::place(limits::TEXT)))]
    pub uri: Option<String>,
    /// Step of the checkpoint. Default: the newest complete checkpoint when the job starts.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT_OR_NONE)))]
    pub step: Option<u64>,
    /// Whether only the parameters are loaded. If true, the optimizer, the learning rate and the step count start from the beginning. If
    /// false, the job continues after the checkpoint's step. Default: false.
    pub weights_only: Option<bool>,
}

/// Workers that hold the same part of the model have the same bits of it. Comparing them finds a device that computes wrong bits without
/// failing.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntegritySpec {
    /// Steps between two comparisons of the state that several workers hold. The states of checkpoints are compared too. If a majority of
    /// the holders agrees, the run continues without the workers that differ. If there is no majority, as with two holders, the run goes
    /// back to the newest checkpoint that was compared, or else to the seed. Default: no comparisons.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub compare_every_steps: Option<u64>,
}
