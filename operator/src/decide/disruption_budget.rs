//! How many of a job's pods may be evicted now: one while it trains, none until it has a plan without the one that goes. A node that is
//! drained so loses its workers one after the other, and each of them hands on what it alone holds.

use super::coordinator::cannot_start;
use super::objects::{JOB_LABEL, NUMBER_LABEL, metadata, workers_name};
use super::observed::{JobPart, Observed, postponed, whole};
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

/// How many of the pods that run may not be evicted. The API server counts all of them, those without a place as well: a replacement that runs would
/// else set another one free before there is a plan with it.
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
    let all = whole(running.len());
    let has_checkpoints = observed.job.spec.as_ref().is_ok_and(|j| j.checkpoint.is_some());
    if run.is_settling() && observed.job.status.plan.is_some() {
        // The workers hold the state, and nobody can plan without one that goes before the next coordinator has heard from them. Where none can start,
        // whoever drains a node must not wait for it, unless the state would be lost.
        let comes =
            cannot_start(observed).is_none() && !postponed(&observed.failures, &[JobPart::Coordinator]);
        return if comes || !has_checkpoints { all } else { 0 };
    }
    match run.snapshot.as_ref().map(|s| s.run.mode) {
        // Nobody holds anything yet.
        _ if placed.is_empty() => 0,
        // One whose worker has a place goes already: the plan without it comes first. Where nobody goes, the next plan that is being prepared
        // changes nothing: it takes a replacement in, or moves stages, and each worker hands on what it alone holds as before.
        Some(mode) if mode.is_training() && (!placed.is_subset(&running) || run.a_placed_worker_leaves()) => {
            all
        }
        Some(mode) if mode.is_training() => (all - 1).max(0),
        // It waits for workers that may never come: whoever drains a node must not wait with it, unless the state would be lost.
        Some(RunMode::Waiting) if has_checkpoints => 0,
        _ => all,
    }
}
