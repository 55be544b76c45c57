//! The status of a `VarunaJob`: what the operator says of a job. Times are texts of RFC 3339, whole numbers have 64 signed bits.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What the operator says of the job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Generation of the spec that this status answers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// In one word: Pending, Starting, Training, Recovering, Waiting, Suspended, Complete or Failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// What the job waits for, or why it failed; empty while all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What is true of the job, each with a reason and a sentence.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The plan in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// Steps committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// When the step last grew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progressed_at: Option<String>,
    /// Training loss of the last step, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Steps that had to be trained again because no worker held their state any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<i64>,
    /// Plans that came into force after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconfigurations: Option<i64>,
    /// Since when a suspended job still runs, until a checkpoint holds what it has trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspending: Option<Suspending>,
    /// Checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// Workers that run.
    pub workers: i64,
    /// Label selector of the job's pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Number of the newest pod. Numbers are never used again, so that a pod that is gone is not taken for another.
    pub newest_pod: i64,
}

/// A suspension that waits for a checkpoint.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Suspending {
    /// When it was asked for.
    pub since: String,
    /// The step that the checkpoint must hold.
    pub step: i64,
}

/// One thing that is, or is not, true of the job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Accepted, Training, Planned, Degraded, CheckpointStale, Suspended, Complete or Failed.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
    /// When the status last changed.
    pub last_transition_time: String,
    /// Generation of the spec that this condition answers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// The plan in force.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStatus {
    /// Its number.
    pub generation: i64,
    /// Its shape: stages by pipelines where it is a plain grid.
    pub shape: String,
    /// Workers that it uses.
    pub workers: i64,
    /// Workers that are there and not used.
    pub idle: i64,
    /// Predicted time of a step, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_step_ms: Option<i64>,
    /// Observed time of a step, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_step_ms: Option<i64>,
}

/// Checkpoints.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// Step of the newest that may be resumed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_step: Option<i64>,
    /// Steps since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_behind: Option<i64>,
    /// Why the store cannot be used at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// A list that is merged by `type`: else one writer's conditions would replace all others.
fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let items = Condition::json_schema(generator);
    json_schema!({
        "type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })
}
