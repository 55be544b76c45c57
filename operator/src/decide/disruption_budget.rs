//! How many of a job's pods may be evicted now: one while it trains, and none until there is a plan without the pod that goes. So a node
//! that is drained loses its workers one after the other, and each of them hands over state that only it holds.

use super::coordinator::cannot_start;
use super::failed_parts::{JobPart, postponed};
use super::objects::{JOB_LABEL, NUMBER_LABEL, metadata, workers_name};
use super::observed::{Observed, whole};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use serde_json::{Value, json};
use std::collections::BTreeSet;
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

/// How many of the running pods must not be evicted. The API server counts all pods that are ready, also those without a place in the plan.
/// Otherwise a running replacement would allow another eviction before there is a plan with it. A pod that runs and is not ready, as with a
/// sidecar that is started again and again, is not counted, and may always be evicted: a number that counted it would block every drain.
fn pods_that_stay(observed: &Observed, pods: &[JudgedPod<'_>]) -> i64 {
    let Some(run) = observed.run.as_ref().filter(|r| r.ended.is_none()) else {
        return 0;
    };
    let running: BTreeSet<&str> = pods
        .iter()
        .filter(|p| p.verdict == PodVerdict::Running)
        .map(|p| p.pod.name.as_str())
        .collect();
    let placed = run.placed();
    let is_counted = |p: &&JudgedPod<'_>| p.verdict == PodVerdict::Running && !p.pod.unready;
    let all = whole(pods.iter().filter(is_counted).count());
    let has_checkpoints = has_checkpoints(observed);
    if run.is_settling() && observed.job.status.plan.is_some() {
        // The workers hold the state. No plan without a leaving worker can be made before the next coordinator has reports from all of
        // them. If no coordinator can start, a drain must not wait for one, unless the state would be lost.
        let comes =
            cannot_start(observed).is_none() && !postponed(&observed.failures, &[JobPart::Coordinator]);
        return if comes || !has_checkpoints { all } else { 0 };
    }
    match run.snapshot.as_ref().map(|s| s.run.mode) {
        // Nobody holds anything yet.
        _ if placed.is_empty() => 0,
        // A pod whose worker has a place is already leaving: the plan without it comes first. If no pod is leaving, a next plan that is
        // being prepared changes nothing: it adds a replacement or moves stages, and each worker can still hand over state that only it
        // holds.
        Some(mode) if mode.is_training() && (!placed.is_subset(&running) || run.a_placed_worker_leaves()) => {
            all
        }
        Some(mode) if mode.is_training() => (all - 1).max(0),
        // It waits for workers that may never come: a drain must not wait with it, unless the state would be lost.
        Some(RunMode::Waiting) if has_checkpoints => 0,
        _ => all,
    }
}

/// Whether the state is elsewhere than with the workers. If the spec cannot be read, the checkpoints that were seen tell.
fn has_checkpoints(observed: &Observed) -> bool {
    let seen = observed.job.status.checkpoint.as_ref();
    let was_seen = || seen.is_some_and(|c| c.newest_step.is_some());
    let spec = observed.job.spec.as_ref();
    spec.map_or_else(|_| was_seen(), |job| job.checkpoint.is_some())
}
