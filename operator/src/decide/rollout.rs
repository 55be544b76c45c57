//! Replaces pods of an earlier template. Pods that hold no state are replaced at once: those that never ran, and those that run but never
//! attach (for example with a broken image that was corrected later). If no plan was ever in force, no pod holds state. The others are
//! replaced node by node, each node by a planned change of a job that trains, so that no step is lost.
//!
//! A job that has all its workers gives up the next node once the one before is replaced. A job that waits for room in the cluster, as jobs
//! on spot capacity often do, does not wait for its missing workers. Its first node is a trial, and the next one follows when as many
//! workers train as before. If another preemption came in between, the next one follows after a while, if pods of the new template train.
//! So a template that fits no node costs such a job the workers of one node, and never more than it can spare.

use super::decision::time;
use super::observed::{Observed, ObservedPod, ObservedRun, whole};
use super::pod_verdicts::{JudgedPod, PodVerdict};
use super::workers::Workers;
use super::workload::has_gone;
use std::collections::BTreeSet;
use varuna_api::crd::RolloutStatus;
use varuna_api::{Job, PodGroup};
use varuna_protocol::coordinator::RunMode;

/// How long to wait for the replacement of a node before another one is given up, if pods of the new template train.
const REPLACEMENT_SECONDS: i64 = 600;

/// The identity of each group's template, by the group's name.
type Templates = [(Option<String>, String)];

/// Pods that are to be replaced now because they were made from an earlier template of their group. `wanted`: all pods that the job is to have.
///
/// # Errors
/// There are such pods, and none of them is replaced now: why, in a sentence.
pub(super) fn replaced_now<'a>(
    observed: &Observed,
    groups: &[PodGroup<'_>],
    pods: &[JudgedPod<'a>],
    workers: &Workers<'_>,
    wanted: usize,
) -> Result<Vec<&'a ObservedPod>, String> {
    let templates = templates(groups);
    let old = old_pods(&templates, pods).map(|p| p.pod);
    let (idle, running): (Vec<&ObservedPod>, Vec<&ObservedPod>) =
        old.partition(|pod| workers.holds_nothing(pod));
    if !idle.is_empty() {
        return Ok(idle);
    }
    if never_had_a_plan(observed) {
        return Ok(running);
    }
    let Some(first) = running.first().copied() else {
        return Ok(vec![]);
    };
    let left = running.len();
    let on_its_node = running.into_iter().filter(|pod| pod.node == first.node);
    let given_up: Vec<&ObservedPod> = on_its_node.collect();
    let check = RolloutCheck {
        observed,
        pods,
        workers,
        templates: &templates,
        wanted,
    };
    match check.blocking_reason(&given_up) {
        None => Ok(given_up),
        Some(why) => Err(format!(
            "{left} pods of an earlier spec.workers are still to be replaced: {why}"
        )),
    }
}

/// The rollout, as the status shows it. `given_up`: whether the pods of another node are replaced now. None once no pod of an earlier template is
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
    old_pods(&templates(&job.pod_groups()), pods).next()?;
    let run = observed.run.as_ref().filter(|_| given_up);
    let now = run.map(|run| RolloutStatus {
        at: time(observed.now),
        workers: whole(run.workers(true).count()),
    });
    now.or_else(|| before.clone())
}

/// Pods that have not ended and were made from an earlier template of their group. Pods of a release that wrote no hash are left alone,
/// because nothing says that they are out of date.
fn old_pods<'p, 'a>(
    templates: &'p Templates,
    pods: &'p [JudgedPod<'a>],
) -> impl Iterator<Item = &'p JudgedPod<'a>> {
    pods.iter()
        .filter(|p| p.verdict.is_active())
        .filter(move |p| is_current(templates, p.pod) == Some(false))
}

/// The identity of each group's template.
fn templates(groups: &[PodGroup<'_>]) -> Vec<(Option<String>, String)> {
    let of_group = |g: &PodGroup<'_>| (g.name.map(str::to_owned), g.workers.pods_hash());
    groups.iter().map(of_group).collect()
}

/// Whether a pod was made from the present template of its group, where that is known.
fn is_current(templates: &Templates, pod: &ObservedPod) -> Option<bool> {
    let (_, now) = templates.iter().find(|(name, _)| *name == pod.group)?;
    Some(pod.made_from.as_ref()? == now)
}

/// Whether no plan was ever in force. This is known once the coordinator has read its record. Then no worker holds state. If the template
/// lets no worker attach, there would never be a plan.
fn never_had_a_plan(observed: &Observed) -> bool {
    let run = observed.run.as_ref();
    let run = run.filter(|run| run.ended.is_none() && !run.is_settling());
    observed.job.status.plan.is_none() && run.is_some_and(|run| run.generation() == 0)
}

/// What is checked before a node's pods are replaced.
struct RolloutCheck<'p, 'a> {
    observed: &'p Observed,
    pods: &'p [JudgedPod<'a>],
    workers: &'p Workers<'p>,
    templates: &'p Templates,
    /// All pods that the job is to have.
    wanted: usize,
}

impl<'p, 'a> RolloutCheck<'p, 'a> {
    /// Why these pods, all of one node, are not replaced now; none if the job trains, would continue without them, and would still have its
    /// state.
    fn blocking_reason(&self, given_up: &[&ObservedPod]) -> Option<String> {
        let run = self.observed.run.as_ref().filter(|r| r.ended.is_none());
        let snapshot = run.and_then(|r| r.snapshot.as_ref());
        let trains = snapshot.is_some_and(|s| s.run.mode == RunMode::Training);
        let Some(run) = run.filter(|_| trains) else {
            return Some("the job does not train, or another plan is being prepared".to_owned());
        };
        if let Some(pod) = self.leaving() {
            return Some(format!("pod {} has not ended yet", pod.name));
        }
        if !self.state_stays() {
            return Some("all workers are on one node, and no checkpoint would hold their state".to_owned());
        }
        let is_complete = self.running().filter(|p| self.trains(p)).count() >= self.wanted;
        let may_be_fewer =
            || self.waits_for_room() && self.can_spare(run, given_up) && self.last_node_is_replaced(run);
        (!is_complete && !may_be_fewer()).then(|| self.missing_pods_text())
    }

    fn running(&self) -> impl Iterator<Item = &'p JudgedPod<'a>> {
        self.pods.iter().filter(|p| p.verdict == PodVerdict::Running)
    }

    fn trains(&self, pod: &JudgedPod<'_>) -> bool {
        pod.verdict == PodVerdict::Running && self.workers.is_attached(pod.pod)
    }

    /// A pod that has not ended yet. On a node that is lost it is not known when it ends: it is not waited for, unless its worker answers.
    fn leaving(&self) -> Option<&ObservedPod> {
        let mut leaving = self.pods.iter().filter(|p| p.verdict == PodVerdict::Terminating);
        let is_there =
            |p: &&JudgedPod<'_>| !has_gone(self.observed, p.pod) || self.workers.is_attached(p.pod);
        leaving.find(is_there).map(|p| p.pod)
    }

    /// If this is the only node, its pods take the state with them. The notice makes a checkpoint, if the job has a location for it.
    fn state_stays(&self) -> bool {
        let nodes: BTreeSet<&String> = self.running().filter_map(|p| p.pod.node.as_ref()).collect();
        let spec = self.observed.job.spec.as_ref();
        nodes.len() > 1 || spec.is_ok_and(|job| job.checkpoint.is_some())
    }

    /// Whether the job only lacks room for its pods.
    fn waits_for_room(&self) -> bool {
        let mut active = self.pods.iter().filter(|p| p.verdict.is_active());
        let has_all_pods = active.clone().count() >= self.wanted;
        has_all_pods
            && active.all(|p| match p.verdict {
                PodVerdict::Running => self.workers.is_attached(p.pod),
                PodVerdict::Pending(Some(_)) => true,
                _ => false,
            })
    }

    /// Whether enough workers are left without these pods', should nothing replace them.
    fn can_spare(&self, run: &ObservedRun, given_up: &[&ObservedPod]) -> bool {
        let goes: BTreeSet<&str> = given_up.iter().map(|pod| pod.name.as_str()).collect();
        let left = run.workers(true).filter(|name| !goes.contains(*name)).count();
        let least = |job: &Job| job.elasticity.min_workers as usize;
        let spec = self.observed.job.spec.as_ref();
        spec.is_ok_and(|job| left >= least(job))
    }

    /// Whether the pods of the last such node have been replaced, as far as that is known.
    fn last_node_is_replaced(&self, run: &ObservedRun) -> bool {
        let Some(last) = &self.observed.job.status.rollout else {
            return true;
        };
        let waited = self.observed.now - last.at.0.as_second() >= REPLACEMENT_SECONDS;
        let trains = |p: &JudgedPod<'_>| self.trains(p) && is_current(self.templates, p.pod) == Some(true);
        whole(run.workers(true).count()) >= last.workers || (waited && self.pods.iter().any(trains))
    }

    /// Why a job that trains cannot spare a node now, in words: the first pod that does not train.
    fn missing_pods_text(&self) -> String {
        let mut active = self.pods.iter().filter(|p| p.verdict.is_active());
        match active.find(|p| !self.trains(p)) {
            Some(p) if p.verdict == PodVerdict::Running => {
                format!("pod {} runs, and no worker of it is attached", p.pod.name)
            }
            Some(p) => format!("pod {} does not run yet", p.pod.name),
            None => "the job waits for more of its pods".to_owned(),
        }
    }
}
