//! The pods of jobs, by job, and what is expected of them: pods that were created or deleted and that the watch has not shown yet. Until it
//! has, nothing is decided about the job, so that nothing is done twice. If it does not for a while, the job's pods are read.

use super::JobKey;
use super::indexed_pod::IndexedPod;
use super::relist::Relist;
use crate::observe_pod;
use crate::resource::{JobRef, job_ref};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A watch that has not shown what was done within this time may be cut off. Then the pods are read, because they exist all the same.
const EXPECTED_WITHIN: Duration = Duration::from_secs(10);

/// The pods of a job, by name.
pub type JobPods = BTreeMap<Arc<str>, Arc<IndexedPod>>;

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
    by_job: BTreeMap<Arc<JobKey>, JobPods>,
    /// How many pods of which jobs are on a node: few jobs each.
    by_node: BTreeMap<Arc<str>, Vec<(Arc<JobKey>, usize)>>,
    expected: BTreeMap<JobKey, Expected>,
    relist: Relist<(Arc<JobKey>, Arc<str>)>,
    /// Jobs whose pods are being read apart from the watch, with the names of the pods of which the watch has shown something since then.
    being_read: BTreeMap<JobKey, BTreeSet<String>>,
}

impl PodIndex {
    /// The pods with a job's label.
    pub fn of(&self, job: &JobKey) -> impl Iterator<Item = &Arc<IndexedPod>> {
        self.by_job.get(job).into_iter().flat_map(BTreeMap::values)
    }

    pub(super) fn jobs_on(&self, node: &str) -> Vec<JobRef> {
        let jobs = self.by_node.get(node).into_iter().flatten();
        jobs.map(|(job, _)| job_ref(&job.0, &job.1)).collect()
    }

    /// From now on pods with these names are expected to come, and others to go: to be said before each call that does so.
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

    /// The calls have ended that were to do what is expected, which may have taken long: from now on the watch has time to show it.
    pub fn calls_ended(&mut self, now: Instant, job: &JobKey) {
        if let Some(expected) = self.expected.get_mut(job) {
            expected.until = now + EXPECTED_WITHIN;
        }
    }

    /// How long a job waits at most for what is expected of its pods: not at all where it has waited long enough, and they are to be read. None where all
    /// of it was seen.
    #[must_use]
    pub fn unmet(&self, now: Instant, job: &JobKey) -> Option<Duration> {
        let expected = self.expected.get(job)?;
        Some(expected.until.saturating_duration_since(now))
    }

    /// A job's pods are being read from now on, apart from the watch: to be said before the call.
    pub fn begin_read(&mut self, job: &JobKey) {
        self.being_read.insert(job.clone(), BTreeSet::new());
    }

    /// A job's pods could not be read.
    pub fn read_failed(&mut self, job: &JobKey) {
        self.being_read.remove(job);
    }

    /// All pods of a job that there are, as they were read apart from the watch: nothing more is expected of them. If the watch has shown something
    /// of a pod since the call was begun, that stays: the answer may be older, and whatever is newer the watch shows as well.
    pub fn read(&mut self, job: &JobKey, pods: &[Pod]) {
        let shown = self.being_read.remove(job).unwrap_or_default();
        let mut there = BTreeSet::new();
        for pod in pods {
            let name = pod.name_any();
            if let Some(key) = key(pod).filter(|_| !shown.contains(&name)) {
                let key = self.shared(key);
                self.put(&key, pod);
            }
            there.insert(name);
        }
        let known = self.by_job.get(job).into_iter().flat_map(BTreeMap::keys);
        let is_gone = |name: &&Arc<str>| !there.contains(&***name) && !shown.contains(&***name);
        let gone: Vec<Arc<str>> = known.filter(is_gone).cloned().collect();
        for name in gone {
            self.remove(job, &name);
        }
        if let Some(expected) = self.expected.get_mut(job) {
            expected.created.retain(|name| shown.contains(name));
            expected.deleted.retain(|name| shown.contains(name));
            if expected.created.is_empty() && expected.deleted.is_empty() {
                self.expected.remove(job);
            }
        }
    }

    /// Forgets what is expected of deleted jobs, and what was shown while their pods were being read: a reconciliation that is dropped in the
    /// middle of a read does not end it.
    pub fn retain(&mut self, exists: impl Fn(&str, &str) -> bool) {
        self.expected
            .retain(|(namespace, name), _| exists(namespace, name));
        self.being_read
            .retain(|(namespace, name), _| exists(namespace, name));
    }

    pub(super) fn begin(&mut self) {
        self.relist.begin();
    }

    /// The watch has shown a pod. The job, where something has changed that decisions are made from.
    pub(super) fn seen(&mut self, pod: &Pod) -> Option<JobRef> {
        let key = self.shared(key(pod)?);
        let name: Arc<str> = pod.name_any().into();
        self.note_shown(&key, &name);
        self.relist.seen(&(Arc::clone(&key), name));
        self.put(&key, pod)
    }

    /// The watch has shown something of a pod.
    fn note_shown(&mut self, job: &JobKey, pod: &str) {
        if let Some(shown) = self.being_read.get_mut(job) {
            shown.insert(pod.to_owned());
        }
    }

    /// The job, where something has changed that decisions are made from.
    fn put(&mut self, key: &Arc<JobKey>, pod: &Pod) -> Option<JobRef> {
        let Some(mut indexed) = IndexedPod::of(pod) else {
            return self.remove(key, &pod.name_any());
        };
        let name = Arc::clone(&indexed.name);
        let going = indexed.is_deleting();
        let expected = self.expected.get_mut(&**key);
        let was_expected =
            expected.is_some_and(|e| e.created.remove(&*name) || (going && e.deleted.remove(&*name)));
        if was_expected {
            self.met(key, &name);
        }
        if let Some((known, _)) = indexed.node().and_then(|node| self.by_node.get_key_value(node)) {
            indexed.node = Some(Arc::clone(known));
        }
        let of_job = self.by_job.entry(Arc::clone(key)).or_default();
        // Workers are the last by name, and the newest are like each other.
        let alike = of_job.values().rev().find(|other| other.is_like(&indexed));
        if let Some(alike) = alike.cloned() {
            indexed.share_with(&alike);
        }
        let before = of_job.get(&name);
        if before.is_some_and(|before| **before == indexed) {
            return was_expected.then(|| job_ref(&key.0, &key.1));
        }
        let node = indexed.node.clone();
        let before = of_job.insert(name, Arc::new(indexed));
        let node_before = before.and_then(|before| before.node.clone());
        if node != node_before {
            self.moved(key, node_before.as_ref(), node);
        }
        Some(job_ref(&key.0, &key.1))
    }

    pub(super) fn gone(&mut self, pod: &Pod) -> Option<JobRef> {
        let (key, name) = (key(pod)?, pod.name_any());
        self.note_shown(&key, &name);
        self.remove(&key, &name)
    }

    /// The jobs whose pods are gone.
    pub(super) fn complete(&mut self) -> Vec<JobRef> {
        let known: Vec<(Arc<JobKey>, Arc<str>)> = self
            .by_job
            .iter()
            .flat_map(|(key, pods)| pods.keys().map(|name| (Arc::clone(key), Arc::clone(name))))
            .collect();
        let gone = self.relist.complete(known.iter());
        let remove = |(key, name): &(Arc<JobKey>, Arc<str>)| {
            self.note_shown(key, name);
            self.remove(key, name)
        };
        gone.iter().filter_map(remove).collect()
    }

    fn remove(&mut self, key: &JobKey, name: &str) -> Option<JobRef> {
        self.met(key, name);
        let of_job = self.by_job.get_mut(key)?;
        let removed = of_job.remove(name)?;
        if of_job.is_empty() {
            self.by_job.remove(key);
        }
        self.moved(&Arc::new(key.clone()), removed.node.as_ref(), None);
        Some(job_ref(&key.0, &key.1))
    }

    /// The key as it is in the index, if it is.
    fn shared(&self, key: JobKey) -> Arc<JobKey> {
        let known = self.by_job.get_key_value(&key);
        known.map_or_else(|| Arc::new(key), |(known, _)| Arc::clone(known))
    }

    fn moved(&mut self, key: &Arc<JobKey>, from: Option<&Arc<str>>, to: Option<Arc<str>>) {
        if let Some(from) = from
            && let Some(jobs) = self.by_node.get_mut(from)
        {
            if let Some(at) = jobs.iter().position(|(job, _)| job == key) {
                jobs[at].1 -= 1;
                if jobs[at].1 == 0 {
                    jobs.swap_remove(at);
                }
            }
            if jobs.is_empty() {
                self.by_node.remove(from);
            }
        }
        if let Some(to) = to {
            let jobs = self.by_node.entry(to).or_default();
            match jobs.iter_mut().find(|(job, _)| job == key) {
                Some((_, pods)) => *pods += 1,
                None => jobs.push((Arc::clone(key), 1)),
            }
        }
    }
}

fn key(pod: &Pod) -> Option<JobKey> {
    Some((pod.namespace()?, observe_pod::job_of(pod)?.to_owned()))
}
