//! What a decision is made from: the job, its pods, the nodes, its coordinator. Times are seconds since 1970.

use super::failed_parts::Failure;
use super::queue_objects::ObservedQueue;
use super::settings::Settings;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use varuna_api::Job;
pub use varuna_api::crd::RunEnd;
use varuna_api::crd::{Recovery, RunCheckpoints, RunMessage, RunSpec, Status};
use varuna_coordinator::Identity;
use varuna_protocol::coordinator::Snapshot;

/// Everything that a decision about one job is made from.
#[derive(Clone, PartialEq, Debug)]
pub struct Observed {
    /// The job.
    pub job: ObservedJob,
    /// The job's pods, those that have ended included.
    pub pods: Vec<ObservedPod>,
    /// The nodes of the cluster, by name.
    pub nodes: BTreeMap<String, ObservedNode>,
    /// The pods of its coordinators, those that have ended included.
    pub coordinators: Vec<ObservedPod>,
    /// What its coordinator was ordered to do; none before its first.
    pub orders: Option<RunSpec>,
    /// What its coordinator reports; none where none is wanted.
    pub run: Option<ObservedRun>,
    /// Whether its coordinator answers; none before that is known.
    pub coordinator_probe: Option<CoordinatorProbe>,
    /// What could not be carried out for the present spec.
    pub failures: Vec<Failure>,
    /// The time.
    pub now: i64,
    /// The operator's configuration.
    pub settings: Settings,
    /// What is known of its queue in Kueue.
    pub queue: ObservedQueue,
    /// Pods of workers with numbers up to this have credentials that no coordinator takes any more; 0 where none has.
    pub old_credentials: i64,
}

/// How a job's workers and its coordinator recognise each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Token with which workers authenticate.
    pub token: String,
    /// Certificate and key of the coordinator.
    pub identity: Identity,
}

/// The job's object.
#[derive(Clone, PartialEq, Debug)]
pub struct ObservedJob {
    /// Name of the job.
    pub name: String,
    /// Namespace of the job.
    pub namespace: String,
    /// The job's uid: another object with the same name has another uid.
    pub uid: String,
    /// Generation of its spec.
    pub generation: i64,
    /// The job's spec, or everything that is wrong with it.
    pub spec: Result<Job, String>,
    /// When a checkpoint was last asked for, as its annotation says.
    pub save_at: Option<String>,
    /// The status that was last written.
    pub status: Status,
    /// Whether the object has a deletion timestamp.
    pub deleting: bool,
}

/// A pod's `status.phase`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PodPhase {
    /// The pod has not started yet.
    #[default]
    Pending,
    /// At least one container runs.
    Running,
    /// Ended; each container with exit code 0.
    Succeeded,
    /// Ended otherwise.
    Failed,
}

/// What is known of a coordinator by its probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinatorProbe {
    /// Number of the coordinator.
    pub number: i64,
    /// Result of the probes.
    pub answer: ProbeAnswer,
}

/// Whether a coordinator answers its probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeAnswer {
    /// The coordinator answers, or was silent for a moment only.
    Answers,
    /// The coordinator has answered before, and is silent for some seconds.
    Silent,
    /// It has not answered for some seconds, nor at any time before: perhaps the network lets nothing through to it from here.
    NeverAnswered,
}

/// A pod of a worker or of a coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObservedPod {
    /// Name of the pod.
    pub name: String,
    /// Its number, never used twice among the workers or the coordinators of a job.
    pub number: i64,
    /// The group of workers that it is of; none in a job without groups, and for a coordinator.
    pub group: Option<String>,
    /// Phase of the pod.
    pub phase: PodPhase,
    /// Whether it runs and says that it is not ready, because a container of it is not: perhaps a sidecar.
    pub unready: bool,
    /// The node it is bound to.
    pub node: Option<String>,
    /// Whether the pod has a deletion timestamp.
    pub deleting: bool,
    /// When its deletion was requested, and when it has to be gone; none if it was not.
    pub deletion: Option<Deletion>,
    /// Reason of its condition DisruptionTarget, or of its status where the kubelet ended it for another pod or a shutdown.
    pub disrupted: Option<String>,
    /// Why it cannot be scheduled.
    pub unschedulable: Option<String>,
    /// Why a container does not start: reason and message; the message names an init container. A reason that does not go away by waiting
    /// comes first.
    pub waiting: Option<(String, String)>,
    /// How an init container failed, so that its worker never ran: its name and its end.
    pub init_failed: Option<(String, ContainerEnd)>,
    /// How the container of its worker or coordinator ended, if it has.
    pub ended: Option<ContainerEnd>,
    /// How it failed where none of its containers did.
    pub rejected: Option<Rejection>,
    /// That a node has it, and none of its containers has started.
    pub unstarted: Option<Unstarted>,
    /// Nodes that it has to avoid.
    pub avoids: BTreeSet<String>,
    /// Identity of what it was made from; none where an earlier release made it.
    pub made_from: Option<String>,
    /// The image of its coordinator; none for a worker.
    pub image: Option<String>,
    /// Since when the container of its coordinator runs, in seconds since 1970; none where it does not, and for a worker.
    pub runs_since: Option<i64>,
    /// The increment that it was admitted with; none where that was the job's Workload, or where it waited for none.
    pub workload: Option<String>,
}

/// Why a node refused to run a pod, or ended it for a fault of the pod: no device, no room, too much disk used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rejection {
    /// When the pod was made.
    pub made: i64,
    /// Time of the rejection, in seconds since 1970.
    pub at: i64,
    /// `UnexpectedAdmissionError`, `OutOfcpu`, `Evicted`, ...
    pub reason: String,
    /// Reason, as a sentence.
    pub message: String,
}

/// The times of a pod's deletion, in seconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deletion {
    /// When the deletion was requested.
    pub at: i64,
    /// When the pod has to be gone.
    pub deadline: i64,
}

/// A pod that a node has, and none of whose containers has started yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unstarted {
    /// When it was bound to the node, in seconds since 1970.
    pub bound: i64,
    /// Whether the node may be pulling an image. It pulls none before the pod has its volumes and its network.
    pub may_pull: bool,
}

impl ObservedPod {
    /// Whether none of its containers runs any more.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

/// The end of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ContainerEnd {
    /// Time at which the container started, in seconds since 1970.
    pub started: i64,
    /// Time at which the container ended, in seconds since 1970.
    pub at: i64,
    /// Exit code; 128 + signal where a signal ended it.
    pub code: i32,
    /// `Completed`, `Error`, `OOMKilled`, ...
    pub reason: String,
    /// The container's termination message: the last lines of its log.
    pub message: String,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObservedNode {
    /// Whether the node's condition `Ready` is true.
    pub ready: bool,
    /// Its taints.
    pub taints: Vec<ObservedTaint>,
    /// Types of its conditions that are true.
    pub conditions: Vec<String>,
    /// Where it is, from the widest part to the narrowest (`zone-a/block-3`); empty where no label says.
    pub domain: String,
}

/// A taint of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ObservedTaint {
    /// Key of the taint.
    pub key: String,
    /// When it was added, in seconds since 1970; none where it does not say so.
    pub added_at: Option<i64>,
}

impl From<&str> for ObservedTaint {
    /// A taint that does not say since when it is there.
    fn from(key: &str) -> ObservedTaint {
        ObservedTaint {
            key: key.to_owned(),
            added_at: None,
        }
    }
}

/// What a job's coordinator reports. Empty before the one in charge has.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ObservedRun {
    /// The coordinator's state; none until it has read its record.
    pub snapshot: Option<Snapshot>,
    /// Training loss of the last committed step, if it has one that is a finite number.
    pub loss: Option<f64>,
    /// Steps that the optimizer skipped up to that one.
    pub skipped_steps: Option<u64>,
    /// What the next step's loss is multiplied by; none where the job does not scale its loss.
    pub loss_scale: Option<u64>,
    /// The state of the checkpoints; none where the job has none.
    pub checkpoints: Option<RunCheckpoints>,
    /// Address at which workers reach the coordinator.
    pub address: Option<SocketAddr>,
    /// Address at which the coordinator answers probes.
    pub health_address: Option<SocketAddr>,
    /// What has happened lately, oldest first.
    pub messages: Vec<RunMessage>,
    /// Recoveries of this coordinator that are over, oldest first.
    pub recoveries: Vec<Recovery>,
    /// How it ended, if it has.
    pub ended: Option<RunEnd>,
}

impl ObservedRun {
    /// Steps committed.
    #[must_use]
    pub fn step(&self) -> i64 {
        self.snapshot.as_ref().map_or(0, |s| whole(s.run.step.0))
    }

    /// The run's last step; none before it is known.
    #[must_use]
    pub fn last_step(&self) -> Option<i64> {
        self.snapshot.as_ref().map(|s| whole(s.run.last_step.0))
    }

    /// Number of the plan in force; 0 = none.
    #[must_use]
    pub fn generation(&self) -> i64 {
        self.snapshot.as_ref().map_or(0, |s| whole(s.run.generation.0))
    }

    /// Whether steps are committed.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.snapshot.as_ref().is_some_and(|s| s.run.mode.is_training())
    }

    /// Whether it still waits for reports of the workers that it found in its record.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.snapshot.as_ref().is_none_or(|s| s.run.mode.is_settling())
    }

    /// The pods whose workers run a stage under the plan in force.
    #[must_use]
    pub fn placed(&self) -> BTreeSet<&str> {
        let workers = self.snapshot.iter().flat_map(|s| &s.workers);
        let placed = workers.filter(|w| w.pipeline.is_some());
        placed.map(|w| w.name.as_str()).collect()
    }

    /// Whether a worker with a stage under the plan in force will leave.
    #[must_use]
    pub fn a_placed_worker_leaves(&self) -> bool {
        let mut workers = self.snapshot.iter().flat_map(|s| &s.workers);
        workers.any(|w| w.draining && w.pipeline.is_some())
    }

    /// Names of its workers, which are those of their pods: the attached ones, or the detached ones.
    pub fn workers(&self, attached: bool) -> impl Iterator<Item = &str> {
        let workers = self.snapshot.iter().flat_map(|s| &s.workers);
        workers.filter(move |w| w.up == attached).map(|w| w.name.as_str())
    }
}

/// A number as Kubernetes writes it.
pub(super) fn whole(n: impl TryInto<i64>) -> i64 {
    n.try_into().unwrap_or(i64::MAX)
}
