//! The custom resource `VarunaRun`: what a job's coordinator should do, and what it reports. Only the operator writes the spec, and only the
//! coordinator writes the status, so neither needs to reach the other.

use super::progress::{RECOVERIES_MAX, Recovery};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use varuna_protocol::coordinator::Snapshot;

/// Maximum number of workers in a notice. If a job loses more at once, the rest are named once these have ended.
pub const NOTICES_MAX: usize = 4096;
/// Maximum number of nodes whose location is in a coordinator's orders.
pub const DOMAINS_MAX: usize = 4096;
/// Bytes that the whole object may have: etcd accepts 1.5 MiB (`--max-request-bytes`).
pub const RUN_BYTES_MAX: usize = 1536 << 10;
/// Bytes that all notices of workers in a coordinator's orders may have. A report leaves that room, because they come without warning.
pub const NOTICES_BYTES_MAX: usize = 256 << 10;
/// Bytes that the locations of nodes in a coordinator's orders may have.
pub const DOMAINS_BYTES_MAX: usize = 512 << 10;

/// Bytes of a map's entry in the object, with a value of so many: Kubernetes notes the key again, with who has written it.
#[must_use]
pub fn entry_bytes(key: &str, value: usize) -> usize {
    2 * key.len() + value + 16
}

/// Maximum number of messages in a report.
pub const MESSAGES_MAX: usize = 64;

/// Orders of the operator to the job's coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema, CustomResource)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core", kube = "::kube_derive"),
    attr = "x_kube(crates(kube_core = \"::kube_core\"))",
    group = "varuna.dev", version = "v1alpha1", kind = "VarunaRun", plural = "varunaruns", namespaced,
    status = "RunStatus", derive = "PartialEq",
    doc = "Orders to a VarunaJob's coordinator, and its report. The operator and the coordinator use it; users do not change it.",
    printcolumn(name = "Goal", json_path = ".spec.goal", type_ = "string", description = "What the coordinator should do."),
    printcolumn(name = "Coordinator", json_path = ".spec.coordinator", type_ = "integer", description = "Number of the coordinator in charge."),
    printcolumn(name = "Reports", json_path = ".status.coordinator", type_ = "integer", description = "Number of the coordinator that reported last."),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date", description = "Time since the run began."),
    validation = ("self.spec.uid == oldSelf.spec.uid", "a run belongs to one job: its uid cannot change"),
    validation = ("self.spec.coordinator >= oldSelf.spec.coordinator", "numbers of coordinators are never used again"),
)]
pub struct RunSpec {
    /// UID of the job.
    #[schemars(length(min = 1, max = 64))]
    pub uid: String,
    /// What the coordinator should do.
    pub goal: RunGoal,
    /// Number of the coordinator in charge. A coordinator with a greater number waits. One with a smaller number ends.
    #[schemars(range(min = 1))]
    pub coordinator: i64,
    /// Number of the newest coordinator that was started. It is the one in charge, or one that waits to take over.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub newest_coordinator: i64,
    /// Number of steps to train in all, if it is more than the run began with. A smaller number changes nothing.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub steps: u64,
    /// Whether the run starts again from the beginning if its training state is lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_state_loss: bool,
    /// The coordinator saves a checkpoint at once for each new value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub save_at: Option<String>,
    /// Names of workers that will end soon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = NOTICES_MAX), inner(length(max = 253)))]
    pub leaving: Vec<String>,
    /// End times of workers whose pods get less time than the job's notice, in seconds since 1970, by the workers' names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = NOTICES_MAX))]
    pub ends_at: BTreeMap<String, i64>,
    /// Time at which the orders were written, in seconds since 1970, if they have end times of workers. The coordinator's clock may be
    /// another one than the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_at: Option<i64>,
    /// Names of workers that have certainly ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = NOTICES_MAX), inner(length(max = 253)))]
    pub ended: Vec<String>,
    /// Locations of the workers' nodes, by node name, from the widest part to the narrowest, such as `zone-a/block-3`. Plans place
    /// neighbours near each other.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = DOMAINS_MAX))]
    pub domains: BTreeMap<String, String>,
}

/// What a coordinator should do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub enum RunGoal {
    /// Train.
    Run,
    /// Train, and save a checkpoint at once.
    Save,
    /// Stop the run in order.
    Stop,
    /// No coordinator is needed.
    None,
}

/// The coordinator's report. It is written by compare-and-swap of the object's resourceVersion.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Number of the coordinator that reports.
    #[serde(default)]
    pub coordinator: i64,
    /// Address at which workers reach the coordinator, `ip:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Address at which the coordinator answers probes and serves metrics, `ip:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_address: Option<String>,
    /// State of the run, as in `status.json` of a run folder. It is missing until the record was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub state: Option<Snapshot>,
    /// Training loss of the last committed step. Missing where it is not a finite number, or nothing in the step's batch was to be predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Number of steps up to the last committed one that the optimizer skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// Loss scale of the next step. It is missing if the job does not scale its loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<u64>,
    /// The checkpoints. They are missing if the job has no store, or the store has not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<RunCheckpoints>,
    /// Recent messages, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MESSAGES_MAX))]
    pub messages: Vec<RunMessage>,
    /// Recoveries and changes of plan under this coordinator, oldest first. Only the newest ten are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = RECOVERIES_MAX))]
    pub recoveries: Vec<Recovery>,
    /// How this coordinator ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "run_end")]
    pub end: Option<RunEnd>,
}

/// What is known about a run's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunCheckpoints {
    /// Step of the newest checkpoint from which training can resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_step: Option<u64>,
    /// Time at which this coordinator first saw the newest checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub newest_at: Option<Time>,
    /// Error of the last attempt to read the store, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
    /// Whether the newest checkpoint is older than a few save intervals, for any reason.
    #[serde(default)]
    pub stale: bool,
}

/// One entry of a coordinator's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunMessage {
    /// Number of the message. Messages of a later coordinator have greater numbers.
    pub number: i64,
    /// Whether training continues after a recovery or a change of plan.
    #[serde(default)]
    pub resumed: bool,
    /// The message in a sentence.
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
            "reason": { "type": "string", "description": "Reason in one word.",
                "enum": ["Done", "Stopped", "StateLost", "Diverged", "CheckpointsTaken", "Failed"] },
            "message": { "type": "string",
                "description": "What was lost, at which step the run diverged, which run owns the checkpoint location, or the error." },
        },
    })
}

fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "description": "State of the run, as in status.json of a run folder.",
    })
}
