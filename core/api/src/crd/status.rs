//! The status of a `VarunaJob`: what the operator reports. Whole numbers have 64 signed bits, as everywhere in Kubernetes.

use super::progress::{HistoryEntry, Recovery, RecoveryTotals, TimeSpent};
use crate::conditions::{ConditionType, JobPhase, listed};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// State of the job, as the operator reports it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Generation of the spec to which this status refers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Phase of the job.
    #[serde(skip_serializing_if = "Option::is_none", with = "phase_word")]
    #[schemars(with = "Option<String>", description = phase_description())]
    pub phase: Option<JobPhase>,
    /// What the job waits for, or why it failed. It is missing while all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Conditions of the job, each with a reason and a message.
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
    /// The current plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanStatus>,
    /// Time at which the job first ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub start_time: Option<Time>,
    /// Time at which the job was complete or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub completion_time: Option<Time>,
    /// Number of committed steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,
    /// Last step of the run, as its coordinator knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<i64>,
    /// Committed steps and all steps, such as `176/600`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// Training speed in tokens per second, while the job trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<i64>,
    /// Estimated time until the last step at the current speed, while the job trains.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta: Option<String>,
    /// Share of the time since the job's first training that was spent on steps that were not lost later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput: Option<String>,
    /// How the time since the job's first training was spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeSpent>,
    /// Time of the last increase of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub progressed_at: Option<Time>,
    /// Training loss of the last committed step. For a language model it is in nats per token. Missing where it is not a finite number, or
    /// nothing in the step's batch was to be predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
    /// Number of steps that the optimizer skipped because a gradient or the loss was not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<i64>,
    /// Loss scale of the next step, if the job scales its loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<i64>,
    /// Number of steps that had to be trained again, because no worker held their state any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<i64>,
    /// Number of plans that came into force after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconfigurations: Option<i64>,
    /// The suspension that waits for a checkpoint of the training state. The job still runs meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspending: Option<Suspending>,
    /// Value of the annotation `varuna.dev/save-at` for which a checkpoint was ordered last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_ordered: Option<String>,
    /// Checkpoints of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// Number of workers that are attached to the job's coordinator. Until that is known, it is the number of workers of the running pods.
    pub workers: i64,
    /// Number of workers of each group, if the job has groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub worker_groups: Vec<WorkerGroupStatus>,
    /// Label selector of the job's pods, for the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Failures of pods in the last hour, oldest first. All failures on one node within ten seconds are one entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub recent_failures: Vec<RecentFailure>,
    /// Crashes of workers or init containers since the last committed step, oldest first. All crashes within ten seconds are one entry.
    /// Crashes that happened only on nodes that new pods avoid are not listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub crash_moments: Vec<CrashMoment>,
    /// Progress of the replacement of pods that were created from an earlier template, while there are such pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Number of the coordinator's last message that was recorded as an Event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message: Option<i64>,
    /// Recent events of the job, oldest first. Only the newest twenty are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<HistoryEntry>,
    /// Recent recoveries and planned changes of the workers that train, oldest first. Only the newest ten are kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub recent_recoveries: Vec<Recovery>,
    /// Total cost of recoveries and planned changes since the job began, by cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cause"]))]
    pub recovery_totals: Vec<RecoveryTotals>,
    /// Number of the newest pod. Numbers are never used again, so that a new pod is not confused with a deleted one.
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
    /// Name of the group.
    pub name: String,
    /// Number of workers of the group that are attached to the coordinator. Until that is known, it is the number of workers of the running
    /// pods.
    pub workers: i64,
    /// Number of workers that the group should have.
    pub wanted: i64,
}

/// Progress of the replacement of pods that were created from an earlier template.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Time at which the pods of a node were last replaced.
    #[schemars(with = "String")]
    pub at: Time,
    /// Number of workers that were attached at that time.
    pub workers: i64,
}

/// A suspension that waits for a checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspending {
    /// Time at which the wait began.
    #[schemars(with = "String")]
    pub since: Time,
    /// Step that the checkpoint must contain.
    #[serde(default)]
    pub step: i64,
}

/// Pods that failed on one node within ten seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecentFailure {
    /// Time of the first failure.
    #[schemars(with = "String")]
    pub at: Time,
    /// Node of the pods.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<String>,
    /// First pod that failed.
    pub pod: String,
    /// Kind of failure: Crashed (a worker ended with an error), Killed (it was killed from outside), Rejected (the node did not accept the
    /// pod), NotStarted (the node did not start it in time), InitFailed (an init container ended with an error) or Left (a worker ended
    /// without an error although the job runs).
    pub kind: String,
    /// Number of the pod, if an init container failed. The operator compares it with pods on other nodes to find out whether the node or
    /// the template is at fault.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub number: Option<i64>,
    /// Identity of the template of the pod, if an init container failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub made_from: Option<String>,
}

/// Crashes within ten seconds. They have one cause.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CrashMoment {
    /// Time of the first crash.
    #[schemars(with = "String")]
    pub at: Time,
    /// Nodes of the crashed workers, for an hour. More than four nodes are not listed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub nodes: Vec<String>,
}

/// The current plan.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlanStatus {
    /// Number of the plan.
    pub generation: i64,
    /// Shape of the plan, such as `P2xD4`: two stages in each of four pipelines.
    pub shape: String,
    /// Ranks that run each stage, for two pipelines of four stages `0,4;1,5;2,6;3,7;`. A very long map is not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank_map: Option<String>,
    /// Number of workers that the plan uses.
    pub workers: i64,
    /// Number of attached workers that the plan does not use.
    pub idle: i64,
    /// Attached workers that the plan does not use, each with the reason. Only the first ten are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub left_out: Vec<LeftOutWorker>,
    /// Spare copies of training state under this plan. Only for jobs that want them (spec.elasticity.spareCopies).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_copies: Option<SpareCopiesStatus>,
    /// Predicted time of a step, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_step_ms: Option<i64>,
    /// Observed time of a step, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_step_ms: Option<i64>,
}

/// Maximum number of workers that a plan's status lists as left out; the others are only counted.
pub const LEFT_OUT_MAX: usize = 10;

/// An attached worker that the plan does not use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeftOutWorker {
    /// Name of the worker.
    pub name: String,
    /// Reason in one word: leaving (it will be stopped), wrongBits (its state differed from that of the others), unsound (workers of its
    /// name ended within their first steps, or had wrong bits), noData (it could not read the dataset or, for spec.model.exported, its
    /// model's code), noMemory (it ran out of memory several times), badLink (it and a worker of the plan could not reach one another),
    /// slow (it computes slower than others), maxWorkers (no more workers are wanted), notNeeded (the best plan does without it),
    /// notWorthAChange (a plan with it would not repay the cost of the change), new (the plan was made before it could be used) or
    /// unknown.
    #[serde(default)]
    pub reason: String,
    /// Reason in a sentence.
    #[serde(default)]
    pub message: String,
}

/// Spare copies of training state under a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpareCopiesStatus {
    /// Number of parts of the model that only one worker holds.
    #[serde(default)]
    pub units: i64,
    /// How many of them another worker is to keep a copy of.
    #[serde(default)]
    pub kept: i64,
    /// Decision in one word: kept, keptInPart (no worker has memory for the others), keptWhereLinksAllow (gradients of the others would
    /// take more than half of a step on some link), nothingAlone (several workers hold each part), noKeeper (no worker has memory for a
    /// copy), linksTooSlow (gradients would take more than half of a step on some link), lossesTooRare (with auto: losses are expected to
    /// cost less than copies) or unknown.
    #[serde(default)]
    pub reason: String,
    /// Decision in a sentence.
    #[serde(default)]
    pub message: String,
}

/// Checkpoints of the job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// Step of the newest checkpoint from which training can resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub newest_step: Option<i64>,
    /// Time at which the newest checkpoint was first seen complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub newest_at: Option<Time>,
    /// Number of steps that were committed since the newest checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_behind: Option<i64>,
    /// Why the store cannot be used at present.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// A phase as text. A phase that only another version of the operator knows is read as none.
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
    format!("Phase of the job: {}.", listed(JobPhase::ALL))
}

/// Kubernetes' conditions, in a list that is merged by `type`. Otherwise one writer's conditions would replace all others.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    let text = |about: &str| json_schema!({ "type": "string", "description": about });
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "A condition of the job.",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": text(&format!("Type of the condition: {}.", listed(ConditionType::ALL))),
                "status": text("Status of the condition: True, False or Unknown."),
                "reason": text("Reason for the status, in one word."),
                "message": text("Reason for the status, in a sentence."),
                "lastTransitionTime": text("Time at which the status last changed."),
                "observedGeneration": {
                    "type": "integer", "format": "int64",
                    "description": "Generation of the spec that this condition refers to.",
                },
            },
        },
    })
}
