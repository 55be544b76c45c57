//! How many of a job's pods may be evicted now: one while it trains, none until it has a plan without the one that goes. A node that is
//! drained so loses its workers one after the other, and each of them hands on what it alone holds.

use super::objects::{JOB_LABEL, NUMBER_LABEL, metadata, workers_name};
use super::observed::{Observed, ObservedRun, whole};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use serde_json::{Value, json};
use varuna_protocol::coordinator::RunMode;

/// The job's `PodDisruptionBudget`.
pub(super) fn disruption_budget(observed: &Observed, pods: &[JudgedPod<'_>]) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": metadata(&observed.job, &workers_name(&observed.job)),
        "spec": {
            "minAvailable": pods_that_stay(observed, pods),
            // Pods that do not run hold nothing.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {
                "matchLabels": { JOB_LABEL: observed.job.name },
                "matchExpressions": [{ "key": NUMBER_LABEL, "operator": "Exists" }],
            },
        },
    })
}

/// How many of the pods that run may not be evicted.
fn pods_that_stay(observed: &Observed, pods: &[JudgedPod<'_>]) -> i64 {
    let Some(run) = observed.run.as_ref().filter(|r| r.ended.is_none()) else {
        return 0;
    };
    let running = pods.iter().filter(|p| p.verdict == PodVerdict::Running);
    let in_plan = whole(running.filter(|p| has_place(run, &p.pod.name)).count());
    match run.snapshot.as_ref().map(|s| s.run.mode) {
        Some(RunMode::Training) => (in_plan - 1).max(0),
        // It waits for workers that may never come: whoever drains a node must not wait with it, unless the state would be lost.
        Some(RunMode::Waiting) if observed.job.spec.as_ref().is_ok_and(|j| j.checkpoint.is_some()) => 0,
        _ => in_plan,
    }
}

/// Whether a worker of this pod runs a stage under the plan in force.
fn has_place(run: &ObservedRun, pod: &str) -> bool {
    let workers = run.snapshot.iter().flat_map(|s| &s.workers);
    workers.filter(|w| w.pipeline.is_some()).any(|w| w.name == pod)
}
