//! What the cluster shows of workers that their coordinator may not know.

use super::seen::{Observed, Phase, PodSeen};
use varuna_coordinator::Known;

/// What the cluster knows of attached and detached workers. A pod that is being deleted will go, even if its process has missed the
/// signal: one that has just started may not hear it yet. A detached worker has ended for certain when its container has, or its pod is
/// gone; a pod that is only being deleted, or whose node is silent, may still have a process.
pub(super) fn known(seen: &Observed) -> Vec<Known> {
    let Some(run) = seen.run.as_ref().filter(|r| r.ended.is_none()) else {
        return vec![];
    };
    let pod = |name: &String| seen.pods.iter().find(|p| p.name == *name);
    let leaves = |name: &&String| pod(name).is_some_and(|p| p.deleting);
    let over = |p: &PodSeen| matches!(p.phase, Phase::Succeeded | Phase::Failed) && p.ended.is_some();
    let ended = |name: &&String| pod(name).is_none_or(over);
    let leaving = run.up.iter().filter(leaves).cloned().map(Known::Leaving);
    leaving
        .chain(run.down.iter().filter(ended).cloned().map(Known::Ended))
        .collect()
}
