//! `spec.checkpoint` and `spec.integrity`: what is saved, and which of it can be trusted.

#[cfg(feature = "kubernetes")]
use crate::{limits, schema};
#[cfg(feature = "kubernetes")]
use kube_derive::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Where and how often state is saved.
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
    /// Folder or bucket. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::text(limits::TEXT)))]
    pub uri: Option<String>,
    /// A checkpoint of another job that this one begins with, as long as it has none of its own; from the seed where left out.
    pub from: Option<CheckpointSourceSpec>,
    /// Steps between checkpoints. This or intervalSeconds is required.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub interval_steps: Option<u64>,
    /// Seconds between checkpoints while training goes on. May be given together with intervalSteps.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub interval_seconds: Option<u64>,
    /// Checkpoints to keep; 3 where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::KEEP)))]
    pub keep: Option<u32>,
    /// Bytes that each worker uploads in a second at most (`50Mi`); no limit where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::int_or_string))]
    pub upload_per_second: Option<Value>,
}

/// A checkpoint of another job with the same model. It is read where it lies, and must stay there until the job has one of its own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckpointSourceSpec {
    /// Name of the other job. Required.
    #[cfg_attr(feature = "kubernetes", schemars(required, transform = schema::label))]
    pub job: Option<String>,
    /// Folder or bucket of its checkpoints; `checkpoint.uri` where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::text(limits::TEXT)))]
    pub uri: Option<String>,
    /// Step of the checkpoint; the newest complete one at the start of the job where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT_OR_NONE)))]
    pub step: Option<u64>,
    /// Take the parameters alone: the optimizer, the learning rate and the steps begin anew. Otherwise the job goes on after the checkpoint's step;
    /// false where left out.
    pub weights_only: Option<bool>,
}

/// Holders of the same part of the model have the same bits of it: comparing them finds a device that has wrong ones and never fails.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "kubernetes", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntegritySpec {
    /// Steps between two comparisons. Checkpoints' states are compared too. The run goes on without a worker that differs from a majority.
    /// Without one, as with two holders, it goes back to the newest compared checkpoint or else to the seed; none where left out.
    #[cfg_attr(feature = "kubernetes", schemars(transform = schema::within(limits::COUNT)))]
    pub compare_every_steps: Option<u64>,
}
