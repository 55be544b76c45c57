//! The job's queue in Kueue: whether the job may run, with how many pods, and on which nodes.
//!
//! Kueue decides which jobs have quota. A job without quota has no pods. A job that loses its quota saves its state, ends its pods, and
//! gives the quota back.

use super::objects::WORKLOAD_ANNOTATION;
use super::observed::{Observed, ObservedPod};
use super::queue_objects::{Assignment, ObservedWorkload};
use super::workload_priority;
use serde_json::Value;
use varuna_api::{Job, PodGroup, Reason};

/// Whether the queue has admitted a job.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum AdmissionState<'a> {
    /// The job waits for no queue.
    Free,
    /// The job may run, within this admission.
    Admitted(&'a ObservedWorkload),
    /// The job may not run. Reason and message.
    Waits(Reason, String),
    /// It is not known yet whether it may run, and why: a run continues as it is, and none begins.
    Unknown(String),
}

/// Kueue's objects are listed within a moment; a job whose admission is not known before is reconciled again after this time.
const LISTED_SECONDS: i64 = 2;

/// How many pods of a group there may be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PodLimit<'a> {
    /// The group, with this many pods.
    pub(super) group: PodGroup<'a>,
    /// The Workload with which these were admitted; none = the limit is the job's own, for all pods of the group.
    pub(super) workload: Option<&'a ObservedWorkload>,
}

impl PodLimit<'_> {
    /// Whether a pod counts against it.
    pub(super) fn counts(&self, pod: &ObservedPod) -> bool {
        let is_of_workload = match self.workload {
            None => true,
            Some(workload) if workload.is_increment => pod.workload.as_ref() == Some(&workload.name),
            Some(_) => pod.workload.is_none(),
        };
        is_of_workload && self.group.name == pod.group.as_deref()
    }
}

/// Whether the queue has admitted the job.
pub(super) fn admission_state<'a>(observed: &'a Observed, job: &Job) -> AdmissionState<'a> {
    let queue = &observed.queue;
    let name = job.queue.as_ref().or(queue.workload.as_ref().map(|w| &w.queue));
    if let Some(name) = name.filter(|_| queue.is_being_listed) {
        return AdmissionState::Unknown(format!("what Kueue says of queue {name} is being listed"));
    }
    let workload = present(observed).filter(|w| job.queue.is_some() || w.holds_quota());
    let Some(workload) = workload else {
        let Some(name) = &job.queue else {
            return AdmissionState::Free;
        };
        if queue.served.is_some() {
            if let Err(why) = workload_priority::priority(observed, job) {
                return AdmissionState::Waits(Reason::WaitsForQuota, why);
            }
            let message = format!("queue {name} has not been asked yet");
            return AdmissionState::Waits(Reason::WaitsForQuota, message);
        }
        // Removing Kueue ends no run.
        if observed.run.as_ref().is_some_and(|r| r.ended.is_none()) {
            return AdmissionState::Free;
        }
        let message = format!(
            "the job names queue {name}, and the API server serves no Workloads of Kueue that this operator can use: install Kueue, or \
             remove the label"
        );
        return AdmissionState::Waits(Reason::NoKueue, message);
    };
    let name = &workload.queue;
    if let Some(evicted) = workload.if_true("Evicted") {
        let why = format!(
            "queue {name} takes its quota back ({}): {}",
            evicted.reason, evicted.message
        );
        return AdmissionState::Waits(Reason::Evicted, why);
    }
    if workload.deleting || !workload.is_active {
        let what = if workload.deleting {
            "deleted"
        } else {
            "not active"
        };
        let message = format!("Workload {} is {what}", workload.name);
        return AdmissionState::Waits(Reason::Evicted, message);
    }
    if workload.is_admitted() {
        return AdmissionState::Admitted(workload);
    }
    let why = why_not_admitted(workload);
    AdmissionState::Waits(Reason::WaitsForQuota, format!("queue {name}: {why}"))
}

/// Why a Workload is not admitted yet, in Kueue's words.
fn why_not_admitted(workload: &ObservedWorkload) -> &str {
    let said = ["Admitted", "QuotaReserved"].into_iter().find_map(|kind| {
        let condition = workload.condition(kind).filter(|c| c.status != "True")?;
        Some(condition.message.as_str())
    });
    said.unwrap_or("Kueue has not considered the job yet")
}

/// The Workload that counts. A finished one belongs to an earlier run.
pub(super) fn present(observed: &Observed) -> Option<&ObservedWorkload> {
    let newest = observed.queue.workload.as_ref();
    newest.filter(|w| w.if_true("Finished").is_none())
}

/// Name of the set of a group's pods in the Workload.
pub(super) fn set_name<'a>(group: &PodGroup<'a>) -> &'a str {
    group.name.unwrap_or("workers")
}

/// Name of the coordinator's set, which no group may have.
pub(super) fn coordinator_set(groups: &[PodGroup<'_>]) -> &'static str {
    let is_taken = groups.iter().any(|g| g.name == Some("coordinator"));
    if is_taken {
        "varuna-coordinator"
    } else {
        "coordinator"
    }
}

/// How many pods of each group are allowed: the number admitted with each Workload, the job's own Workload first, and in all no more than
/// the job wants. A job without a queue may have all that it wants. So may a job that is about to lose its quota, because it keeps its pods
/// until it has saved, and a job whose admission is not known yet.
pub(super) fn pod_limits<'a>(
    observed: &'a Observed,
    job: &'a Job,
    admission_state: &AdmissionState<'a>,
) -> Vec<PodLimit<'a>> {
    let groups = job.pod_groups().into_iter();
    let AdmissionState::Admitted(own) = admission_state else {
        let of_job = |group| PodLimit {
            group,
            workload: None,
        };
        return groups.map(of_job).collect();
    };
    let increments = observed.queue.increments.iter();
    let in_force = increments.filter(|w| w.is_in_force());
    let workloads: Vec<&ObservedWorkload> = std::iter::once(*own).chain(in_force).collect();
    let mut limits = vec![];
    for group in groups {
        let mut wanted = group.pods;
        for workload in workloads.iter().copied() {
            let admitted = workload.assignment(set_name(&group)).map_or(0, |a| a.count);
            let pods = admitted.min(wanted);
            wanted -= pods;
            limits.push(PodLimit {
                group: PodGroup { pods, ..group },
                workload: Some(workload),
            });
        }
    }
    limits
}

/// Restricts a new pod to the nodes of its admitted flavours, and adds what admission checks ask for. False if a flavour is not known yet:
/// then the pod must wait.
pub(super) fn place(observed: &Observed, workload: &ObservedWorkload, set: &str, pod: &mut Value) -> bool {
    let Some(assignment) = workload.assignment(set) else {
        return false;
    };
    let flavors = assignment.flavors.iter();
    let flavors: Option<Vec<_>> = flavors.map(|f| observed.queue.flavors.get(f)).collect();
    let Some(flavors) = flavors else {
        return false;
    };
    for placement in flavors.into_iter().chain(workload.updates.get(set)) {
        placement.add_to(pod);
    }
    true
}

/// Puts a worker's new pod where it was admitted to, and notes with what; false where that is not known yet.
pub(super) fn place_worker(observed: &Observed, limit: &PodLimit<'_>, pod: &mut Value) -> bool {
    let Some(workload) = limit.workload else {
        return true;
    };
    if workload.is_increment {
        pod["metadata"]["annotations"][WORKLOAD_ANNOTATION] = workload.name.as_str().into();
    }
    place(observed, workload, set_name(&limit.group), pod)
}

/// Puts the pod of a coordinator where it was admitted to; false where that is not known yet.
pub(super) fn place_coordinator(
    observed: &Observed,
    job: &Job,
    workload: &ObservedWorkload,
    pod: &mut Value,
) -> bool {
    place(observed, workload, coordinator_set(&job.pod_groups()), pod)
}

/// Why a job waits in its queue, in a sentence; none where it does not.
pub(super) fn waits_for(observed: &Observed) -> Option<String> {
    let job = observed.job.spec.as_ref().ok()?;
    match admission_state(observed, job) {
        AdmissionState::Waits(_, why) | AdmissionState::Unknown(why) => Some(why),
        AdmissionState::Free | AdmissionState::Admitted(_) => None,
    }
}

/// Seconds until a job is reconciled again if its admission is not known yet: no watch reports that a list is complete without it.
pub(super) fn known_in(observed: &Observed) -> Option<i64> {
    let job = observed.job.spec.as_ref().ok()?;
    matches!(admission_state(observed, job), AdmissionState::Unknown(_)).then_some(LISTED_SECONDS)
}

/// What was admitted, and what more is waited for, in words.
pub(super) fn admitted(observed: &Observed, workload: &ObservedWorkload) -> String {
    let increments = || observed.queue.increments.iter();
    let more = increments().filter(|w| w.is_in_force());
    let more = more.flat_map(|increment| sets(increment, " more"));
    let all: Vec<String> = sets(workload, "").chain(more).collect();
    let others: String = increments().filter_map(not_in_force).collect();
    format!("queue {} has admitted {}{others}", workload.queue, all.join(", "))
}

/// What was admitted of each set, in words. `more`: what follows the number, for an increment.
fn sets(workload: &ObservedWorkload, more: &str) -> impl Iterator<Item = String> {
    let sets = workload.assignments.iter().flatten();
    sets.map(move |(name, Assignment { count, flavors })| {
        let flavors: Vec<&str> = flavors.iter().map(String::as_str).collect();
        format!("{count}{more} of {name} on {}", flavors.join(" and "))
    })
}

/// The state of an increment that adds nothing, in words. A finished one is not mentioned.
fn not_in_force(increment: &ObservedWorkload) -> Option<String> {
    if increment.is_in_force() || increment.deleting || increment.if_true("Finished").is_some() {
        return None;
    }
    let name = &increment.name;
    if let Some(evicted) = increment.if_true("Evicted") {
        let (reason, message) = (&evicted.reason, &evicted.message);
        return Some(format!(
            "; it takes back what Workload {name} has ({reason}): {message}"
        ));
    }
    if !increment.is_active {
        return Some(format!("; Workload {name} is not active"));
    }
    let why = why_not_admitted(increment);
    Some(format!("; Workload {name} asks for more: {why}"))
}
