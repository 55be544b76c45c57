//! What a decision consists of: what is to be done, and what is to be reported.

use super::pod_verdicts::JudgedPod;
use super::workers::Workers;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use std::collections::BTreeSet;
use varuna_api::Reason;
use varuna_api::crd::{CrashMoment, RecentFailure, RunSpec, Status, Time};

/// What the job's coordinator is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CoordinatorGoal {
    /// The run continues.
    Run,
    /// Run, and make a checkpoint at once.
    RunAndSave,
    /// End the run in an orderly way.
    Stop,
    /// There is no coordinator.
    Absent,
}

/// What is decided about the job as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobOutcome {
    /// The spec is invalid, or cannot be run here: nothing is done. Reason and message.
    Refuse(Reason, String),
    /// The job runs.
    Run,
    /// It runs until a checkpoint holds its state; then it is suspended, or waits in its queue.
    SaveThenSuspend,
    /// The job is suspended.
    Suspend,
    /// Its queue has not admitted it, or takes its quota back: nothing runs, or not for long.
    Queue,
    /// The job is complete.
    Complete,
    /// The job cannot continue. Reason and message.
    Fail(Reason, String),
}

/// A pod to delete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodDeletion {
    /// Name of the pod.
    pub name: String,
    /// Reason, as a sentence.
    pub why: String,
    /// The reason of an Event about it, if users should know.
    pub event: Option<Reason>,
}

/// What is to be done about a job's Workload.
#[derive(Clone, PartialEq, Debug)]
pub enum WorkloadChange {
    /// Make it.
    Create(Value),
    /// Merge this into it, if it is of the version that is in there.
    Patch {
        /// Name of the Workload.
        name: String,
        /// The patch to merge.
        patch: Value,
    },
    /// Merge this into its status, likewise.
    PatchStatus {
        /// Name of the Workload.
        name: String,
        /// The patch to merge into the status.
        patch: Value,
    },
    /// Delete it.
    Delete(String),
}

/// The latest step that is known, and when it was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Steps committed.
    pub step: Option<i64>,
    /// Seconds since 1970.
    pub at: Option<i64>,
}

/// Where new pods are not to go.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AvoidedNodes {
    /// Nodes that announce their end, and those on which pods fail again and again while others run well.
    pub never: BTreeSet<String>,
    /// Nodes on which something failed lately: others are preferred.
    pub rather_not: BTreeSet<String>,
    /// More nodes announce their end than a pod can name as nodes to avoid, so it may be placed on one of the others.
    pub incomplete: bool,
}

/// What is to be done for a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision<'a> {
    /// What is to become of the job.
    pub outcome: JobOutcome,
    /// How far it has come.
    pub progress: Progress,
    /// The job's pods with their states, oldest first.
    pub pods: Vec<JudgedPod<'a>>,
    /// The workers, as its coordinator reports them.
    pub(super) workers: Workers<'a>,
    /// Recent failures of pods.
    pub recent_failures: Vec<RecentFailure>,
    /// When workers crashed since the last step.
    pub crash_moments: Vec<CrashMoment>,
    /// Where new pods are not to go.
    pub avoid: AvoidedNodes,
    /// What its coordinator is to do.
    pub coordinator: CoordinatorGoal,
    /// Orders that have to be written into its `VarunaRun`; none if its present orders are still valid.
    pub orders: Option<RunSpec>,
    /// A coordinator is started: the job has to have its record first.
    pub starts_coordinator: bool,
    /// Whether a coordinator that starts now uses the present spec. Otherwise it uses the spec with which the run began, because workers
    /// hold state of that.
    pub takes_present_spec: bool,
    /// Objects that are to be as written here.
    pub objects: Vec<Value>,
    /// Whether budgets and network policies that are there already are changed now.
    pub changes_policies: bool,
    /// Pods to create, a coordinator's first. They are never changed afterwards.
    pub create: Vec<Value>,
    /// Pods to delete.
    pub delete: Vec<PodDeletion>,
    /// Number of the newest pod once those to create are there.
    pub newest_pod: i64,
    /// Seconds until a pod that ended or cannot stay is replaced, if one waits for that.
    pub replace_in: Option<i64>,
    /// Why pods of an earlier template are not replaced yet, if there are any.
    pub rollout_waits: Option<String>,
    /// The job ended so long ago that it is deleted, once its object shows its end.
    pub delete_job: bool,
    /// What is to be done about its Workloads in Kueue.
    pub workload: Vec<WorkloadChange>,
}

/// What is reported of a job once a decision was carried out.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Status of the job.
    pub status: Status,
    /// What has changed, for users.
    pub events: Vec<EventNote>,
    /// Seconds after which the job is reconciled again, even if nothing changes.
    pub reconcile_in: Option<i64>,
}

/// An Event for users.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventNote {
    /// Whether it is a warning.
    pub warning: bool,
    /// It stays true for a while and is found by each reconciliation: it is recorded the first time only.
    pub lasting: bool,
    /// Reason, in one word.
    pub reason: Reason,
    /// Description, as a sentence.
    pub text: String,
}

/// A time as Kubernetes writes it, of seconds since 1970.
pub(super) fn time(seconds: i64) -> Time {
    Time(Timestamp::from_second(seconds).unwrap_or_default())
}
