//! The job's Workload: the document that asks Kueue for quota, and shows Kueue the state of the job.

use super::decision::{AvoidedNodes, JobOutcome, WorkloadChange, time};
use super::objects::{
    APPLIED_ANNOTATION, COORDINATOR_LABEL, NUMBER_LABEL, identity_of, metadata, workload_name,
};
use super::observed::{Observed, ObservedPod};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use super::queue::{coordinator_set, present, set_name};
use super::queue_objects::ObservedWorkload;
use super::{coordinator_pod, pod_template, workload_priority};
use serde_json::{Value, json};
use varuna_api::crd::Condition;
use varuna_api::{Job, PodGroup};

/// Label of a Workload with the uid of the job that it is of. Kueue's name for it.
const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";
/// Characters of a message in a Workload's condition.
const MESSAGE_MAX: usize = 1024;

/// What is to be done about the job's own Workloads; for increments, see `increments.rs`.
pub(super) fn workload_changes(
    observed: &Observed,
    job: &Job,
    outcome: &JobOutcome,
    pods: &[JudgedPod<'_>],
) -> Vec<WorkloadChange> {
    if !observed.queue.may_be_changed() {
        return vec![];
    }
    let delete = |name: &String| WorkloadChange::Delete(name.clone());
    let mut changes: Vec<_> = observed.queue.earlier.iter().map(delete).collect();
    let idle = is_idle(observed, pods);
    changes.extend(match (present(observed), outcome) {
        (None, JobOutcome::Queue) => create(observed, job),
        (Some(workload), JobOutcome::Complete) if idle => Some(finish(
            observed,
            workload,
            "Succeeded",
            "the last step is committed",
        )),
        (Some(workload), JobOutcome::Fail(_, why)) if idle => Some(finish(observed, workload, "Failed", why)),
        // A suspended job does not wait for quota, nor does a refused one: it asks again when it is tried again.
        (Some(workload), JobOutcome::Suspend | JobOutcome::Refuse(..)) if idle && !workload.deleting => {
            Some(delete(&workload.name))
        }
        (Some(workload), JobOutcome::Queue) if workload.holds_quota() => {
            let evicted = workload.if_true("Evicted").filter(|_| idle);
            evicted.map(|evicted| release(observed, workload, evicted))
        }
        (Some(workload), JobOutcome::Queue | JobOutcome::Run) if !workload.holds_quota() => {
            correct(observed, job, workload)
        }
        (Some(workload), JobOutcome::Run) => {
            let note_ready = || note_ready(observed, workload, has_enough_running(job, pods));
            prefer(observed, job, workload).or_else(note_ready)
        }
        _ => None,
    });
    changes
}

/// Whether nothing of the job runs any more.
fn is_idle(observed: &Observed, pods: &[JudgedPod<'_>]) -> bool {
    let stopped = observed.run.as_ref().is_none_or(|r| r.ended.is_some());
    let workers = pods.iter().map(|p| p.pod);
    let mut all = workers.chain(&observed.coordinators);
    stopped && all.all(|pod| has_gone(observed, pod))
}

/// Whether a pod no longer needs quota. A pod on a lost node counts as gone, because it cannot be known whether it has ended.
pub(super) fn has_gone(observed: &Observed, pod: &ObservedPod) -> bool {
    let node = pod.node.as_ref().map(|name| observed.nodes.get(name));
    let is_lost = node.is_some_and(|node| node.is_none_or(|node| !node.ready));
    pod.has_ended() || is_lost
}

/// The next Workload: its number distinguishes it from that of an earlier run.
fn create(observed: &Observed, job: &Job) -> Option<WorkloadChange> {
    let number = observed.queue.workload.as_ref().map_or(0, |w| w.number) + 1;
    let queue = job.queue.as_ref()?;
    let name = workload_name(&observed.job, number);
    make(observed, &name, spec(observed, job, queue)?)
}

/// A Workload of the job with this name and this spec.
pub(super) fn make(observed: &Observed, name: &str, mut spec: Value) -> Option<WorkloadChange> {
    let identity = identity_of(&spec);
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    let mut metadata = metadata(&observed.job, name);
    metadata["labels"][JOB_UID_LABEL] = observed.job.uid.as_str().into();
    metadata["annotations"] = json!({ APPLIED_ANNOTATION: identity });
    let version = observed.queue.served?.api_version();
    Some(WorkloadChange::Create(
        json!({ "apiVersion": version, "kind": "Workload", "metadata": metadata, "spec": spec }),
    ))
}

/// A Workload that holds no quota follows the job; one that does is fixed.
fn correct(observed: &Observed, job: &Job, workload: &ObservedWorkload) -> Option<WorkloadChange> {
    let Some(queue) = &job.queue else {
        return (!workload.deleting).then(|| WorkloadChange::Delete(workload.name.clone()));
    };
    follow(workload, &spec(observed, job, queue)?)
}

/// Brings a Workload that holds no quota to this spec.
pub(super) fn follow(workload: &ObservedWorkload, spec: &Value) -> Option<WorkloadChange> {
    let identity = identity_of(spec);
    (workload.made_from.as_ref() != Some(&identity)).then(|| WorkloadChange::Patch {
        name: workload.name.clone(),
        patch: json!({
            "metadata": { "resourceVersion": workload.version, "annotations": { APPLIED_ANNOTATION: identity } },
            "spec": spec,
        }),
    })
}

/// The change of a Workload that holds quota: only its priority follows the job.
pub(super) fn prefer(observed: &Observed, job: &Job, workload: &ObservedWorkload) -> Option<WorkloadChange> {
    let spec = workload_priority::change(observed, job, workload)?;
    Some(WorkloadChange::Patch {
        name: workload.name.clone(),
        patch: json!({ "metadata": { "resourceVersion": workload.version }, "spec": spec }),
    })
}

/// What quota is asked for: a set of pods for the coordinator and one for each group of workers. Kueue admits a part of only one set.
fn spec(observed: &Observed, job: &Job, queue: &str) -> Option<Value> {
    let groups = job.pod_groups();
    let coordinator = coordinator_pod::pod(
        &observed.job,
        job,
        0,
        &AvoidedNodes::default(),
        &observed.settings,
    );
    let mut sets =
        vec![json!({ "name": coordinator_set(&groups), "count": 1, "template": template(coordinator) })];
    let elastic = elastic_group(job, &groups);
    for (i, group) in groups.iter().enumerate().filter(|(_, g)| g.pods > 0) {
        let least = elastic.filter(|(at, _)| *at == i).map(|(_, least)| least);
        sets.push(pod_set(observed, job, group, least));
    }
    spec_of(observed, job, queue, sets)
}

/// A spec that asks a queue for these sets of pods, with the job's priority. None while the job names a priority class that does not exist.
pub(super) fn spec_of(observed: &Observed, job: &Job, queue: &str, sets: Vec<Value>) -> Option<Value> {
    let priority = workload_priority::priority(observed, job).ok()?;
    let mut spec = workload_priority::fields(observed.queue.served?, priority.as_ref());
    spec["queueName"] = queue.into();
    spec["podSets"] = sets.into();
    Some(spec)
}

/// A set of a group's pods, and the fewest that may be admitted; none = all or nothing.
pub(super) fn pod_set(observed: &Observed, job: &Job, group: &PodGroup<'_>, least: Option<u32>) -> Value {
    let nowhere = AvoidedNodes::default();
    let pod = pod_template::pod(&observed.job, (job, group), 0, &nowhere, &observed.settings);
    let mut set = json!({ "name": set_name(group), "count": group.pods, "template": template(pod) });
    if let Some(least) = least.filter(|least| *least < group.pods) {
        set["minCount"] = least.into();
    }
    set
}

/// The group of which Kueue may admit a part, and its fewest pods: the group that can spare the most pods while the others have all of
/// theirs.
fn elastic_group(job: &Job, groups: &[PodGroup<'_>]) -> Option<(usize, u32)> {
    let workers = |g: &PodGroup<'_>| g.pods * g.workers.gpus_per_pod;
    let all: u32 = groups.iter().map(workers).sum();
    let least = |group: &PodGroup<'_>| {
        let own = job
            .worker_groups
            .iter()
            .find(|w| Some(w.name.as_str()) == group.name);
        let of_job = job.elasticity.min_workers.saturating_sub(all - workers(group));
        let least = of_job.max(own.map_or(0, |w| w.min_workers));
        least.div_ceil(group.workers.gpus_per_pod).max(1)
    };
    let can_spare = groups
        .iter()
        .enumerate()
        .map(|(i, g)| (g.pods.saturating_sub(least(g)), i));
    let (_, i) = can_spare.max_by_key(|(spare, i)| (*spare, std::cmp::Reverse(*i)))?;
    Some((i, least(&groups[i])))
}

/// A pod as a template: of its metadata Kueue takes only labels and annotations.
fn template(mut pod: Value) -> Value {
    let mut labels = pod["metadata"]["labels"].take();
    if let Some(labels) = labels.as_object_mut() {
        labels.retain(|name, _| name != NUMBER_LABEL && name != COORDINATOR_LABEL);
    }
    json!({ "metadata": { "labels": labels }, "spec": pod["spec"].take() })
}

/// Gives the quota back, as Kueue's own jobs do. If another job was preferred, the Workload asks for quota again at once.
fn release(observed: &Observed, workload: &ObservedWorkload, evicted: &Condition) -> WorkloadChange {
    let asks_again = matches!(evicted.reason.as_str(), "Preempted" | "NodeFailures");
    let message = evicted.message.as_str();
    let conditions = [
        ("Requeued", asks_again, evicted.reason.as_str(), message),
        ("QuotaReserved", false, "Pending", message),
        (
            "Admitted",
            false,
            "NoReservation",
            "the job has ended its pods and given its quota back",
        ),
    ];
    let mut patch = status_patch(observed, workload, &conditions);
    patch["status"]["admission"] = Value::Null;
    WorkloadChange::PatchStatus {
        name: workload.name.clone(),
        patch,
    }
}

/// Ends a Workload: Kueue frees its quota, or takes it out of its queue.
pub(super) fn finish(
    observed: &Observed,
    workload: &ObservedWorkload,
    reason: &str,
    message: &str,
) -> WorkloadChange {
    let conditions = [("Finished", true, reason, message)];
    WorkloadChange::PatchStatus {
        name: workload.name.clone(),
        patch: status_patch(observed, workload, &conditions),
    }
}

/// Whether as many workers run as training needs.
fn has_enough_running(job: &Job, pods: &[JudgedPod<'_>]) -> bool {
    let groups = job.pod_groups();
    let workers = |p: &&JudgedPod<'_>| {
        let group = groups.iter().find(|g| g.name == p.pod.group.as_deref());
        group.map_or(0, |g| g.workers.gpus_per_pod)
    };
    let running = pods.iter().filter(|p| p.verdict == PodVerdict::Running);
    running.map(|p| workers(&p)).sum::<u32>() >= job.elasticity.min_workers
}

/// Says whether enough pods of a Workload run: Kueue may wait for that before it admits the next one.
pub(super) fn note_ready(
    observed: &Observed,
    workload: &ObservedWorkload,
    is_ready: bool,
) -> Option<WorkloadChange> {
    let known = workload.condition("PodsReady");
    let (reason, message) = match (is_ready, known.map(|c| c.reason.as_str())) {
        (true, _) => ("Started", "as many workers run as training needs"),
        (false, None | Some("WaitForStart")) => ("WaitForStart", "workers start"),
        (false, Some(_)) => ("WaitForRecovery", "fewer workers run than training needs"),
    };
    let is_known = known.is_some_and(|c| c.reason == reason && (c.status == "True") == is_ready);
    (!is_known).then(|| WorkloadChange::PatchStatus {
        name: workload.name.clone(),
        patch: status_patch(observed, workload, &[("PodsReady", is_ready, reason, message)]),
    })
}

/// The Workload's status with these conditions: type, whether it is true, reason, message. All other conditions are included, because the patch replaces the whole list.
fn status_patch(
    observed: &Observed,
    workload: &ObservedWorkload,
    conditions: &[(&str, bool, &str, &str)],
) -> Value {
    let mut all = workload.conditions.clone();
    for (kind, is, reason, message) in conditions {
        let status = if *is { "True" } else { "False" };
        let known = workload.condition(kind).filter(|c| c.status == status);
        let since = known.map_or_else(|| time(observed.now), |c| c.last_transition_time.clone());
        all.retain(|c| c.type_ != *kind);
        all.push(Condition {
            type_: (*kind).to_owned(),
            status: status.to_owned(),
            reason: (*reason).to_owned(),
            message: message.chars().take(MESSAGE_MAX).collect(),
            last_transition_time: since,
            observed_generation: Some(workload.generation),
        });
    }
    json!({ "metadata": { "resourceVersion": workload.version }, "status": { "conditions": all } })
}
