//! The custom resource `VarunaRun`: what a job's coordinator is to do, and what it reports. The spec is written by the operator alone, the
//! status by the coordinator alone, so neither needs to reach the other.

use super::progress::{RECOVERIES_MAX, Recovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use varuna_protocol::coordinator::Snapshot;

/// Most names of workers in a notice. A job that loses more at once tells of the rest when these are gone.
pub const NOTICES_MAX: usize = 4096;
/// Most nodes of which a coordinator is told where they are.
pub const DOMAINS_MAX: usize = 4096;
/// Most messages in a report.
pub const MESSAGES_MAX: usize = 64;

/// What the coordinator is to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core", kube = "::kube_derive"),
    attr = "x_kube(crates(kube_core = \"::kube_core\"))",
    group = "varuna.dev", version = "v1alpha1", kind = "VarunaRun", plural = "varunaruns", namespaced,
    status = "RunStatus", derive = "PartialEq",
    doc = "What a VarunaJob's coordinator is to do, and what it reports: a document of the operator and the coordinator, not for users.",
    printcolumn(name = "Goal", json_path = ".spec.goal", type_ = "string", description = "What the coordinator is to do."),
    printcolumn(name = "Coordinator", json_path = ".spec.coordinator", type_ = "integer", description = "Number of the coordinator in charge."),
    printcolumn(name = "Reports", json_path = ".status.coordinator", type_ = "integer", description = "Number of the coordinator that reported last."),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date", description = "Since the run began."),
    validation = ("self.spec.uid == oldSelf.spec.uid", "a run belongs to one job: its uid cannot change"),
    validation = ("self.spec.coordinator >= oldSelf.spec.coordinator", "numbers of coordinators are never used again"),
)]
pub struct RunSpec {
    /// The job's uid.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// What the coordinator is to do.
    pub goal: RunGoal,
    /// Number of the coordinator in charge. One of another number waits for its turn, or ends where its number is lower.
    #[schemars(range(min = 1))]
    pub coordinator: i64,
    /// Number of the newest coordinator that was started: that of the one in charge, or of one that waits to take over.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub newest_coordinator: i64,
    /// Steps that are to be trained in all, where they are more than the run began with; fewer change nothing.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub steps: u64,
    /// Where nothing is left of what was trained, the run begins anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_state_loss: bool,
    /// A checkpoint is made for each new value, at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub save_at: Option<String>,
    /// Workers that will end soon, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = NOTICES_MAX), inner(length(max = 253)))]
    pub leaving: Vec<String>,
    /// When workers end whose pods were given less time to go than the job's notice, in seconds since 1970, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = NOTICES_MAX))]
    pub ends_at: BTreeMap<String, i64>,
    /// Workers that have ended for certain, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = NOTICES_MAX), inner(length(max = 253)))]
    pub ended: Vec<String>,
    /// Where the nodes of its workers are, by their names, from the widest part to the narrowest: `zone-a/block-3`. Plans keep neighbours near to
    /// each other.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = DOMAINS_MAX))]
    pub domains: BTreeMap<String, String>,
}

/// What a coordinator is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub enum RunGoal {
    /// Run.
    Run,
    /// Run, and make a checkpoint at once.
    Save,
    /// End the run in an orderly way.
    Stop,
    /// No coordinator is wanted.
    None,
}

/// What the coordinator reports, by compare-and-swap of the object's resourceVersion.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Number of the coordinator that reports.
    #[serde(default)]
    pub coordinator: i64,
    /// Where workers reach it, `ip:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Where it answers probes and scrapes, `ip:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_address: Option<String>,
    /// The state of the run, as in `status.json` of a run folder; none until the record was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub state: Option<Snapshot>,
    /// Training loss of the last committed step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Steps that the optimizer skipped up to that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// What the next step's loss is multiplied by; none where the job does not scale its loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<u64>,
    /// The checkpoints; none where the job has no store, or it has not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<RunCheckpoints>,
    /// What has happened lately, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MESSAGES_MAX))]
    pub messages: Vec<RunMessage>,
    /// Recoveries and changes of plan of this coordinator, oldest first: the newest ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RECOVERIES_MAX))]
    pub recoveries: Vec<Recovery>,
    /// How this coordinator ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "run_end")]
    pub end: Option<RunEnd>,
}

/// What is known of a run's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunCheckpoints {
    /// Step of the newest that can be resumed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_step: Option<u64>,
    /// When this coordinator first saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub newest_at: Option<Time>,
    /// Why the store could not be asked the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// The newest is older than a few save intervals, for whatever reason.
    #[serde(default)]
    pub stale: bool,
}

/// One entry of a coordinator's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunMessage {
    /// Its number; those of a later coordinator are greater.
    pub number: i64,
    /// Training goes on after a recovery or a change of plan.
    #[serde(default)]
    pub resumed: bool,
    /// A sentence.
    pub text: String,
}

/// How a coordinator ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "reason", content = "message")]
pub enum RunEnd {
    /// The last step is committed.
    Done,
    /// It was asked to stop.
    Stopped,
    /// Neither a worker nor a checkpoint holds these parts of the model's state.
    StateLost(String),
    /// No gradient is finite any more: where and since when.
    Diverged(String),
    /// Another run, of this name, writes to the checkpoint location.
    CheckpointsTaken(String),
    /// An error; another coordinator is started.
    Failed(String),
}

fn run_end(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "required": ["reason"],
        "description": "How this coordinator ended.",
        "properties": {
            "reason": { "type": "string", "description": "In one word.",
                "enum": ["Done", "Stopped", "StateLost", "Diverged", "CheckpointsTaken", "Failed"] },
            "message": { "type": "string", "description": "What was lost, where it diverged, who has the location, or the error." },
        },
    })
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "description": "The state of the run, as in status.json of a run folder.",
    })
}
