//! What the cluster shows about workers that their coordinator may not know.

use super::decision::PodDeletion;
use super::observed::{Observed, ObservedPod};
use super::pod_verdicts::announced_end_at;
use super::workers::Workers;
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::crd::{DOMAINS_BYTES_MAX, DOMAINS_MAX, NOTICES_BYTES_MAX, NOTICES_MAX, entry_bytes};
use varuna_protocol::coordinator::WorkerView;

/// Names of workers that are reported to their coordinator.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct WorkerNotices {
    /// Names of workers that will end soon.
    pub(super) leaving: Vec<String>,
    /// When workers end that have less time than the job's notice, in seconds since 1970: because their pods get less, or because their nodes
    /// end sooner. Also workers whose coordinator is new, because it does not know since when they have had notice.
    pub(super) ends_at: BTreeMap<String, i64>,
    /// Workers that have ended for certain.
    pub(super) ended: Vec<String>,
}

/// How long a worker has to report itself that it will leave, once its pod is being deleted. The kubelet's signal reaches it within a second, and
/// its coordinator reports it within three.
const SAYS_SO_SECONDS: i64 = 5;

/// The coordinator is informed of a pod that the operator is about to delete before the deletion. A pod that somebody else deletes has
/// already had the kubelet's signal, and its worker reports that. If the worker does not, its process has missed the signal: a process that
/// has just started may not receive it.
///
/// A detached worker has ended for certain when its container has, or its pod is gone; a pod that is only being deleted, or whose node is
/// silent, may still have a process. If the run trains without it, its coordinator need not know.
pub(super) fn worker_notices(
    observed: &Observed,
    deletions: &[PodDeletion],
    workers: &Workers<'_>,
) -> WorkerNotices {
    let Some(run) = observed.run.as_ref().filter(|r| r.ended.is_none()) else {
        return WorkerNotices::default();
    };
    let pods: BTreeMap<&str, &ObservedPod> = observed.pods.iter().map(|p| (p.name.as_str(), p)).collect();
    let deleted: BTreeSet<&str> = deletions.iter().map(|d| d.name.as_str()).collect();
    let is_silent = |name: &str| pods.get(name).and_then(|p| seconds_for_own_notice(observed, p)) == Some(0);
    let leaves = |worker: &&WorkerView| {
        let name = worker.name.as_str();
        worker.up && !worker.draining && (deleted.contains(name) || is_silent(name))
    };
    let has_ended = |worker: &&WorkerView| {
        let is_missed = worker.pipeline.is_some() || !run.is_training();
        let pod = pods.get(worker.name.as_str());
        !worker.up && is_missed && pod.is_none_or(|p| p.ended.is_some())
    };
    let notice = observed
        .job
        .spec
        .as_ref()
        .ok()
        .and_then(|j| j.disruption.notice_seconds);
    let hurried = |p: &ObservedPod| -> Option<(String, i64)> {
        // The operator deletes a pod as soon as it sees a taint that announces the end of its node.
        let since = p.deletion.map_or(observed.now, |deletion| deletion.at);
        let node = p.node.as_ref().filter(|_| !p.has_ended());
        let node = node.and_then(|name| observed.nodes.get(name));
        let node_ends_at = node.and_then(|node| announced_end_at(node, since, observed.now));
        // What was said stays: to take it back would be another write, and a taint without a time would put the end off again and again.
        let orders = observed.orders.as_ref();
        let said = orders.and_then(|o| o.ends_at.get(&p.name)).copied();
        let deadline = p.deletion.map(|deletion| deletion.deadline);
        let ends = [deadline, node_ends_at, said];
        let by = ends.into_iter().flatten().min()?;
        let hurries = by.saturating_sub(since) < i64::from(notice?) && workers.is_attached(p);
        (hurries || said.is_some() || run.is_settling()).then(|| (p.name.clone(), by))
    };
    let names = |wanted: &dyn Fn(&&WorkerView) -> bool| -> Vec<String> {
        let workers = run.snapshot.iter().flat_map(|s| &s.workers);
        let wanted = workers.filter(wanted).take(NOTICES_MAX);
        let names = wanted.map(|worker| worker.name.clone());
        that_fit(names, NOTICES_BYTES_MAX / 4, |name| name.len() + 3).collect()
    };
    WorkerNotices {
        leaving: names(&leaves),
        ends_at: that_fit(
            observed.pods.iter().filter_map(hurried).take(NOTICES_MAX),
            NOTICES_BYTES_MAX / 2,
            |(name, _)| entry_bytes(name, 12),
        )
        .collect(),
        ended: names(&has_ended),
    }
}

/// The first of these for which there is room in the orders: with all of them, the API server might not take the orders any more.
fn that_fit<T>(
    all: impl Iterator<Item = T>,
    room: usize,
    bytes: impl Fn(&T) -> usize,
) -> impl Iterator<Item = T> {
    let mut used = 0;
    all.take_while(move |one| {
        used += bytes(one);
        used <= room
    })
}

/// Seconds that the worker of a pod that somebody deletes still has to report itself that it will leave; none if the pod is not deleted.
fn seconds_for_own_notice(observed: &Observed, pod: &ObservedPod) -> Option<i64> {
    let since = pod.deletion.filter(|_| pod.deleting)?.at;
    Some((since + SAYS_SO_SECONDS - observed.now).max(0))
}

/// Seconds until the coordinator has to be informed of a worker that does not report itself that it will leave.
pub(super) fn seconds_until_notice(observed: &Observed) -> Option<i64> {
    let left = observed
        .pods
        .iter()
        .filter_map(|p| seconds_for_own_notice(observed, p));
    left.filter(|seconds| *seconds > 0).min()
}

/// Where the nodes of the job's workers are, as far as their labels say. A pod is made before it has a node, so the pod cannot carry this; it is
/// known as soon as the pod is bound, before its image is pulled.
pub(super) fn domains(observed: &Observed) -> BTreeMap<String, String> {
    let pods = observed.pods.iter().filter(|p| !p.has_ended());
    let nodes = pods.filter_map(|p| Some((p.node.as_ref()?, observed.nodes.get(p.node.as_ref()?)?)));
    let said: BTreeMap<&String, &String> = nodes
        .map(|(name, node)| (name, &node.domain))
        .filter(|(_, domain)| !domain.is_empty())
        .collect();
    let bounded = that_fit(
        said.into_iter().take(DOMAINS_MAX),
        DOMAINS_BYTES_MAX,
        |(name, domain)| entry_bytes(name, domain.len()),
    );
    bounded
        .map(|(name, domain)| (name.clone(), domain.clone()))
        .collect()
}
