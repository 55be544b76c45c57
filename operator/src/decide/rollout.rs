//! Pods of an earlier template are replaced: those that never ran at once, the others node by node, each as a planned change of a job
//! that trains, so that no step is lost. Where no plan was ever in force none of them holds anything: then the others go at once, too.
//!
//! A job that has all its workers gives up one node after the other, each once the one before is replaced. A job that waits for room in the cluster,
//! as one on spot capacity does most of the time, does not wait for the rest of its workers: the first node is a trial, and the next one follows when as
//! many workers train as before it. Where another preemption came between, the next one follows after a while, if pods of the new template
//! do train. A template that fits no node costs such a job the workers of one node, and never more than it can spare.

use super::decision::time;
use super::observed::{Observed, ObservedPod, ObservedRun, whole};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use std::collections::BTreeSet;
use varuna_api::crd::RolloutStatus;
use varuna_api::{Job, PodGroup};
use varuna_protocol::coordinator::RunMode;

/// So long a node that was given up may lack its replacement before another one is, where pods of the new template train.
const REPLACEMENT_SECONDS: i64 = 600;

/// Pods that are to be replaced now because they were made from an earlier template of their group. `wanted`: all pods that the job is to have.
pub(super) fn replaced_now<'a>(
    observed: &Observed,
    groups: &[PodGroup<'_>],
    pods: &[JudgedPod<'a>],
    wanted: usize,
) -> Vec<&'a ObservedPod> {
    let old: Vec<&JudgedPod<'a>> = old_pods(groups, pods).collect();
    let never_ran: Vec<&ObservedPod> = old
        .iter()
        .filter(|p| matches!(p.verdict, PodVerdict::Pending(_) | PodVerdict::CannotStart(..)))
        .map(|p| p.pod)
        .collect();
    if !never_ran.is_empty() {
        return never_ran;
    }
    let mut running = old
        .into_iter()
        .filter(|p| p.verdict == PodVerdict::Running)
        .map(|p| p.pod);
    if never_had_a_plan(observed) {
        return running.collect();
    }
    let Some(first) = running.next() else {
        return vec![];
    };
    let on_its_node = running.filter(|p| p.node == first.node);
    let given_up: Vec<_> = std::iter::once(first).chain(on_its_node).collect();
    let may_go = may_lose_a_node(observed, groups, pods, wanted, &given_up);
    if may_go { given_up } else { vec![] }
}

/// What the status says of a rollout. `given_up`: whether the pods of another node are replaced now. None once no pod of an earlier template is
/// left.
pub(super) fn rollout_status(
    observed: &Observed,
    job: &Job,
    pods: &[JudgedPod<'_>],
    given_up: bool,
) -> Option<RolloutStatus> {
    let before = &observed.job.status.rollout;
    if !given_up && before.is_none() {
        return None;
    }
    old_pods(&job.pod_groups(), pods).next()?;
    let run = observed.run.as_ref().filter(|_| given_up);
    let now = run.map(|run| RolloutStatus {
        at: time(observed.now),
        workers: whole(run.workers(true).count()),
    });
    now.or_else(|| before.clone())
}

/// Pods that live and were made from an earlier template of their group. Those of a release that wrote no hash are left alone: nothing says that
/// they are out of date.
fn old_pods<'p, 'a>(
    groups: &[PodGroup<'_>],
    pods: &'p [JudgedPod<'a>],
) -> impl Iterator<Item = &'p JudgedPod<'a>> {
    let templates = templates(groups);
    pods.iter()
        .filter(|p| p.verdict.is_active())
        .filter(move |p| is_current(&templates, p.pod) == Some(false))
}

/// The identity of each group's template.
fn templates(groups: &[PodGroup<'_>]) -> Vec<(Option<String>, String)> {
    let of_group = |g: &PodGroup<'_>| (g.name.map(str::to_owned), g.workers.pods_hash());
    groups.iter().map(of_group).collect()
}

/// Whether a pod was made from the present template of its group, where that is known.
fn is_current(templates: &[(Option<String>, String)], pod: &ObservedPod) -> Option<bool> {
    let (_, now) = templates.iter().find(|(name, _)| *name == pod.group)?;
    Some(pod.made_from.as_ref()? == now)
}

/// Whether no plan was ever in force, which is known once the coordinator has read its record: no worker holds anything then, and with a template that lets none of them
/// attach there never would be one.
fn never_had_a_plan(observed: &Observed) -> bool {
    let run = observed.run.as_ref();
    let run = run.filter(|run| run.ended.is_none() && !run.is_settling());
    observed.job.status.plan.is_none() && run.is_some_and(|run| run.generation() == 0)
}

/// Whether the job trains, would go on without these pods, all of one node, and would still have its state.
fn may_lose_a_node(
    observed: &Observed,
    groups: &[PodGroup<'_>],
    pods: &[JudgedPod<'_>],
    wanted: usize,
    given_up: &[&ObservedPod],
) -> bool {
    let Some(run) = observed.run.as_ref().filter(|r| r.ended.is_none()) else {
        return false;
    };
    let trains = run
        .snapshot
        .as_ref()
        .is_some_and(|s| s.run.mode == RunMode::Training);
    let running = pods.iter().filter(|p| p.verdict == PodVerdict::Running);
    let complete = running.clone().filter(|p| is_attached(run, p.pod)).count() >= wanted;
    let nodes: BTreeSet<_> = running.filter_map(|p| p.pod.node.as_ref()).collect();
    // Those of the only node take the state with them: a notice makes a checkpoint, where there is a place for it.
    let state_stays = nodes.len() > 1 || observed.job.spec.as_ref().is_ok_and(|j| j.checkpoint.is_some());
    let leaving = pods.iter().any(|p| p.verdict == PodVerdict::Terminating);
    let may_be_fewer = || {
        waits_for_room(run, pods, wanted)
            && can_spare(observed, run, given_up)
            && last_is_replaced(observed, run, &templates(groups), pods)
    };
    trains && state_stays && !leaving && (complete || may_be_fewer())
}

/// Whether all that the job lacks is room for its pods.
fn waits_for_room(run: &ObservedRun, pods: &[JudgedPod<'_>], wanted: usize) -> bool {
    let mut active = pods.iter().filter(|p| p.verdict.is_active());
    let has_all_pods = active.clone().count() >= wanted;
    has_all_pods
        && active.all(|p| match p.verdict {
            PodVerdict::Running => is_attached(run, p.pod),
            PodVerdict::Pending(Some(_)) => true,
            _ => false,
        })
}

/// Whether enough workers are left without these pods', should nothing replace them.
fn can_spare(observed: &Observed, run: &ObservedRun, given_up: &[&ObservedPod]) -> bool {
    let stays = |name: &&str| given_up.iter().all(|p| p.name != *name);
    let left = run.workers(true).filter(stays).count();
    let least = |job: &Job| job.elasticity.min_workers as usize;
    observed.job.spec.as_ref().is_ok_and(|job| left >= least(job))
}

/// Whether the node that was given up last has been replaced, as far as that can be told.
fn last_is_replaced(
    observed: &Observed,
    run: &ObservedRun,
    templates: &[(Option<String>, String)],
    pods: &[JudgedPod<'_>],
) -> bool {
    let Some(last) = &observed.job.status.rollout else {
        return true;
    };
    let waited = observed.now - last.at.0.as_second() >= REPLACEMENT_SECONDS;
    let trains = |p: &JudgedPod<'_>| {
        p.verdict == PodVerdict::Running
            && is_current(templates, p.pod) == Some(true)
            && is_attached(run, p.pod)
    };
    whole(run.workers(true).count()) >= last.workers || (waited && pods.iter().any(trains))
}

fn is_attached(run: &ObservedRun, pod: &ObservedPod) -> bool {
    run.workers(true).any(|name| name == pod.name)
}
