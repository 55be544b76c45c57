//! How long a node may take to start a pod. Kubernetes never takes a pod from a node that cannot make its volumes or its network: the pod
//! would wait there for ever, whatever other nodes could do.

use super::failure_moments::{moments, seconds};
use super::observed::{Observed, ObservedPod, PodPhase, Rejection};
use varuna_api::FailureKind;
use varuna_api::crd::RecentFailure;

/// How long a node may take for a pod's volumes and its network. A disk that is still attached to a lost node comes after six minutes at the
/// latest.
const SETUP_SECONDS: i64 = 600;
/// The same where the node may be pulling an image: one with the libraries of a GPU has some ten gigabytes. No pod waits for longer.
const PULL_SECONDS: i64 = 3600;

/// When the node of a pod is given up if none of the pod's containers has started by then, in seconds since 1970; none where one has, or
/// where the pod has no node. The time doubles with each pod of the job for which it was too short lately: a large volume may need longer on
/// every node.
fn starts_by(observed: &Observed, pod: &ObservedPod) -> Option<i64> {
    let unstarted = pod.unstarted.as_ref()?;
    if pod.deleting || pod.phase != PodPhase::Pending {
        return None;
    }
    let was_before =
        |f: &&RecentFailure| f.kind == FailureKind::NotStarted.as_str() && seconds(f) <= unstarted.bound;
    let known = &observed.job.status.recent_failures;
    let times = moments(known.iter().filter(was_before));
    let first = if unstarted.may_pull {
        PULL_SECONDS
    } else {
        SETUP_SECONDS
    };
    let limit = (first << times.min(8)).min(PULL_SECONDS);
    Some(unstarted.bound.saturating_add(limit))
}

/// How a pod failed that its node has not started in time, if it has not.
pub(super) fn not_started(observed: &Observed, pod: &ObservedPod) -> Option<Rejection> {
    let until = starts_by(observed, pod).filter(|until| *until <= observed.now)?;
    let bound = pod.unstarted.as_ref()?.bound;
    let waits = pod.waiting.as_ref();
    let why = waits.map_or("its kubelet says nothing of them", |(reason, _)| reason.as_str());
    Some(Rejection {
        made: bound,
        at: until,
        reason: FailureKind::NotStarted.to_string(),
        message: format!(
            "none of its containers has started in {} s ({why}); its Events say more",
            until - bound
        ),
    })
}

/// Seconds until the next pod is given up that its node has not started.
pub(super) fn given_up_in(observed: &Observed) -> Option<i64> {
    let pods = observed.pods.iter().chain(&observed.coordinators);
    let left = pods.filter_map(|pod| Some(starts_by(observed, pod)? - observed.now));
    left.filter(|seconds| *seconds > 0).min()
}
