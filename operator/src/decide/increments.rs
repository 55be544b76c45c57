//! Growth of a job that runs. An increment is a Workload besides the job's own, for pods that the job may have but with which it was not
//! admitted.
//!
//! Kueue admits each of them, and takes each back, separately, so the job never risks what it already has (ADR 25). At most one of them is
//! not admitted yet. It is created once all allowed pods run, because quota that no pod can use is lost to others.

use super::decision::{JobOutcome, WorkloadChange};
use super::objects::increment_name;
use super::observed::Observed;
use super::pod_verdicts::{JudgedPod, PodVerdict};
use super::queue::{AdmissionState, PodLimit, admission_state, pod_limits};
use super::queue_objects::ObservedWorkload;
use super::workload::{finish, follow, has_gone, make, note_ready, pod_set, prefer, spec_of};
use serde_json::Value;
use varuna_api::{Job, PodGroup};

/// The most increments of a job. Each is one more Workload that Kueue counts and chooses from, and that every reconciliation of the job reads.
const INCREMENTS_MAX: usize = 8;
/// How long an increment waits for quota. In a queue that admits in strict order (`StrictFIFO`) all later Workloads wait behind it.
const ASKS_SECONDS: i64 = 600;
/// How long after an increment got no quota, or lost it, no other one is created, so that other jobs have their turn.
const RESTS_SECONDS: i64 = 600;
/// The reason of an increment's end if its job continues.
const WITHDRAWN: &str = "Withdrawn";

/// What is to be done about the job's increments.
pub(super) fn increment_changes(
    observed: &Observed,
    job: &Job,
    outcome: &JobOutcome,
    pods: &[JudgedPod<'_>],
) -> Vec<WorkloadChange> {
    if !observed.queue.may_be_changed() {
        return vec![];
    }
    let admission_state = admission_state(observed, job);
    let (JobOutcome::Run, AdmissionState::Admitted(own)) = (outcome, &admission_state) else {
        return give_back(observed, outcome, pods);
    };
    let limits = pod_limits(observed, job, &admission_state);
    // Another queue counts from the next admission on.
    let queue = job.queue.as_deref().filter(|queue| *queue == own.queue);
    let growth = Growth {
        observed,
        job,
        pods,
        limits: &limits,
        lacking: lacking(job, &limits).zip(queue),
    };
    let present = observed.queue.increments.iter().filter(|w| !w.deleting);
    let changes = present.filter_map(|increment| growth.change(increment));
    changes.chain(growth.ask()).collect()
}

/// The first group of which the job may have more pods than were admitted, with as many as it lacks.
fn lacking<'a>(job: &'a Job, limits: &[PodLimit<'_>]) -> Option<PodGroup<'a>> {
    job.pod_groups().into_iter().find_map(|group| {
        let of_group = limits.iter().filter(|limit| limit.group.name == group.name);
        let admitted: u32 = of_group.map(|limit| limit.group.pods).sum();
        let pods = group.pods.saturating_sub(admitted);
        (pods > 0).then_some(PodGroup { pods, ..group })
    })
}

/// A job that runs within its admission.
struct Growth<'a> {
    observed: &'a Observed,
    job: &'a Job,
    pods: &'a [JudgedPod<'a>],
    limits: &'a [PodLimit<'a>],
    /// What it lacks, and the queue that may have it.
    lacking: Option<(PodGroup<'a>, &'a str)>,
}

impl Growth<'_> {
    /// What is to be done about an increment.
    fn change(&self, increment: &ObservedWorkload) -> Option<WorkloadChange> {
        let (observed, now) = (self.observed, self.observed.now);
        if let Some(finished) = increment.if_true("Finished") {
            let rested = now - finished.last_transition_time.0.as_second() >= RESTS_SECONDS;
            return rested.then(|| delete(increment));
        }
        let is_used = is_used(observed, self.pods, increment);
        if increment.is_taken_back() {
            let why = "its quota was taken back, and none of its pods is left";
            return (!is_used).then(|| finish(observed, increment, WITHDRAWN, why));
        }
        if increment.is_admitted() {
            if !self.is_wanted(increment) {
                return (!is_used).then(|| delete(increment));
            }
            let note_ready = || note_ready(observed, increment, self.any_runs(increment));
            return prefer(observed, self.job, increment).or_else(note_ready);
        }
        if self.lacking.is_none() {
            return Some(delete(increment));
        }
        if increment.holds_quota() {
            // Its admission checks take as long as they take.
            return None;
        }
        if now - increment.made >= ASKS_SECONDS {
            let why = "there was no quota for it; the job asks again after a while";
            return Some(finish(observed, increment, WITHDRAWN, why));
        }
        follow(increment, &self.spec()?)
    }

    /// The next increment, where there may be one.
    fn ask(&self) -> Option<WorkloadChange> {
        let increments = &self.observed.queue.increments;
        let all_add = increments.iter().all(ObservedWorkload::is_in_force);
        if !all_add || increments.len() >= INCREMENTS_MAX || !self.all_run() {
            return None;
        }
        let number = increments.iter().map(|w| w.number).max().unwrap_or(0) + 1;
        let name = increment_name(&self.observed.job, number);
        make(self.observed, &name, self.spec()?)
    }

    /// What an increment asks for: what the job lacks, or any part of it.
    fn spec(&self) -> Option<Value> {
        let (group, queue) = self.lacking?;
        let set = pod_set(self.observed, self.job, &group, Some(1));
        spec_of(self.observed, self.job, queue, vec![set])
    }

    /// Whether the job may have a pod of this increment. A lower maximum takes those of increments first, the newest at the head.
    fn is_wanted(&self, increment: &ObservedWorkload) -> bool {
        let is_of = |w: &ObservedWorkload| w.name == increment.name;
        let mut limits = self.limits.iter();
        limits.any(|limit| limit.group.pods > 0 && limit.workload.is_some_and(is_of))
    }

    /// Whether a pod of this increment runs.
    fn any_runs(&self, increment: &ObservedWorkload) -> bool {
        let is_of = |p: &JudgedPod<'_>| p.pod.workload.as_ref() == Some(&increment.name);
        self.pods
            .iter()
            .any(|p| p.verdict == PodVerdict::Running && is_of(p))
    }

    /// Whether all pods run that there may be.
    fn all_run(&self) -> bool {
        let running = || self.pods.iter().filter(|p| p.verdict == PodVerdict::Running);
        let run = |limit: &PodLimit<'_>| running().filter(|p| limit.counts(p.pod)).count();
        self.limits
            .iter()
            .all(|limit| run(limit) >= limit.group.pods as usize)
    }
}

/// What happens to increments whose job does not run within its admission: each gives its quota back with its last pod. If the job has
/// ended, they end with it, like its own Workload.
fn give_back(observed: &Observed, outcome: &JobOutcome, pods: &[JudgedPod<'_>]) -> Vec<WorkloadChange> {
    let end = match outcome {
        JobOutcome::Complete => Some(("Succeeded", "the last step is committed")),
        JobOutcome::Fail(_, why) => Some(("Failed", why.as_str())),
        _ => None,
    };
    let change = |increment: &ObservedWorkload| {
        let has_finished = increment.if_true("Finished").is_some();
        match end {
            _ if is_used(observed, pods, increment) => None,
            Some(_) if has_finished => None,
            Some((reason, why)) if increment.holds_quota() => Some(finish(observed, increment, reason, why)),
            _ => Some(delete(increment)),
        }
    };
    let present = observed.queue.increments.iter().filter(|w| !w.deleting);
    present.filter_map(change).collect()
}

/// Whether a pod of this increment needs its quota.
fn is_used(observed: &Observed, pods: &[JudgedPod<'_>], increment: &ObservedWorkload) -> bool {
    let mut own = pods
        .iter()
        .map(|p| p.pod)
        .filter(|pod| pod.workload.as_ref() == Some(&increment.name));
    own.any(|pod| !has_gone(observed, pod))
}

fn delete(increment: &ObservedWorkload) -> WorkloadChange {
    WorkloadChange::Delete(increment.name.clone())
}
