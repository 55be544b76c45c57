//! What the cluster shows about workers that their coordinator may not know.

use super::observed::{Observed, ObservedPod};
use varuna_coordinator::WorkerNotice;

/// A pod that is being deleted will go, even if its process has missed the signal: one that has just started may not receive it.
/// A detached worker has ended for certain when its container has, or its pod is gone; a pod that is only being deleted, or whose
/// node is silent, may still have a process.
pub(super) fn worker_notices(observed: &Observed) -> Vec<WorkerNotice> {
    let Some(run) = observed.run.as_ref().filter(|r| r.ended.is_none()) else {
        return vec![];
    };
    let pod = |name: &str| observed.pods.iter().find(|p| p.name == name);
    let leaves = |name: &&str| pod(name).is_some_and(|p| p.deleting);
    let has_ended = |p: &ObservedPod| p.ended.is_some();
    let ended = |name: &&str| pod(name).is_none_or(has_ended);
    let leaving = run
        .workers(true)
        .filter(leaves)
        .map(str::to_owned)
        .map(WorkerNotice::Leaving);
    let ended = run
        .workers(false)
        .filter(ended)
        .map(str::to_owned)
        .map(WorkerNotice::Ended);
    leaving.chain(ended).collect()
}
