//! What is known of a job when it is decided about. Times are seconds since 1970.

use std::collections::{BTreeMap, BTreeSet};
use varuna_api::Job;
use varuna_api::crd::Status;
use varuna_coordinator::{Identity, RunMode};

/// Everything that a decision goes by.
#[derive(Clone, PartialEq, Debug)]
pub struct Observed {
    /// The job.
    pub job: JobSeen,
    /// Its pods, those that have ended included.
    pub pods: Vec<PodSeen>,
    /// The nodes of the cluster, by name.
    pub nodes: BTreeMap<String, NodeSeen>,
    /// What its coordinator tells; none where none runs here.
    pub run: Option<RunSeen>,
    /// What could not be carried out for its present spec.
    pub setbacks: Vec<Setback>,
    /// The present ones, or new ones where there are none yet.
    pub credentials: Credentials,
    /// The time.
    pub now: i64,
    /// How the operator was started.
    pub settings: Settings,
}

/// What a job's workers and its coordinator know each other by.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// What workers show.
    pub token: String,
    /// What the coordinator shows; none where a job is older than certificates.
    pub identity: Option<Identity>,
}

/// The job's object.
#[derive(Clone, PartialEq, Debug)]
pub struct JobSeen {
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its identity; another object of the same name has another.
    pub uid: String,
    /// Number of its spec.
    pub generation: i64,
    /// Its spec, or everything that is wrong with it.
    pub spec: Result<Job, String>,
    /// What was last said of it.
    pub status: Status,
    /// It is being deleted.
    pub deleting: bool,
}

/// How far a pod has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Not started yet.
    Pending,
    /// Started.
    Running,
    /// Ended; each container with exit code 0.
    Succeeded,
    /// Ended otherwise.
    Failed,
}

/// A worker pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodSeen {
    /// Its name.
    pub name: String,
    /// Its number, never used twice in a job.
    pub number: i64,
    /// How far it has come.
    pub phase: Phase,
    /// Where it runs.
    pub node: Option<String>,
    /// It is being deleted.
    pub deleting: bool,
    /// Reason of its condition DisruptionTarget, or of its status where the kubelet ended it.
    pub disrupted: Option<String>,
    /// Why it cannot be scheduled.
    pub unschedulable: Option<String>,
    /// Why a container does not start: reason and message.
    pub waiting: Option<(String, String)>,
    /// How its first container that failed ended, else how the last one did.
    pub ended: Option<Ended>,
}

/// The end of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// When.
    pub at: i64,
    /// Exit code; 128 + signal where a signal ended it.
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled`, ...
    pub reason: String,
    /// Its last words.
    pub words: String,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeSeen {
    /// Its kubelet answers.
    pub ready: bool,
    /// Keys of its taints.
    pub taints: Vec<String>,
    /// Types of its conditions that are true.
    pub conditions: Vec<String>,
}

/// How a coordinator ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The last step is committed.
    Done,
    /// It was asked to.
    Stopped,
    /// Neither a worker nor a checkpoint holds these any more.
    StateLost(String),
    /// Another run, of this name, writes to the place of the checkpoints.
    Taken(String),
    /// Something else; it is started again.
    Broken(String),
}

/// What is known of a job's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SavedSeen {
    /// Step of the newest.
    pub newest: Option<i64>,
    /// Why the store does not answer.
    pub failing: Option<String>,
    /// The newest is behind by more than a few intervals.
    pub stale: bool,
}

/// What a job's coordinator tells.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RunSeen {
    /// What the run is doing.
    pub mode: RunMode,
    /// Steps committed.
    pub step: i64,
    /// The plan in force; 0 = none.
    pub generation: i64,
    /// Its shape.
    pub shape: String,
    /// Workers that it uses.
    pub members: i64,
    /// Workers that are attached.
    pub attached: i64,
    /// Names of those: of their pods.
    pub up: BTreeSet<String>,
    /// Names of those that were attached and are not.
    pub down: BTreeSet<String>,
    /// Predicted and observed time of a step.
    pub predicted_ms: Option<f64>,
    /// Observed time of a step.
    pub observed_ms: Option<f64>,
    /// Loss of the last step.
    pub loss: Option<f64>,
    /// Who holds what, a line for each pipeline.
    pub rank_map: String,
    /// Checkpoints; none where the job has none.
    pub saved: Option<SavedSeen>,
    /// Where it listens.
    pub address: Option<(String, u16)>,
    /// How it ended.
    pub ended: Option<Ending>,
}

/// What can be refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Refused {
    /// Service, Secret and the like.
    Objects,
    /// Pods.
    Pods,
    /// The coordinator cannot start, or has ended with an error.
    Coordinator,
}

/// What could not be carried out, and is left alone for a while.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setback {
    /// What.
    pub what: Refused,
    /// Why, in the words of whoever refused.
    pub words: String,
    /// It is tried again after so many seconds.
    pub again_in: i64,
}

/// How the operator was started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Image of workers whose job names none.
    pub image: Option<String>,
    /// Name of the GPU resource; none = workers ask for no GPU.
    pub gpu_resource: Option<String>,
    /// Taint prefixes and condition types that announce the end of a node, beside those of the job.
    pub node_signals: Vec<String>,
}
