//! The status of a `VarunaJob`: what the operator reports. Whole numbers have 64 signed bits, as everywhere in Kubernetes.

use super::progress::{HistoryEntry, Recovery, RecoveryTotals, TimeSpent};
use crate::conditions::{ConditionType, JobPhase, listed};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What the operator reports about the job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Generation of the spec that this status answers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the job is doing, in one word.
    #[serde(skip_serializing_if = "Option::is_none", with = "phase_word")]
    #[schemars(with = "Option<String>", description = phase_description())]
    pub phase: Option<JobPhase>,
    /// What the job waits for, or why it failed; empty while all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What is true of the job, each with a reason and a sentence.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The plan in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// When the job first ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub start_time: Option<Time>,
    /// When it was complete or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub completion_time: Option<Time>,
    /// Steps committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Last step of the run, as its coordinator knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<i64>,
    /// Steps committed, of all: `176/600`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Tokens trained in a second, while the job trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<i64>,
    /// Time until the last step at the present speed, while the job trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,
    /// Share of the time since the job first trained in which steps were trained that stayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<String>,
    /// How that time was spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeSpent>,
    /// When the step last grew.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub progressed_at: Option<Time>,
    /// Training loss of the last step, in nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Steps that the optimizer skipped because a gradient or the loss was not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<i64>,
    /// What the next step's loss is multiplied by, where the job scales its loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<i64>,
    /// Steps that had to be trained again because no worker held their state any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<i64>,
    /// Plans that came into force after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconfigurations: Option<i64>,
    /// Since when a suspended job still runs, until a checkpoint holds what it has trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspending: Option<Suspending>,
    /// The annotation `varuna.dev/save-at` for which a checkpoint was ordered last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_ordered: Option<String>,
    /// Checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// Workers that are attached to the job's coordinator; before that is known, those of the pods that run.
    pub workers: i64,
    /// The same by group, where the job has groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub worker_groups: Vec<WorkerGroupStatus>,
    /// Label selector of the job's pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// What failed in the last hour, oldest first: one entry for all failures on a node within ten seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub recent_failures: Vec<RecentFailure>,
    /// When workers or their init containers crashed since the last step, oldest first: one entry for all crashes within ten seconds. Those on
    /// nodes alone that new pods avoid are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub crash_moments: Vec<CrashMoment>,
    /// The replacement of running pods that were made from an earlier template, while there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Number of the last message of a coordinator that was recorded as an Event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message: Option<i64>,
    /// What happened to the job last, oldest first: the newest twenty entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<HistoryEntry>,
    /// Recoveries, and planned changes of the workers that train, oldest first: the newest ten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub recent_recoveries: Vec<Recovery>,
    /// What recoveries and planned changes have cost since the job began, by cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cause"]))]
    pub recovery_totals: Vec<RecoveryTotals>,
    /// Number of the newest pod. Numbers are never used again, so that a pod that is gone is not taken for another.
    pub newest_pod: i64,
}

impl Status {
    /// The condition of a type, if it was ever reported.
    #[must_use]
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == kind.as_str())
    }

    /// The condition of a type, if it is true.
    #[must_use]
    pub fn if_true(&self, kind: ConditionType) -> Option<&Condition> {
        self.condition(kind).filter(|c| c.status == "True")
    }
}

/// The workers of a group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkerGroupStatus {
    /// The group's name.
    pub name: String,
    /// Workers that are attached, or whose pods run.
    pub workers: i64,
    /// Workers that it is to have.
    pub wanted: i64,
}

/// How far the replacement of pods of an earlier template is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// When the pods of a node were last replaced.
    #[schemars(with = "String")]
    pub at: Time,
    /// Workers that were attached then.
    pub workers: i64,
}

/// A suspension that waits for a checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspending {
    /// When it was asked for.
    #[schemars(with = "String")]
    pub since: Time,
    /// The step that the checkpoint must hold.
    #[serde(default)]
    pub step: i64,
}

/// Pods that failed on one node within ten seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecentFailure {
    /// When the first of them failed.
    #[schemars(with = "String")]
    pub at: Time,
    /// Their node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// The first of them.
    pub pod: String,
    /// How it failed: Crashed, Killed, Rejected, InitFailed or Left.
    pub kind: String,
    /// Its number, where an init container of it failed: whether pods that were made before and after it run elsewhere says whose fault that is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub number: Option<i64>,
    /// Identity of what it was made from, where an init container of it failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub made_from: Option<String>,
}

/// Crashes within ten seconds, which have one cause.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrashMoment {
    /// When the first of them was.
    #[schemars(with = "String")]
    pub at: Time,
    /// Their nodes, for an hour; left out where they are more than four.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<String>,
}

/// The plan in force.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStatus {
    /// Its number.
    pub generation: i64,
    /// Its shape: stages by pipelines where it is a plain grid.
    pub shape: String,
    /// Which ranks run each stage: of two pipelines of four stages `0,4;1,5;2,6;3,7;`. Left out where it is very long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_map: Option<String>,
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
    /// When it was first seen to be complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub newest_at: Option<Time>,
    /// Steps since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_behind: Option<i64>,
    /// Why the store cannot be used at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// A phase as its word. A word that only another version of the operator knows is read as none.
mod phase_word {
    use super::{Deserialize, Deserializer, JobPhase, Serializer};

    pub(super) fn serialize<S: Serializer>(
        phase: &Option<JobPhase>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(phase.as_ref().map_or("", |p| p.as_str()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<JobPhase>, D::Error> {
        String::deserialize(deserializer).map(|word| JobPhase::parse(&word))
    }
}

fn phase_description() -> String {
    format!("What the job is doing: {}.", listed(JobPhase::ALL))
}

/// Kubernetes' conditions, in a list that is merged by `type`: else one writer's conditions would replace all others.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    let text = |about: &str| json_schema!({ "type": "string", "description": about });
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One statement about the job.",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": text(&format!("{}.", listed(ConditionType::ALL))),
                "status": text("True, False or Unknown."),
                "reason": text("Why, in one word."),
                "message": text("Why, in a sentence."),
                "lastTransitionTime": text("When the status last changed."),
                "observedGeneration": {
                    "type": "integer", "format": "int64",
                    "description": "Generation of the spec that this condition refers to.",
                },
            },
        },
    })
}
