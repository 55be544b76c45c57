//! What failed lately, and where: how long a replacement waits, which nodes new pods avoid, and how often workers crashed.
//!
//! Failures on one node within ten seconds count as one, since a node that breaks takes all its workers with it. They are kept in the job's
//! status, so they survive the deletion of a pod and a change of leaders. The moments at which workers crashed are kept separately, until
//! the next step: a job on many nodes has that many failures at each moment.

use super::decision::{AvoidedNodes, time};
use super::failure_moments::{MOMENT_SECONDS, moments, seconds};
use super::observed::{Observed, ObservedPod};
use super::pod_verdicts::{JudgedPod, PodFailure, PodVerdict, announced_end, judge_pod, node_signals};
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::crd::{CrashMoment, RecentFailure};
use varuna_api::{FailureKind, Job};

/// A failure is remembered for an hour, and its node avoided for as long.
const REMEMBERED_SECONDS: i64 = 3600;
/// A failure makes later replacements wait for ten minutes: twice the longest delay.
pub(super) const DELAYS_SECONDS: i64 = 600;
/// The longest delay of a replacement; the first is a second, and each is twice the one before.
const DELAY_MAX_SECONDS: i64 = 300;
/// Failures that are remembered; the oldest is forgotten first.
const REMEMBERED_MAX: usize = 64;
/// How many nodes of a moment are remembered. If there are more, no single node is at fault.
const MOMENT_NODES_MAX: usize = 4;
/// Nodes that a pod avoids at most: each is a term of its node affinity.
const AVOIDED_MAX: usize = 64;

/// The failures of the last hour, oldest first: those in the status, and those that the pods show for the first time. For a job on many
/// nodes there may be more than the status can hold ([`forget_oldest`]).
pub(super) fn recent_failures(observed: &Observed, pods: &[JudgedPod<'_>]) -> Vec<RecentFailure> {
    let mut known = observed.job.status.recent_failures.clone();
    // Times of failures are those of the nodes' clocks. One that is far ahead is remembered as long as the pod that shows it is there.
    known.retain(|f| (observed.now - seconds(f)).abs() < REMEMBERED_SECONDS);
    let runs = observed.run.as_ref().is_none_or(|r| r.ended.is_none());
    let suspended = observed.job.spec.as_ref().is_ok_and(|j| j.suspend);
    let mut seen: Vec<_> = pods
        .iter()
        .filter_map(|p| Some((p.verdict.failure()?, p.pod)))
        .chain(unstarted_coordinators(observed))
        .collect();
    seen.sort_by_key(|(failure, pod)| (failure.at, pod.number));
    for (failure, pod) in seen {
        // Workers are released when a run ends.
        let expected = failure.kind == FailureKind::Left && (suspended || !runs);
        let old = observed.now - failure.at >= REMEMBERED_SECONDS;
        if expected || old || moment(&known, pod, failure).is_some() {
            continue;
        }
        let is_init = failure.kind == FailureKind::InitFailed;
        known.push(RecentFailure {
            at: time(failure.at),
            node: pod.node.clone(),
            pod: pod.name.clone(),
            kind: failure.kind.to_string(),
            number: is_init.then_some(pod.number),
            made_from: pod.made_from.clone().filter(|_| is_init),
        });
    }
    known.sort_by_key(seconds);
    known
}

/// The coordinators' pods that their nodes do not start: nothing but the node is known to be at fault, and the next one is to go elsewhere.
fn unstarted_coordinators(observed: &Observed) -> impl Iterator<Item = (PodFailure, &ObservedPod)> {
    observed.coordinators.iter().filter_map(|pod| {
        let failure = judge_pod(observed, pod, &[], None).failure()?;
        (failure.kind == FailureKind::NotStarted).then_some((failure, pod))
    })
}

/// Forgets failures for which the status has no room. This must be done after crashes are counted, because each failure is compared with
/// those before it.
pub(super) fn forget_oldest(failures: &mut Vec<RecentFailure>) {
    failures.drain(..failures.len().saturating_sub(REMEMBERED_MAX));
}

/// The entry on this pod's node to which its failure belongs. A worker that started after another one had failed does not belong to that
/// failure: a replacement that fails at once is another failure.
fn moment<'a>(
    known: &'a [RecentFailure],
    pod: &ObservedPod,
    failure: PodFailure,
) -> Option<&'a RecentFailure> {
    let same = |f: &&RecentFailure| {
        let together = (seconds(f) - failure.at).abs() <= MOMENT_SECONDS && failure.began <= seconds(f);
        f.node == pod.node && together
    };
    known.iter().find(same)
}

/// The moments after a time at which workers or init containers crashed, oldest first: those that the status remembers, and those of these failures,
/// sorted by time. Crashes on different nodes within ten seconds have one cause.
pub(super) fn crash_moments(observed: &Observed, failures: &[RecentFailure], since: i64) -> Vec<CrashMoment> {
    let mut moments = observed.job.status.crash_moments.clone();
    moments.retain(|m| began(m) > since);
    moments.sort_by_key(began);
    let is_crash = |f: &&RecentFailure| {
        let crashes = [FailureKind::Crashed, FailureKind::InitFailed].map(FailureKind::as_str);
        crashes.contains(&f.kind.as_str()) && seconds(f) > since
    };
    let mut last_on: BTreeMap<Option<&str>, i64> = BTreeMap::new();
    for failure in failures.iter().filter(is_crash) {
        let (at, node) = (seconds(failure), failure.node.as_deref());
        let before = last_on.insert(node, at);
        if let Some(known) = moment_of(&moments, at, before) {
            note_node(&mut moments[known], node);
        } else {
            let new = CrashMoment {
                at: failure.at.clone(),
                nodes: node.map(str::to_owned).into_iter().collect(),
            };
            moments.insert(moments.partition_point(|m| began(m) <= at), new);
        }
    }
    // Only the failures of the last hour say whether a node is avoided.
    for moment in &mut moments {
        if observed.now - began(moment) >= REMEMBERED_SECONDS {
            moment.nodes.clear();
        }
    }
    moments
}

/// Seconds since 1970.
fn began(moment: &CrashMoment) -> i64 {
    moment.at.0.as_second()
}

/// The moment that a crash is part of. `before`: when the last one on its node was; a crash that follows another one of a moment on the same node is not
/// part of that. Nodes report their pods in any order, so the crash may also belong to a moment that began a little later.
fn moment_of(moments: &[CrashMoment], at: i64, before: Option<i64>) -> Option<usize> {
    let later = moments.partition_point(|m| began(m) <= at);
    let earlier = later.checked_sub(1).filter(|i| {
        let first = began(&moments[*i]);
        at - first <= MOMENT_SECONDS && before.is_none_or(|before| before < first)
    });
    let begins_soon = |m: &&CrashMoment| began(m) - at <= MOMENT_SECONDS;
    earlier.or_else(|| moments.get(later).filter(begins_soon).map(|_| later))
}

/// Adds the node of a crash to its moment. None is named where they are many, or where one is not known.
fn note_node(moment: &mut CrashMoment, node: Option<&str>) {
    let nodes = &mut moment.nodes;
    if nodes.is_empty() || node.is_some_and(|node| nodes.iter().any(|known| known == node)) {
        return;
    }
    match node.filter(|_| nodes.len() < MOMENT_NODES_MAX) {
        Some(node) => nodes.push(node.to_owned()),
        None => nodes.clear(),
    }
}

/// Crashes after which a job fails.
pub(super) fn crash_limit(job: &Job) -> usize {
    let workers = job.elasticity.max_workers.unwrap_or(1);
    job.lifecycle.failure_policy.crashes_of(workers)
}

/// The moments that count against the job: without those that happened only on nodes that new pods avoid. Only the newest are kept, no more
/// than make the job fail.
pub(super) fn counted(
    mut moments: Vec<CrashMoment>,
    observed: &Observed,
    avoided: &BTreeSet<String>,
) -> Vec<CrashMoment> {
    moments.retain(|m| m.nodes.is_empty() || m.nodes.iter().any(|node| !avoided.contains(node)));
    let most = observed.job.spec.as_ref().map_or(REMEMBERED_MAX, crash_limit);
    moments.drain(..moments.len().saturating_sub(most));
    moments
}

/// How often in a row workers had crashed before a failure, no ten minutes between one crash and the next.
fn crashes_in_a_row(moments: &[CrashMoment], until: i64) -> usize {
    let known = moments.partition_point(|m| began(m) <= until);
    let own = known
        .checked_sub(1)
        .filter(|i| until - began(&moments[*i]) <= MOMENT_SECONDS);
    let mut next = own.map_or(until, |i| began(&moments[i]));
    let is_near = |m: &&CrashMoment| {
        let near = next - began(m) < DELAYS_SECONDS;
        next = began(m);
        near
    };
    let before = &moments[..own.unwrap_or(known)];
    before.iter().rev().take_while(is_near).count()
}

/// When a pod that failed is replaced: the delay doubles with each failure on its node, and with each one of the job without a step between
/// them.
pub(super) fn replaced_at(
    failures: &[RecentFailure],
    crash_moments: &[CrashMoment],
    progress: i64,
    pod: &ObservedPod,
    failure: PodFailure,
) -> i64 {
    let until = moment(failures, pod, failure).map_or(failure.at, seconds);
    let before = failures
        .iter()
        .filter(|f| seconds(f) < until && until - seconds(f) < DELAYS_SECONDS);
    let on_node = before.clone().filter(|f| f.node == pod.node).count();
    let of_another_moment = |f: &&RecentFailure| f.node == pod.node || until - seconds(f) > MOMENT_SECONDS;
    let without_step = before.filter(|f| seconds(f) > progress).filter(of_another_moment);
    // For a job on many nodes the list of failures has only the last moments.
    let of_job = moments(without_step).max(crashes_in_a_row(crash_moments, until));
    let doubled = on_node.max(of_job);
    failure.at + (1_i64 << doubled.min(16)).min(DELAY_MAX_SECONDS)
}

/// When pods that hold nothing are deleted on nodes that announce their end, and created again. If there are more such nodes than a pod
/// can name as nodes to avoid, each new pod may land on the next one. This counts as a failure of that node, and each further one within ten minutes makes
/// the next pod wait twice as long. A rejection by a node whose clock is ahead does not count: pods would wait until that time.
pub(super) fn moved_at(failures: &[RecentFailure], now: i64) -> i64 {
    let is_rejection = |f: &&RecentFailure| f.kind == FailureKind::Rejected.as_str();
    let rejections = failures.iter().filter(is_rejection).map(seconds);
    let times: BTreeSet<i64> = rejections
        .filter(|at| (0..DELAYS_SECONDS).contains(&(now - at)))
        .collect();
    let Some(last) = times.last() else {
        return now;
    };
    last + (1_i64 << (times.len() - 1).min(16)).min(DELAY_MAX_SECONDS)
}

/// Notes that these pods are taken from their nodes, which announce their end. Of many nodes it names only as many as for any other moment:
/// what matters is the time.
pub(super) fn note_moved(failures: &mut Vec<RecentFailure>, pods: &[&ObservedPod], now: i64) {
    let by_node: BTreeMap<Option<&String>, &ObservedPod> =
        pods.iter().map(|pod| (pod.node.as_ref(), *pod)).collect();
    let new = by_node.into_iter().take(MOMENT_NODES_MAX);
    failures.extend(new.map(|(node, pod)| RecentFailure {
        at: time(now),
        node: node.cloned(),
        pod: pod.name.clone(),
        kind: FailureKind::Rejected.to_string(),
        number: None,
        made_from: None,
    }));
    failures.sort_by_key(seconds);
    forget_oldest(failures);
}

/// Whether a failure of an init container is its node's fault and not the template's: a pod from the same template runs on another node,
/// and init containers failed on this node both before and after that pod was created. A failure that affects all nodes, such as a bucket
/// that was away for a while, counts against none of them.
fn is_node_fault(failure: &RecentFailure, failures: &[RecentFailure], pods: &[JudgedPod<'_>]) -> bool {
    let here = |f: &&RecentFailure| f.node == failure.node && f.made_from == failure.made_from;
    let numbers = || failures.iter().filter(here).filter_map(|f| f.number);
    let (Some(made_from), Some(first), Some(last)) = (&failure.made_from, numbers().min(), numbers().max())
    else {
        return false;
    };
    pods.iter().any(|p| {
        let is_alike = p.pod.made_from.as_ref() == Some(made_from) && p.pod.node != failure.node;
        p.verdict == PodVerdict::Running && is_alike && (first..last).contains(&p.pod.number)
    })
}

/// Which nodes new pods avoid.
pub(super) fn avoided_nodes(
    observed: &Observed,
    pods: &[JudgedPod<'_>],
    failures: &[RecentFailure],
) -> AvoidedNodes {
    let Ok(job) = &observed.job.spec else {
        return AvoidedNodes::default();
    };
    let limit = job.lifecycle.failure_policy.avoid_node_after as usize;
    // A worker that ended well does not count against its node, nor does an init container that failed by the template's fault. And a node
    // that is gone takes no pod.
    let is_excused = |f: &RecentFailure| match f.kind.as_str() {
        kind if kind == FailureKind::Left.as_str() => true,
        kind if kind == FailureKind::InitFailed.as_str() => !is_node_fault(f, failures, pods),
        _ => false,
    };
    let mut failures_on: BTreeMap<&String, usize> = BTreeMap::new();
    for failure in failures.iter().filter(|f| !is_excused(f)) {
        if let Some(node) = failure.node.as_ref().filter(|n| observed.nodes.contains_key(*n)) {
            *failures_on.entry(node).or_default() += 1;
        }
    }
    // If nothing runs well on other nodes, it is not the node's fault.
    let runs_elsewhere = |node: &String| {
        let runs = |p: &&JudgedPod<'_>| p.verdict == PodVerdict::Running;
        pods.iter()
            .filter(runs)
            .any(|p| p.pod.node.as_ref() != Some(node))
    };
    let (mut never, rather_not): (Vec<&String>, Vec<&String>) = failures_on
        .keys()
        .copied()
        .partition(|node| failures_on[node] >= limit && runs_elsewhere(node));
    let mut leaving = leaving_nodes(observed, pods, failures);
    leaving.retain(|name| !never.contains(name));
    never.extend(leaving);
    let incomplete = never.len() > AVOIDED_MAX;
    let bounded = |names: Vec<&String>| names.into_iter().take(AVOIDED_MAX).cloned().collect();
    AvoidedNodes {
        never: bounded(never),
        rather_not: bounded(rather_not),
        incomplete,
    }
}

/// The nodes that announce their end. Nodes that the job uses, or on which one of its pods failed lately, come first; the others follow as
/// far as there is room.
fn leaving_nodes<'a>(
    observed: &'a Observed,
    pods: &[JudgedPod<'_>],
    failures: &[RecentFailure],
) -> Vec<&'a String> {
    let of_pods = pods.iter().filter_map(|p| p.pod.node.as_deref());
    let of_failures = failures.iter().filter_map(|f| f.node.as_deref());
    let used: BTreeSet<&str> = of_pods.chain(of_failures).collect();
    let signals = node_signals(observed);
    let nodes = observed.nodes.iter();
    let announce = nodes.filter(|(_, node)| announced_end(node, &signals).is_some());
    let mut leaving: Vec<&String> = announce.map(|(name, _)| name).collect();
    leaving.sort_by_key(|name| !used.contains(name.as_str()));
    leaving
}

/// Whether a pod avoids a node that it may use now. Nodes that are gone do not count, since they take no pod. Nor do nodes that
/// announce their end, since a pod does not name all of them. Neither is worth losing the pod's place in the scheduler's queue. `signals`:
/// what announces the end of a node.
pub(super) fn avoids_too_much(
    observed: &Observed,
    avoid: &AvoidedNodes,
    signals: &[String],
    pod: &ObservedPod,
) -> bool {
    let may_be_used = |name: &String| {
        let node = observed.nodes.get(name);
        node.is_some_and(|node| node.ready && announced_end(node, signals).is_none())
    };
    pod.avoids.difference(&avoid.never).any(may_be_used)
}
