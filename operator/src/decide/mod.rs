//! Decides what is to be done for a job and what is to be reported, from what was observed. Pure: no client, no clock, no randomness; the
//! same observation gives the same decision.
//!
//! Pods are numbered, and a number is never used again. So a lost pod blocks nothing: a pod with the next number replaces it while
//! Kubernetes still waits for the lost node. Which workers train, and how, is not decided here: the coordinator takes every worker that
//! attaches, and the process of a deleted pod informs it after its SIGTERM.

mod checkpoint_location;
mod conditions;
mod coordinator;
mod coordinator_pod;
mod decision;
mod disruption_budget;
mod events;
mod failed_parts;
mod failure_moments;
mod failures;
mod increments;
mod job_outcome;
mod job_progress;
mod network_policies;
mod news;
pub mod objects;
mod observed;
mod pod_parts;
mod pod_placement;
mod pod_template;
mod pod_verdicts;
mod pods;
mod problems;
mod queue;
mod queue_objects;
mod rollout;
mod settings;
mod start_limit;
mod status;
mod suspend;
mod time_limits;
mod worker_notices;
mod workers;
mod workload;
mod workload_priority;

pub use coordinator::coordinator_failure;
pub use decision::{
    AvoidedNodes, CoordinatorGoal, Decision, EventNote, JobOutcome, PodDeletion, Progress, Report,
    WorkloadChange,
};
pub use events::deletion_events;
pub use failed_parts::{Failure, JobPart, waits_for_server};
pub use news::{News, news};
pub use observed::{
    ContainerEnd, CoordinatorProbe, Credentials, Deletion, Observed, ObservedJob, ObservedNode, ObservedPod,
    ObservedRun, ObservedTaint, PodPhase, ProbeAnswer, Rejection, RunEnd, Unstarted,
};
pub use pod_verdicts::{
    JudgedPod, NODE_SIGNALS, NodeSignal, PodVerdict, announced_end, cannot_start, judge_pod,
};
pub use queue_objects::{
    Assignment, KueueVersion, ObservedQueue, ObservedWorkload, Placement, Priority, PriorityClasses,
    PriorityKind,
};
pub use settings::{Settings, TOPOLOGY_LABELS};
pub use status::report;

use failed_parts::postponed;
use job_outcome::{job_outcome, progress};
use pods::{plan_pods, stop_pods};
use queue::AdmissionState;
use serde_json::Value;
use varuna_api::{Job, Reason};
use workers::Workers;

/// Decides what is to be done for a job.
#[must_use]
pub fn decide(observed: &Observed) -> Decision<'_> {
    let workers = Workers::of(observed.run.as_ref());
    let pods = pod_verdicts::judge_pods(observed, &workers);
    let progress = progress(observed);
    let mut recent_failures = failures::recent_failures(observed, &pods);
    let crash_moments = failures::crash_moments(observed, &recent_failures, progress.at.unwrap_or(0));
    failures::forget_oldest(&mut recent_failures);
    let avoid = failures::avoided_nodes(observed, &pods, &recent_failures);
    let crash_moments = failures::counted(crash_moments, observed, &avoid.never);
    let outcome = job_outcome(observed, &pods, crash_moments.len());
    let mut decision = Decision {
        coordinator: coordinator_goal(&outcome, observed),
        orders: None,
        starts_coordinator: false,
        takes_present_spec: pods.iter().all(|p| p.pod.deleting || p.pod.has_ended()),
        outcome,
        progress,
        pods,
        workers,
        recent_failures,
        crash_moments,
        avoid,
        objects: vec![],
        changes_policies: !postponed(&observed.failures, &[JobPart::Policies]),
        create: vec![],
        delete: vec![],
        newest_pod: pods::newest_pod(observed),
        replace_in: None,
        rollout_waits: None,
        delete_job: false,
        workload: vec![],
    };
    decision.delete_job = deletes_job(observed, &decision.outcome);
    if observed.job.deleting {
        // Everything else goes with the job, by its owner references.
        decision.coordinator = CoordinatorGoal::Absent;
        return decision;
    }
    decision.objects = wanted_objects(observed, &decision.pods);
    let Ok(job) = &observed.job.spec else {
        place_coordinator(observed, &mut decision);
        return decision;
    };
    match decision.outcome {
        JobOutcome::Run | JobOutcome::SaveThenSuspend => plan_admitted_pods(observed, job, &mut decision),
        // The coordinator releases the workers; the pods that are left when it has ended are deleted then.
        _ if decision.coordinator == CoordinatorGoal::Stop => {}
        _ => stop_pods(&mut decision),
    }
    if postponed(&observed.failures, &[JobPart::Deletions]) && !decision.delete.is_empty() {
        // Pods that are made in place of others come with their deletion, or there would be too many.
        decision.delete.clear();
        decision.create.clear();
    }
    // Numbers of pods that are not made after all are used later.
    decision.newest_pod = pods::newest_created(observed, &decision.create);
    place_coordinator(observed, &mut decision);
    if !postponed(&observed.failures, &[JobPart::Workload, JobPart::Names]) {
        decision.workload = changes_of_workloads(observed, job, &decision);
    }
    decision
}

/// The job's objects, except its pods. If its spec cannot be read but it runs, its workers go on, and how many of them may be evicted follows
/// from what is observed: a number that stayed as it was would allow no eviction any more once a pod is gone.
fn wanted_objects(observed: &Observed, pods: &[JudgedPod<'_>]) -> Vec<Value> {
    if postponed(&observed.failures, &[JobPart::Objects, JobPart::Names]) {
        return vec![];
    }
    let budget = disruption_budget::disruption_budget(observed, pods);
    let Ok(job) = &observed.job.spec else {
        return observed.run.is_some().then_some(budget).into_iter().collect();
    };
    let mut all = objects::job_objects(&observed.job, job, observed.run.as_ref());
    all.push(budget);
    all.extend(network_policies::network_policies(&observed.job, job));
    all
}

/// Whether the job itself is deleted now, because its time is over.
fn deletes_job(observed: &Observed, outcome: &JobOutcome) -> bool {
    let left = time_limits::deleted_in(observed, outcome, &observed.job.status);
    let is_refused = postponed(&observed.failures, &[JobPart::JobDeletion]);
    left.is_some_and(|seconds| seconds <= 0) && !observed.job.deleting && !is_refused
}

/// Plans the pods of a job that runs, within what its queue has admitted. A job that is about to lose its quota gets no more pods. If the
/// admission of a job is not known, its pods change only because of nodes and the cluster.
fn plan_admitted_pods(observed: &Observed, job: &Job, decision: &mut Decision<'_>) {
    let admission_state = queue::admission_state(observed, job);
    let limits = queue::pod_limits(observed, job, &admission_state);
    plan_pods(observed, job, &limits, decision);
    match admission_state {
        AdmissionState::Free | AdmissionState::Admitted(_) => {}
        AdmissionState::Waits(..) => decision.create.clear(),
        AdmissionState::Unknown(_) => {
            let is_forced = |reason: Reason| reason != Reason::RollingUpdate;
            decision.delete.retain(|d| d.event.is_some_and(is_forced));
            decision.create.clear();
        }
    }
}

/// What happens to the job's Workloads. Deletions come first: Kueue may consider the job's own Workload as soon as it has given its quota
/// back, and can admit more of it if the quota of the increments is free by then.
fn changes_of_workloads(observed: &Observed, job: &Job, decision: &Decision<'_>) -> Vec<WorkloadChange> {
    let (outcome, pods) = (&decision.outcome, &decision.pods);
    let mut changes = workload::workload_changes(observed, job, outcome, pods);
    changes.extend(increments::increment_changes(observed, job, outcome, pods));
    changes.sort_by_key(|change| !matches!(change, WorkloadChange::Delete(_)));
    changes
}

/// Adds to a decision what is to be done about the job's coordinator.
fn place_coordinator(observed: &Observed, decision: &mut Decision<'_>) {
    let notices = worker_notices::worker_notices(observed, &decision.delete, &decision.workers);
    let plan = coordinator::plan_coordinator(observed, decision.coordinator, notices, &decision.avoid);
    if !postponed(&observed.failures, &[JobPart::Deletions]) {
        decision.delete.extend(plan.delete);
    }
    let refused = postponed(
        &observed.failures,
        &[
            JobPart::Objects,
            JobPart::Pods,
            JobPart::Names,
            JobPart::Coordinator,
        ],
    );
    match (plan.start, &observed.job.spec) {
        // Another number for each try would be tried again at once.
        (Some(_), Ok(_)) if refused => {}
        (Some(number), Ok(job)) => {
            let mut pod =
                coordinator_pod::pod(&observed.job, job, number, &decision.avoid, &observed.settings);
            let is_placed = match queue::admission_state(observed, job) {
                AdmissionState::Admitted(workload) => {
                    queue::place_coordinator(observed, job, workload, &mut pod)
                }
                AdmissionState::Unknown(_) => false,
                AdmissionState::Free | AdmissionState::Waits(..) => true,
            };
            if !is_placed {
                // Where it may go is known soon.
                return;
            }
            decision.starts_coordinator = true;
            decision.create.insert(0, pod);
            decision.orders = plan.orders;
        }
        // Without a spec that can be read no coordinator can be started; training continues without one.
        (Some(_), Err(_)) => {}
        (None, _) => decision.orders = plan.orders,
    }
}

/// Whether a coordinator can end the run in an orderly way. One that has not reported yet is waited for if there is anything to end, and if
/// its pod can start.
fn can_stop(observed: &Observed) -> bool {
    let reports = observed.run.as_ref().is_some_and(|r| r.snapshot.is_some());
    let has_trained = observed.job.status.plan.is_some();
    let can_start = coordinator::cannot_start(observed).is_none()
        && !postponed(&observed.failures, &[JobPart::Coordinator]);
    reports || (has_trained && can_start)
}

fn coordinator_goal(outcome: &JobOutcome, observed: &Observed) -> CoordinatorGoal {
    let runs = observed.run.as_ref().is_some_and(|r| r.ended.is_none());
    // One that runs stays, whatever the API server refuses: what has failed then is its orders, or its successor.
    let is_led = runs && coordinator_failure(observed).is_none();
    match outcome {
        JobOutcome::Run | JobOutcome::SaveThenSuspend
            if !is_led && postponed(&observed.failures, &[JobPart::Coordinator, JobPart::Names]) =>
        {
            CoordinatorGoal::Absent
        }
        JobOutcome::Run => CoordinatorGoal::Run,
        // A spec that this release cannot read ends no run that another one has begun.
        JobOutcome::Refuse(Reason::InvalidSpec, _) if runs => CoordinatorGoal::Run,
        JobOutcome::SaveThenSuspend => CoordinatorGoal::RunAndSave,
        JobOutcome::Suspend | JobOutcome::Queue | JobOutcome::Fail(..) if runs && can_stop(observed) => {
            CoordinatorGoal::Stop
        }
        _ => CoordinatorGoal::Absent,
    }
}

#[cfg(test)]
mod tests;
