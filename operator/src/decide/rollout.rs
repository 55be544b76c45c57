//! Pods of an earlier template are replaced: those that never ran at once, the others node by node, each as a planned change of a job
//! that trains with all its workers, so that no step is lost.

use super::observed::{Observed, ObservedPod};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use std::collections::BTreeSet;
use varuna_api::PodGroup;
use varuna_protocol::coordinator::RunMode;

/// Pods that are to be replaced now because they were made from an earlier template of their group. `wanted`: all pods that the job is to have.
pub(super) fn replaced_now<'a>(
    observed: &Observed,
    groups: &[PodGroup<'_>],
    pods: &[JudgedPod<'a>],
    wanted: usize,
) -> Vec<&'a ObservedPod> {
    let templates: Vec<_> = groups.iter().map(|g| (g.name, g.workers.pods_hash())).collect();
    // Pods of a release that wrote no hash are left alone: nothing says that they are out of date.
    let is_old = |p: &&JudgedPod<'_>| {
        let now = templates.iter().find(|(name, _)| *name == p.pod.group.as_deref());
        let made_from = p.pod.made_from.as_ref();
        now.zip(made_from).is_some_and(|((_, now), made)| made != now)
    };
    let old: Vec<&JudgedPod<'a>> = pods.iter().filter(is_old).collect();
    let never_ran: Vec<&ObservedPod> = old
        .iter()
        .filter(|p| matches!(p.verdict, PodVerdict::Pending(_) | PodVerdict::CannotStart(..)))
        .map(|p| p.pod)
        .collect();
    if !never_ran.is_empty() || !may_lose_a_node(observed, pods, wanted) {
        return never_ran;
    }
    let mut running = old
        .into_iter()
        .filter(|p| p.verdict == PodVerdict::Running)
        .map(|p| p.pod);
    let Some(first) = running.next() else {
        return vec![];
    };
    let on_its_node = running.filter(|p| p.node == first.node);
    std::iter::once(first).chain(on_its_node).collect()
}

/// Whether the job trains with all its workers, and would still have its state without those of one node.
fn may_lose_a_node(observed: &Observed, pods: &[JudgedPod<'_>], wanted: usize) -> bool {
    let Some(run) = observed.run.as_ref().filter(|r| r.ended.is_none()) else {
        return false;
    };
    let trains = run
        .snapshot
        .as_ref()
        .is_some_and(|s| s.run.mode == RunMode::Training);
    let attached = |p: &&JudgedPod<'_>| run.workers(true).any(|name| name == p.pod.name);
    let running = pods.iter().filter(|p| p.verdict == PodVerdict::Running);
    let complete = running.clone().filter(attached).count() >= wanted;
    let nodes: BTreeSet<_> = running.filter_map(|p| p.pod.node.as_ref()).collect();
    // Those of the only node take the state with them: a notice makes a checkpoint, where there is a place for it.
    let state_stays = nodes.len() > 1 || observed.job.spec.as_ref().is_ok_and(|j| j.checkpoint.is_some());
    let leaving = pods.iter().any(|p| p.verdict == PodVerdict::Terminating);
    trains && complete && state_stays && !leaving
}
