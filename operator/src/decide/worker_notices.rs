//! What the cluster shows about workers that their coordinator may not know.

use super::decision::PodDeletion;
use super::observed::{Observed, ObservedPod};
use std::collections::BTreeMap;
use varuna_api::crd::{DOMAINS_MAX, NOTICES_MAX};

/// Names of workers that their coordinator is told of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct WorkerNotices {
    /// They will end soon.
    pub(super) leaving: Vec<String>,
    /// They have ended for certain.
    pub(super) ended: Vec<String>,
}

/// A pod that is being deleted, or is about to be, will go, even if its process has missed the signal: one that has just started may not
/// receive it. A detached worker has ended for certain when its container has, or its pod is gone; a pod that is only being deleted, or
/// whose node is silent, may still have a process.
pub(super) fn worker_notices(observed: &Observed, deletions: &[PodDeletion]) -> WorkerNotices {
    let Some(run) = observed.run.as_ref().filter(|r| r.ended.is_none()) else {
        return WorkerNotices::default();
    };
    let pod = |name: &str| observed.pods.iter().find(|p| p.name == name);
    let is_deleted = |name: &str| deletions.iter().any(|d| d.name == name);
    let leaves = |name: &&str| pod(name).is_some_and(|p| p.deleting) || is_deleted(name);
    let has_ended = |p: &ObservedPod| p.ended.is_some();
    let ended = |name: &&str| pod(name).is_none_or(has_ended);
    let names = |attached: bool, wanted: &dyn Fn(&&str) -> bool| -> Vec<String> {
        let workers = run.workers(attached).filter(wanted);
        workers.take(NOTICES_MAX).map(str::to_owned).collect()
    };
    WorkerNotices {
        leaving: names(true, &leaves),
        ended: names(false, &ended),
    }
}

/// Where the nodes of the job's workers are, as far as their labels say. A pod is made before it has a node, so it cannot bring this along; it is
/// known as soon as the pod is bound, before its image is pulled.
pub(super) fn domains(observed: &Observed) -> BTreeMap<String, String> {
    let pods = observed.pods.iter().filter(|p| !p.has_ended());
    let nodes = pods.filter_map(|p| Some((p.node.as_ref()?, observed.nodes.get(p.node.as_ref()?)?)));
    let said: BTreeMap<&String, &String> = nodes
        .map(|(name, node)| (name, &node.domain))
        .filter(|(_, domain)| !domain.is_empty())
        .collect();
    let bounded = said.into_iter().take(DOMAINS_MAX);
    bounded
        .map(|(name, domain)| (name.clone(), domain.clone()))
        .collect()
}
