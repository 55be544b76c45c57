//! A pod as the index keeps it. There are very many pods, and nearly all of them run and have nothing to report. So the data of such a pod
//! is small, and data that the pods of a job or on a node have in common is stored once. [`IndexedPod::observed`] makes of it what
//! decisions read.

use super::documents::controller_uid;
use crate::decide::{ContainerEnd, Deletion, ObservedPod, PodPhase, Rejection, Unstarted};
use crate::observe_pod;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A pod, as far as decisions are made from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexedPod {
    /// UID of the pod.
    pub uid: Box<str>,
    /// Whether it is a coordinator's; else a worker's.
    pub is_coordinator: bool,
    pub(super) name: Arc<str>,
    number: i64,
    phase: PodPhase,
    deleting: bool,
    pub(super) node: Option<Arc<str>>,
    common: Arc<CommonFields>,
    /// Fields that few pods have; none where all of them are empty.
    rare: Option<Box<RareFields>>,
}

/// What all pods of a job's group have in common, and its coordinator's with those before it: it is there once for all of them.
#[derive(PartialEq, Eq, Debug)]
struct CommonFields {
    /// The uid of their controller; none where they have none.
    owner: Option<Box<str>>,
    group: Option<Box<str>>,
    made_from: Option<Box<str>>,
    image: Option<Box<str>>,
}

/// What few pods have at a time; the fields are those of [`ObservedPod`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct RareFields {
    unready: bool,
    deletion: Option<Deletion>,
    disrupted: Option<String>,
    unschedulable: Option<String>,
    waiting: Option<(String, String)>,
    init_failed: Option<(String, ContainerEnd)>,
    ended: Option<ContainerEnd>,
    rejected: Option<Rejection>,
    unstarted: Option<Unstarted>,
    avoids: BTreeSet<String>,
    runs_since: Option<i64>,
    workload: Option<String>,
}

fn owned(text: Option<&str>) -> Option<String> {
    text.map(str::to_owned)
}

impl IndexedPod {
    /// The pod's entry; none if the pod is neither a worker's nor a coordinator's.
    pub(super) fn of(pod: &Pod) -> Option<IndexedPod> {
        let coordinator = observe_pod::coordinator_pod(pod);
        let is_coordinator = coordinator.is_some();
        let observed = coordinator.or_else(|| observe_pod::pod(pod))?;
        let owner = controller_uid(&pod.metadata).map(str::to_owned);
        Some(IndexedPod::new(pod.uid()?, owner, is_coordinator, observed))
    }

    fn new(uid: String, owner: Option<String>, is_coordinator: bool, pod: ObservedPod) -> IndexedPod {
        let rare = RareFields {
            unready: pod.unready,
            deletion: pod.deletion,
            disrupted: pod.disrupted,
            unschedulable: pod.unschedulable,
            waiting: pod.waiting,
            init_failed: pod.init_failed,
            ended: pod.ended,
            rejected: pod.rejected,
            unstarted: pod.unstarted,
            avoids: pod.avoids,
            runs_since: pod.runs_since,
            workload: pod.workload,
        };
        let common = CommonFields {
            owner: owner.map(String::into_boxed_str),
            group: pod.group.map(String::into_boxed_str),
            made_from: pod.made_from.map(String::into_boxed_str),
            image: pod.image.map(String::into_boxed_str),
        };
        IndexedPod {
            uid: uid.into(),
            is_coordinator,
            name: pod.name.into(),
            number: pod.number,
            phase: pod.phase,
            deleting: pod.deleting,
            node: pod.node.map(Arc::from),
            common: Arc::new(common),
            rare: (rare != RareFields::default()).then(|| Box::new(rare)),
        }
    }

    /// What is observed of it.
    #[must_use]
    pub fn observed(&self) -> ObservedPod {
        let rare = self.rare.as_deref().cloned().unwrap_or_default();
        ObservedPod {
            name: (*self.name).to_owned(),
            number: self.number,
            group: owned(self.common.group.as_deref()),
            phase: self.phase,
            unready: rare.unready,
            node: owned(self.node.as_deref()),
            deleting: self.deleting,
            deletion: rare.deletion,
            disrupted: rare.disrupted,
            unschedulable: rare.unschedulable,
            waiting: rare.waiting,
            init_failed: rare.init_failed,
            ended: rare.ended,
            rejected: rare.rejected,
            unstarted: rare.unstarted,
            avoids: rare.avoids,
            made_from: owned(self.common.made_from.as_deref()),
            image: owned(self.common.image.as_deref()),
            runs_since: rare.runs_since,
            workload: rare.workload,
        }
    }

    /// Name of the pod.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The node it is bound to.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Whether it matters if its node is there: a pod that has ended, or a worker's that goes, is what it is whatever its node does.
    #[must_use]
    pub fn depends_on_node(&self) -> bool {
        let lives = matches!(self.phase, PodPhase::Pending | PodPhase::Running);
        lives && (self.is_coordinator || !self.deleting)
    }

    /// The nodes that it was told to avoid.
    pub fn avoids(&self) -> impl Iterator<Item = &str> {
        let rare = self.rare.iter();
        rare.flat_map(|rare| rare.avoids.iter().map(String::as_str))
    }

    /// Whether the object with this uid controls it.
    #[must_use]
    pub fn is_of(&self, uid: &str) -> bool {
        self.common.owner.as_deref() == Some(uid)
    }

    /// Whether it was asked to go.
    pub(super) fn is_deleting(&self) -> bool {
        self.deleting
    }

    /// Whether another pod says the same in all that pods have in common.
    pub(super) fn is_like(&self, other: &IndexedPod) -> bool {
        self.common == other.common
    }

    /// Keeps what it has in common with a pod that is like it only once.
    pub(super) fn share_with(&mut self, other: &IndexedPod) {
        self.common = Arc::clone(&other.common);
    }

    /// Whether what both have in common is there once.
    #[cfg(test)]
    pub(super) fn shares_with(&self, other: &IndexedPod) -> bool {
        Arc::ptr_eq(&self.common, &other.common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(code: i32) -> ContainerEnd {
        ContainerEnd {
            started: 1,
            at: 2,
            code,
            reason: "Error".into(),
            message: "m".into(),
        }
    }

    /// A pod with a value in every field.
    fn pod_with_every_field() -> ObservedPod {
        ObservedPod {
            name: "j-w7".into(),
            number: 7,
            group: Some("spot".into()),
            phase: PodPhase::Failed,
            unready: true,
            node: Some("a".into()),
            deleting: true,
            deletion: Some(Deletion { at: 3, deadline: 33 }),
            disrupted: Some("Preempting".into()),
            unschedulable: Some("no room".into()),
            waiting: Some(("ErrImagePull".into(), "no such image".into())),
            init_failed: Some(("mount".into(), end(2))),
            ended: Some(end(1)),
            rejected: Some(Rejection {
                made: 4,
                at: 5,
                reason: "OutOfcpu".into(),
                message: "no cores".into(),
            }),
            unstarted: Some(Unstarted {
                bound: 7,
                may_pull: true,
            }),
            avoids: ["b".to_owned(), "c".to_owned()].into(),
            made_from: Some("0123".into()),
            image: Some("coordinator:1".into()),
            runs_since: Some(6),
            workload: Some("j-q-grow1-u".into()),
        }
    }

    #[test]
    fn what_is_kept_of_a_pod_is_all_that_was_observed() {
        for pod in [pod_with_every_field(), ObservedPod::default()] {
            let kept = IndexedPod::new("u".into(), Some("o".into()), true, pod.clone());
            assert_eq!(kept.observed(), pod);
            assert_eq!(
                (kept.name(), kept.node()),
                (pod.name.as_str(), pod.node.as_deref())
            );
            assert!(kept.is_of("o") && !kept.is_of("u"));
        }
    }

    #[test]
    fn pods_are_alike_whatever_they_do_not_have_in_common() {
        let kept = |pod: ObservedPod| IndexedPod::new("u".into(), Some("o".into()), false, pod);
        let first = kept(pod_with_every_field());
        let other = ObservedPod {
            name: "j-w8".into(),
            number: 8,
            node: None,
            ended: None,
            ..pod_with_every_field()
        };
        let mut second = kept(other.clone());
        assert!(second.is_like(&first) && !second.shares_with(&first));
        second.share_with(&first);
        assert!(second.shares_with(&first));
        assert_eq!(second.observed(), other);
        let made_from_another = ObservedPod {
            made_from: Some("4567".into()),
            ..pod_with_every_field()
        };
        assert!(!kept(made_from_another).is_like(&first));
    }

    /// 64,000 of them take 11 MB with their names and uids. A field that few pods have belongs to [`RareFields`], and one that all pods of
    /// a job share belongs to [`CommonFields`].
    #[test]
    fn a_pod_that_runs_is_small() {
        assert!(size_of::<IndexedPod>() <= 80, "{}", size_of::<IndexedPod>());
    }
}
