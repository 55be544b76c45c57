//! The priority of a job in its queue: that of the WorkloadPriorityClass that a label of the job names, else that of the PriorityClass of
//! its workers' pods, else the cluster's default. Kueue does the same for the kinds of jobs that it knows.

use super::observed::Observed;
use super::queue_objects::{KueueVersion, ObservedWorkload, Priority, PriorityKind};
use serde_json::{Value, json};
use varuna_api::Job;

/// The job's priority; none = 0.
///
/// # Errors
/// The job names a class that does not exist; the error is a sentence.
pub(super) fn priority(observed: &Observed, job: &Job) -> Result<Option<Priority>, String> {
    let classes = &observed.queue.classes;
    let (kind, name) = if let Some(name) = &job.workload_priority_class {
        (PriorityKind::Workload, name.as_str())
    } else if let Some(name) = of_pods(job) {
        (PriorityKind::Pod, name)
    } else {
        // Of several, which only a race makes, Kueue takes the lowest.
        let defaults = classes.defaults.iter().filter_map(|name| {
            let key = (PriorityKind::Pod, name.clone());
            Some((*classes.values.get(&key)?, name))
        });
        let lowest = defaults.min();
        return Ok(lowest.map(|(value, name)| Priority {
            kind: PriorityKind::Pod,
            name: name.clone(),
            value,
        }));
    };
    match classes.values.get(&(kind, name.to_owned())) {
        Some(value) => Ok(Some(Priority {
            kind,
            name: name.to_owned(),
            value: *value,
        })),
        None => Err(format!(
            "the job names {} {name}, which does not exist",
            kind.kind()
        )),
    }
}

/// The class that the template of the first group of workers names.
fn of_pods(job: &Job) -> Option<&str> {
    let groups = job.pod_groups();
    let first = groups.into_iter().find(|g| g.pods > 0)?;
    let template = first.workers.template.as_ref()?;
    template.pointer("/spec/priorityClassName")?.as_str()
}

/// The fields of a Workload's spec that say a priority, in a version of Kueue's API. Those that have no value are null.
pub(super) fn fields(version: KueueVersion, priority: Option<&Priority>) -> Value {
    let value = priority.map(|p| p.value);
    match version {
        KueueVersion::V1Beta2 => {
            let class =
                priority.map(|p| json!({ "group": p.kind.group(), "kind": p.kind.kind(), "name": p.name }));
            json!({ "priority": value, "priorityClassRef": class })
        }
        KueueVersion::V1Beta1 => {
            let source = priority.map(|p| format!("{}/{}", p.kind.group(), p.kind.kind().to_lowercase()));
            json!({ "priority": value, "priorityClassName": priority.map(|p| &p.name), "priorityClassSource": source })
        }
    }
}

/// What is to be merged into a Workload that holds quota because the job names another WorkloadPriorityClass now. Another value of the same class changes
/// nothing, as for the kinds of jobs that Kueue knows. Nor does another PriorityClass: a pod keeps the priority that it was made with.
pub(super) fn change(observed: &Observed, job: &Job, workload: &ObservedWorkload) -> Option<Value> {
    let version = observed.queue.served?;
    let wanted = priority(observed, job).ok()?;
    let wanted = wanted.filter(|p| p.kind == PriorityKind::Workload)?;
    let is_other = workload.priority_class.as_ref() != Some(&wanted.name);
    is_other.then(|| fields(version, Some(&wanted)))
}
