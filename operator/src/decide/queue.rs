//! The job's queue in Kueue: whether the job may run, with how many pods, and on which nodes.
//!
//! Kueue decides who has quota. A job without it has no pods; one that it is taken from saves what it has trained, ends, and gives it back.

use super::objects::GROUP_LABEL;
use super::observed::Observed;
use super::queue_objects::{Assignment, ObservedWorkload};
use super::workload_priority;
use serde_json::Value;
use varuna_api::{Job, PodGroup, Reason};

/// What the queue says of a job.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Standing<'a> {
    /// The job waits for no queue.
    Free,
    /// It may run, within this admission.
    Admitted(&'a ObservedWorkload),
    /// It may not run: for this reason and in these words.
    Waits(Reason, String),
}

/// What the queue says of the job.
pub(super) fn standing<'a>(observed: &'a Observed, job: &Job) -> Standing<'a> {
    let queue = &observed.queue;
    let workload = present(observed).filter(|w| job.queue.is_some() || w.holds_quota());
    let Some(workload) = workload else {
        let Some(name) = &job.queue else {
            return Standing::Free;
        };
        if queue.served.is_some() {
            if let Err(why) = workload_priority::priority(observed, job) {
                return Standing::Waits(Reason::WaitsForQuota, why);
            }
            let message = format!("queue {name} has not been asked yet");
            return Standing::Waits(Reason::WaitsForQuota, message);
        }
        // Whoever removes Kueue ends no run.
        if observed.run.as_ref().is_some_and(|r| r.ended.is_none()) {
            return Standing::Free;
        }
        let message = format!(
            "the job names queue {name}, and the API server serves no Workloads of Kueue that this operator can use: install Kueue, or \
             remove the label"
        );
        return Standing::Waits(Reason::NoKueue, message);
    };
    let name = &workload.queue;
    if let Some(evicted) = workload.if_true("Evicted") {
        let why = format!(
            "queue {name} takes its quota back ({}): {}",
            evicted.reason, evicted.message
        );
        return Standing::Waits(Reason::Evicted, why);
    }
    if workload.deleting || !workload.is_active {
        let what = if workload.deleting {
            "deleted"
        } else {
            "not active"
        };
        let message = format!("Workload {} is {what}", workload.name);
        return Standing::Waits(Reason::Evicted, message);
    }
    if workload.if_true("Admitted").is_some() && workload.assignments.is_some() {
        return Standing::Admitted(workload);
    }
    let said = ["Admitted", "QuotaReserved"].into_iter().find_map(|kind| {
        let condition = workload.condition(kind).filter(|c| c.status != "True")?;
        Some(condition.message.as_str())
    });
    let said = said.unwrap_or("it has not been looked at yet");
    Standing::Waits(Reason::WaitsForQuota, format!("queue {name}: {said}"))
}

/// The Workload that counts: one that has finished is of an earlier run.
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

/// The groups, with no more pods than were admitted.
pub(super) fn within_admission<'a>(
    mut groups: Vec<PodGroup<'a>>,
    workload: &ObservedWorkload,
) -> Vec<PodGroup<'a>> {
    for group in &mut groups {
        let assignment = workload.assignment(set_name(group));
        group.pods = group.pods.min(assignment.map_or(0, |a| a.count));
    }
    groups
}

/// Puts a new pod where it was admitted to: on nodes of its flavours, and as admission checks want it. False where a flavour is not known yet: then
/// the pod must wait.
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

/// Puts all new pods of a job where they were admitted to. Those that cannot be placed yet are left out.
pub(super) fn place_workers(
    observed: &Observed,
    workload: &ObservedWorkload,
    groups: &[PodGroup<'_>],
    pods: &mut Vec<Value>,
) {
    pods.retain_mut(|pod| {
        let of = pod["metadata"]["labels"][GROUP_LABEL].as_str();
        let group = groups.iter().find(|g| g.name == of);
        group.is_some_and(|group| place(observed, workload, set_name(group), pod))
    });
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

/// The first message that a job shows while its queue lets it wait.
pub(super) fn waits_for(observed: &Observed) -> Option<String> {
    let job = observed.job.spec.as_ref().ok()?;
    match standing(observed, job) {
        Standing::Waits(_, why) => Some(why),
        Standing::Free | Standing::Admitted(_) => None,
    }
}

/// What was admitted, in words.
pub(super) fn admitted(workload: &ObservedWorkload) -> String {
    let sets = workload.assignments.iter().flatten();
    let sets: Vec<_> = sets
        .map(|(name, Assignment { count, flavors })| {
            let flavors: Vec<&str> = flavors.iter().map(String::as_str).collect();
            format!("{count} of {name} on {}", flavors.join(" and "))
        })
        .collect();
    let queue = &workload.queue;
    format!("queue {queue} has admitted {}", sets.join(", "))
}
