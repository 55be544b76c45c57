//! Which pods to create and to delete.

use super::decision::{Decision, PodDeletion};
use super::failed_parts::{JobPart, postponed};
use super::failures::{DELAYS_SECONDS, avoids_too_much, moved_at, note_moved, replaced_at};
use super::objects::NUMBER_LABEL;
use super::observed::{Observed, ObservedPod, ObservedRun, PodPhase};
use super::pod_template;
use super::pod_verdicts::{JudgedPod, PodVerdict, node_signals};
use super::queue::{PodLimit, place_worker};
use super::rollout::replaced_now;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::{Job, PodGroup, Reason};

/// Pods that have ended are kept for their logs up to this number.
const KEPT_MAX: usize = 10;

/// Number of the newest pod that there ever was.
pub(super) fn newest_pod(observed: &Observed) -> i64 {
    let newest = observed.pods.iter().map(|p| p.number).max().unwrap_or(0);
    newest.max(observed.job.status.newest_pod)
}

/// Number of the newest pod once these are created. Some that were planned may have been left out: their numbers are used later.
pub(super) fn newest_created(observed: &Observed, create: &[Value]) -> i64 {
    let numbers = create.iter().filter_map(|pod| {
        let number = pod["metadata"]["labels"][NUMBER_LABEL].as_str()?;
        number.parse::<i64>().ok()
    });
    numbers.fold(newest_pod(observed), i64::max)
}

/// Plans the pods of a job that runs, within these limits: creates those that are missing and whose place is known, deletes those that are
/// too many or cannot continue. Groups do not lend each other places: a borrowed place would not be returned when the first group can get its pod.
/// The same holds for the admissions of a queue.
pub(super) fn plan_pods(
    observed: &Observed,
    job: &Job,
    limits: &[PodLimit<'_>],
    decision: &mut Decision<'_>,
) {
    let (mut held_back, replace_in) = clear_failed(observed, decision);
    let (leaving, moved_in) = clear_leaving(observed, decision);
    held_back.extend(leaving);
    clear_unusable(observed, limits, decision);
    clear_surplus(observed, limits, decision);
    decision.replace_in = replace_in.into_iter().chain(moved_in).min();
    if postponed(
        &observed.failures,
        &[
            JobPart::Objects,
            JobPart::Pods,
            JobPart::Coordinator,
            JobPart::Names,
        ],
    ) {
        return;
    }
    let deleted: BTreeSet<&str> = decision.delete.iter().map(|d| d.name.as_str()).collect();
    let stays = |p: &&JudgedPod<'_>| p.verdict.is_active() && !deleted.contains(p.pod.name.as_str());
    let staying: Vec<&ObservedPod> = decision.pods.iter().filter(stays).map(|p| p.pod).collect();
    for limit in limits {
        let count = |of: &[&ObservedPod]| of.iter().filter(|pod| limit.counts(pod)).count();
        let there = count(&staying) + count(&held_back);
        for _ in there..limit.group.pods as usize {
            decision.newest_pod += 1;
            let number = decision.newest_pod;
            let of = (job, &limit.group);
            let mut pod = pod_template::pod(&observed.job, of, number, &decision.avoid, &observed.settings);
            if place_worker(observed, limit, &mut pod) {
                decision.create.push(pod);
            }
        }
    }
}

fn deletion(name: &str, event: Option<Reason>, why: impl Into<String>) -> PodDeletion {
    PodDeletion {
        name: name.to_owned(),
        why: why.into(),
        event,
    }
}

/// Deletes failed pods that have been replaced, except a few that are kept. Returns those that are not replaced yet, and in how many
/// seconds the next one is.
fn clear_failed<'a>(observed: &Observed, decision: &mut Decision<'a>) -> (Vec<&'a ObservedPod>, Option<i64>) {
    let progress = decision.progress.at.unwrap_or(0);
    let failed = decision
        .pods
        .iter()
        .filter_map(|p| Some((p.pod, p.verdict.failure()?)));
    let mut failed: Vec<_> = failed
        .map(|(pod, f)| {
            (
                f.at,
                pod,
                replaced_at(
                    &decision.recent_failures,
                    &decision.crash_moments,
                    progress,
                    pod,
                    f,
                ),
            )
        })
        .collect();
    failed.sort_by_key(|(at, pod, _)| (*at, pod.number));
    // Times of failures are those of the nodes' clocks. One that is far ahead must hold nothing up: no replacement waits for so long.
    let (waiting, replaced): (Vec<_>, Vec<_>) = failed
        .into_iter()
        .partition(|(_, _, replaced)| (1..=DELAYS_SECONDS).contains(&(*replaced - observed.now)));
    let too_many = (waiting.len() + replaced.len()).saturating_sub(KEPT_MAX);
    for (i, (at, pod, _)) in replaced.into_iter().enumerate() {
        if !matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed) {
            // A sidecar would hold the node's resources for ever.
            let why = if pod.ended.is_some() {
                "its worker has ended"
            } else {
                "its node has not started it"
            };
            decision.delete.push(deletion(&pod.name, None, why));
        } else if i < too_many || observed.now - at >= DELAYS_SECONDS {
            decision
                .delete
                .push(deletion(&pod.name, None, "it ended a while ago"));
        }
    }
    let replace_in = waiting
        .iter()
        .map(|(_, _, replaced)| replaced - observed.now)
        .min();
    let waiting = waiting.into_iter().map(|(_, pod, _)| pod).collect();
    (waiting, replace_in)
}

/// Deletes pods on nodes that announce their end. If new pods cannot name all such nodes, the replacement of a pod that holds nothing may
/// land on another one. Such pods stay for a while, and count. Returns those that wait, and in how many seconds they are deleted.
fn clear_leaving<'a>(
    observed: &Observed,
    decision: &mut Decision<'a>,
) -> (Vec<&'a ObservedPod>, Option<i64>) {
    let leaving = decision.pods.iter().filter_map(|p| match &p.verdict {
        PodVerdict::NodeLeaving(why) => Some((p.pod, why.clone())),
        _ => None,
    });
    let may_go_in_circles = decision.avoid.incomplete;
    let workers = &decision.workers;
    let (mut waiting, mut going): (Vec<_>, Vec<_>) =
        leaving.partition(|(pod, _)| may_go_in_circles && workers.holds_nothing(pod));
    let at = moved_at(&decision.recent_failures, observed.now);
    if at <= observed.now && !waiting.is_empty() {
        let moved: Vec<&ObservedPod> = waiting.iter().map(|(pod, _)| *pod).collect();
        note_moved(&mut decision.recent_failures, &moved, observed.now);
        going.append(&mut waiting);
    }
    let deletions = going
        .into_iter()
        .map(|(pod, why)| deletion(&pod.name, Some(Reason::WorkerNoticed), why));
    decision.delete.extend(deletions);
    let moved_in = (!waiting.is_empty()).then_some(at - observed.now);
    (waiting.into_iter().map(|(pod, _)| pod).collect(), moved_in)
}

/// Deletes pods that are lost, were taken away, can never start, or were made from an earlier template.
fn clear_unusable(observed: &Observed, limits: &[PodLimit<'_>], decision: &mut Decision<'_>) {
    let signals = node_signals(observed);
    let mut delete = Vec::new();
    for judged in &decision.pods {
        let (event, why) = match &judged.verdict {
            PodVerdict::NodeLost(why) => (Some(Reason::WorkerLost), why.clone()),
            PodVerdict::Preempted(why) if !judged.pod.deleting => {
                (Some(Reason::WorkerPreempted), format!("it was preempted ({why})"))
            }
            verdict if verdict.is_active() && judged.pod.number <= observed.old_credentials => (
                Some(Reason::WorkerLost),
                "the job's Secret was deleted, and the next one has other credentials".to_owned(),
            ),
            PodVerdict::Pending(Some(_))
                if avoids_too_much(observed, &decision.avoid, &signals, judged.pod) =>
            {
                (None, "it avoids nodes that may be used again".to_owned())
            }
            _ => continue,
        };
        delete.push(deletion(&judged.pod.name, event, why));
    }
    let groups: Vec<PodGroup<'_>> = limits.iter().map(|limit| limit.group).collect();
    let wanted = groups.iter().map(|group| group.pods as usize).sum();
    let rollout = replaced_now(observed, &groups, &decision.pods, &decision.workers, wanted);
    let goes: BTreeSet<&str> = delete.iter().map(|d| d.name.as_str()).collect();
    let old = rollout.as_deref().unwrap_or_default().iter();
    let stays = old.filter(|pod| !goes.contains(pod.name.as_str()));
    let why = "spec.workers has changed since it was made";
    let replaced: Vec<PodDeletion> = stays
        .map(|pod| deletion(&pod.name, Some(Reason::RollingUpdate), why))
        .collect();
    delete.extend(replaced);
    decision.rollout_waits = rollout.err();
    decision.delete.extend(delete);
}

/// Deletes pods beyond the number that there may be: those that have not started first, then those whose workers have no place in the plan,
/// then the newest.
fn clear_surplus(observed: &Observed, limits: &[PodLimit<'_>], decision: &mut Decision<'_>) {
    let placed = observed.run.as_ref().map(ObservedRun::placed).unwrap_or_default();

    let deleted: BTreeSet<&str> = decision.delete.iter().map(|d| d.name.as_str()).collect();
    let active = decision.pods.iter().filter(|p| p.verdict.is_active());
    let mut active: Vec<_> = active
        .filter(|p| !deleted.contains(p.pod.name.as_str()))
        .collect();
    active.sort_by_key(|p| {
        let holds_state = placed.contains(p.pod.name.as_str());
        (p.verdict != PodVerdict::Running, !holds_state, p.pod.number)
    });
    let mut delete = Vec::new();
    let mut there: BTreeMap<Option<usize>, u32> = BTreeMap::new();
    for pod in active.into_iter().map(|judged| judged.pod) {
        let limit = limits.iter().position(|limit| limit.counts(pod));
        let wanted = limit.map_or(0, |limit| limits[limit].group.pods);
        let there = there.entry(limit).or_default();
        *there += 1;
        if *there > wanted {
            let why = match (&pod.workload, &pod.group) {
                (Some(workload), _) => format!("Workload {workload} may have {wanted} pods"),
                (None, Some(group)) => format!("group {group} may have {wanted} pods"),
                (None, None) => format!("the job may have {wanted} pods"),
            };
            delete.push(deletion(&pod.name, None, why));
        }
    }
    // What holds least goes first.
    delete.reverse();
    decision.delete.extend(delete);
}

/// Deletes all pods that have not ended; those that have ended stay for their logs. A pod in which only the worker has ended is deleted
/// too: its sidecar would hold the node's resources for ever, and the quota with them.
pub(super) fn stop_pods(decision: &mut Decision<'_>) {
    let lives = |p: &&JudgedPod<'_>| !p.pod.has_ended() && !p.pod.deleting;
    let live = decision.pods.iter().filter(lives);
    decision.delete = live
        .map(|p| deletion(&p.pod.name, None, "the job does not run"))
        .collect();
}
