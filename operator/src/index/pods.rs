//! The pods of jobs, by job, and what is expected of them: pods that were created or deleted and that the watch has not shown yet. Until it
//! has, nothing is decided about the job, so that nothing is done twice.

use super::JobKey;
use super::documents::controller_uid;
use super::relist::Relist;
use crate::decide::ObservedPod;
use crate::observe_pod;
use crate::resource::{JobRef, job_ref};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What was expected and has not come within this time does not come: the watch has missed it, or it is somebody else's.
const EXPECTED_WITHIN: Duration = Duration::from_secs(10);

/// A pod, as far as decisions are made from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexedPod {
    /// Its uid.
    pub uid: String,
    /// The uid of its controller; none where it has none.
    pub owner: Option<String>,
    /// Whether it is a coordinator's; else a worker's.
    pub is_coordinator: bool,
    /// What is observed of it.
    pub observed: ObservedPod,
}

/// The pods of a job, by name.
pub type JobPods = BTreeMap<String, Arc<IndexedPod>>;

/// Pods that were created or deleted, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    created: BTreeSet<String>,
    deleted: BTreeSet<String>,
    until: Instant,
}

/// The pods of all jobs.
#[derive(Debug, Default)]
pub struct PodIndex {
    by_job: BTreeMap<JobKey, JobPods>,
    /// How many pods of which jobs are on a node.
    by_node: BTreeMap<String, BTreeMap<JobKey, usize>>,
    expected: BTreeMap<JobKey, Expected>,
    relist: Relist<(JobKey, String)>,
}

impl PodIndex {
    /// The pods with a job's label.
    pub fn of(&self, job: &JobKey) -> impl Iterator<Item = &Arc<IndexedPod>> {
        self.by_job.get(job).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn jobs_on(&self, node: &str) -> Vec<JobRef> {
        let jobs = self.by_node.get(node).into_iter().flat_map(BTreeMap::keys);
        jobs.map(|(namespace, name)| job_ref(namespace, name)).collect()
    }

    /// From now on pods with these names are expected to come, and others to go.
    pub fn expect(
        &mut self,
        now: Instant,
        job: &JobKey,
        created: impl Iterator<Item = String>,
        deleted: impl Iterator<Item = String>,
    ) {
        let expected = self.expected.entry(job.clone()).or_insert_with(|| Expected {
            created: BTreeSet::new(),
            deleted: BTreeSet::new(),
            until: now,
        });
        expected.created.extend(created);
        expected.deleted.extend(deleted);
        expected.until = now + EXPECTED_WITHIN;
    }

    /// A pod was not created or deleted after all.
    pub fn met(&mut self, job: &JobKey, name: &str) {
        if let Some(expected) = self.expected.get_mut(job) {
            expected.created.remove(name);
            expected.deleted.remove(name);
            if expected.created.is_empty() && expected.deleted.is_empty() {
                self.expected.remove(job);
            }
        }
    }

    /// Nothing is expected of a job's pods any more.
    pub fn forget_expected(&mut self, job: &JobKey) {
        self.expected.remove(job);
    }

    /// How long a job waits at most for what is expected of its pods; none where all of it was seen.
    pub fn unmet(&mut self, now: Instant, job: &JobKey) -> Option<Duration> {
        let left = self.expected.get(job)?.until.saturating_duration_since(now);
        if left.is_zero() {
            self.expected.remove(job);
            return None;
        }
        Some(left)
    }

    /// Forgets what is expected of deleted jobs.
    pub fn retain(&mut self, exists: impl Fn(&str, &str) -> bool) {
        self.expected
            .retain(|(namespace, name), _| exists(namespace, name));
    }

    pub(super) fn begin(&mut self) {
        self.relist.begin();
    }

    /// The job, where something has changed that decisions are made from.
    pub(super) fn seen(&mut self, pod: &Pod) -> Option<JobRef> {
        let key = key(pod)?;
        let name = pod.name_any();
        self.relist.seen(&(key.clone(), name.clone()));
        let Some(indexed) = indexed(pod) else {
            return self.remove(&key, &name);
        };
        let going = indexed.observed.deleting;
        let expected = self.expected.get_mut(&key);
        let was_expected =
            expected.is_some_and(|e| e.created.remove(&name) || (going && e.deleted.remove(&name)));
        if was_expected {
            self.met(&key, &name);
        }
        let of_job = self.by_job.entry(key.clone()).or_default();
        let before = of_job.get(&name);
        if before.is_some_and(|before| **before == indexed) {
            return was_expected.then(|| job_ref(&key.0, &key.1));
        }
        let node = indexed.observed.node.clone();
        let before = of_job.insert(name, Arc::new(indexed));
        let node_before = before.and_then(|before| before.observed.node.clone());
        if node != node_before {
            self.moved(&key, node_before, node);
        }
        Some(job_ref(&key.0, &key.1))
    }

    pub(super) fn gone(&mut self, pod: &Pod) -> Option<JobRef> {
        self.remove(&key(pod)?, &pod.name_any())
    }

    /// The jobs whose pods are gone.
    pub(super) fn complete(&mut self) -> Vec<JobRef> {
        let known: Vec<(JobKey, String)> = self
            .by_job
            .iter()
            .flat_map(|(key, pods)| pods.keys().map(|name| (key.clone(), name.clone())))
            .collect();
        let gone = self.relist.complete(known.iter());
        gone.iter()
            .filter_map(|(key, name)| self.remove(key, name))
            .collect()
    }

    fn remove(&mut self, key: &JobKey, name: &str) -> Option<JobRef> {
        self.met(key, name);
        let of_job = self.by_job.get_mut(key)?;
        let removed = of_job.remove(name)?;
        if of_job.is_empty() {
            self.by_job.remove(key);
        }
        self.moved(key, removed.observed.node.clone(), None);
        Some(job_ref(&key.0, &key.1))
    }

    fn moved(&mut self, key: &JobKey, from: Option<String>, to: Option<String>) {
        if let Some(from) = from
            && let Some(jobs) = self.by_node.get_mut(&from)
        {
            if let Some(pods) = jobs.get_mut(key) {
                *pods -= 1;
                if *pods == 0 {
                    jobs.remove(key);
                }
            }
            if jobs.is_empty() {
                self.by_node.remove(&from);
            }
        }
        if let Some(to) = to {
            *self
                .by_node
                .entry(to)
                .or_default()
                .entry(key.clone())
                .or_default() += 1;
        }
    }
}

fn key(pod: &Pod) -> Option<JobKey> {
    Some((pod.namespace()?, observe_pod::job_of(pod)?.to_owned()))
}

fn indexed(pod: &Pod) -> Option<IndexedPod> {
    let coordinator = observe_pod::coordinator_pod(pod);
    let is_coordinator = coordinator.is_some();
    Some(IndexedPod {
        uid: pod.uid()?,
        owner: controller_uid(&pod.metadata).map(str::to_owned),
        is_coordinator,
        observed: coordinator.or_else(|| observe_pod::pod(pod))?,
    })
}
