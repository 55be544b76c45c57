//! What Kueue says of the jobs that have a queue: their Workloads, and where flavours are.

use super::Fill;
use super::Index;
use super::documents::{controller_uid, job_of, resource_version};
use super::priorities::PriorityIndex;
use super::relist::Relist;
use crate::decide::objects::workload_prefix;
use crate::decide::{KueueVersion, ObservedJob, ObservedQueue, ObservedWorkload, Placement, PriorityClasses};
use crate::observe_queue;
use crate::resource::JobRef;
use kube::ResourceExt;
use kube::api::DynamicObject;
use std::collections::BTreeMap;

/// Namespace and name of a Workload.
type WorkloadKey = (String, String);

/// A Workload of a job.
#[derive(Debug)]
struct IndexedWorkload {
    /// The uid of the job that controls it.
    owner: Option<String>,
    uid: String,
    job: Option<JobRef>,
    version: Option<u64>,
    observed: ObservedWorkload,
}

/// The Workloads of all jobs, the flavours, and the classes of priority.
#[derive(Debug, Default)]
pub struct QueueIndex {
    served: Option<KueueVersion>,
    workloads: BTreeMap<WorkloadKey, IndexedWorkload>,
    flavors: BTreeMap<String, Placement>,
    pub(super) priorities: PriorityIndex,
    listed_workloads: Relist<WorkloadKey>,
    listed_flavors: Relist<String>,
}

impl QueueIndex {
    /// What is known of a job's queue.
    #[must_use]
    pub fn of(&self, job: &ObservedJob) -> ObservedQueue {
        let prefix = workload_prefix(&job.name);
        let first = (job.namespace.clone(), prefix.clone());
        let of_name = self.workloads.range(first..);
        let of_name = of_name
            .take_while(|((namespace, name), _)| *namespace == job.namespace && name.starts_with(&prefix));
        let mut own: Vec<_> = of_name
            .map(|(_, workload)| workload)
            .filter(|workload| workload.owner.as_ref() == Some(&job.uid))
            .collect();
        own.sort_by_key(|workload| workload.observed.number);
        let (increments, mut own): (Vec<_>, Vec<_>) = own.into_iter().partition(|w| w.observed.is_increment);
        let newest = own.pop();
        let used = |name: &&String| {
            let workloads = newest.iter().chain(&increments);
            let sets = workloads.filter_map(|w| w.observed.assignments.as_ref());
            sets.flat_map(BTreeMap::values)
                .any(|set| set.flavors.contains(*name))
        };
        ObservedQueue {
            served: self.served,
            earlier: own
                .iter()
                .filter(|w| !w.observed.deleting)
                .map(|w| w.observed.name.clone())
                .collect(),
            flavors: self
                .flavors
                .iter()
                .filter(|(name, _)| used(name))
                .map(|(name, placement)| (name.clone(), placement.clone()))
                .collect(),
            workload: newest.map(|w| w.observed.clone()),
            increments: increments.iter().map(|w| w.observed.clone()).collect(),
            classes: if job.spec.as_ref().is_ok_and(|spec| spec.queue.is_some()) {
                self.priorities.classes.clone()
            } else {
                PriorityClasses::default()
            },
        }
    }

    /// The uid of a job's Workload.
    #[must_use]
    pub fn uid(&self, namespace: &str, name: &str) -> Option<String> {
        let found = self.workloads.get(&(namespace.to_owned(), name.to_owned()));
        found.map(|workload| workload.uid.clone())
    }

    /// A Workload is as it is here, as a watch has shown or a write has answered: what is older is left out. The job, where something has changed.
    pub fn seen(&mut self, workload: &DynamicObject) -> Option<JobRef> {
        let key = (workload.namespace()?, workload.name_any());
        self.listed_workloads.seen(&key);
        let (uid, version) = (
            workload.uid().unwrap_or_default(),
            resource_version(&workload.metadata),
        );
        let known = self.workloads.get(&key).filter(|known| known.uid == uid);
        if known.is_some_and(|known| known.version >= version) {
            return None;
        }
        let observed = observe_queue::workload(workload)?;
        let job = job_of(&workload.metadata);
        let owner = controller_uid(&workload.metadata).map(str::to_owned);
        self.workloads.insert(
            key,
            IndexedWorkload {
                owner,
                uid,
                job: job.clone(),
                version,
                observed,
            },
        );
        job
    }

    /// Another version of Kueue's API is served from now on, or none. The jobs that have to do with that: nothing else is known of a queue any more.
    pub fn set_served(&mut self, served: Option<KueueVersion>) -> Vec<JobRef> {
        if self.served == served {
            return vec![];
        }
        self.served = served;
        self.flavors.clear();
        self.priorities = PriorityIndex::default();
        let known = std::mem::take(&mut self.workloads);
        known.into_values().filter_map(|workload| workload.job).collect()
    }

    fn jobs(&self) -> Vec<JobRef> {
        self.workloads
            .values()
            .filter_map(|workload| workload.job.clone())
            .collect()
    }
}

/// The part of an index that a watch of Workloads fills.
#[derive(Clone, Copy, Debug)]
pub struct Workloads<'a>(pub &'a Index);

impl Fill<DynamicObject> for Workloads<'_> {
    fn begin(&self) {
        self.0.queues.lock().listed_workloads.begin();
    }

    fn seen(&self, workload: &DynamicObject) -> Vec<JobRef> {
        self.0.queues.lock().seen(workload).into_iter().collect()
    }

    fn gone(&self, workload: &DynamicObject) -> Vec<JobRef> {
        let key = (workload.namespace().unwrap_or_default(), workload.name_any());
        let removed = self.0.queues.lock().workloads.remove(&key);
        removed.and_then(|workload| workload.job).into_iter().collect()
    }

    fn complete(&self) -> Vec<JobRef> {
        let mut queues = self.0.queues.lock();
        let queues = &mut *queues;
        let gone = queues.listed_workloads.complete(queues.workloads.keys());
        let removed = gone.iter().filter_map(|key| queues.workloads.remove(key));
        removed.filter_map(|workload| workload.job).collect()
    }
}

/// The part of an index that a watch of ResourceFlavors fills.
#[derive(Clone, Copy, Debug)]
pub struct Flavors<'a>(pub &'a Index);

impl Fill<DynamicObject> for Flavors<'_> {
    fn begin(&self) {
        self.0.queues.lock().listed_flavors.begin();
    }

    fn seen(&self, flavor: &DynamicObject) -> Vec<JobRef> {
        let mut queues = self.0.queues.lock();
        let (name, placement) = (flavor.name_any(), observe_queue::flavor(flavor));
        queues.listed_flavors.seen(&name);
        if queues.flavors.get(&name) == Some(&placement) {
            return vec![];
        }
        queues.flavors.insert(name, placement);
        // Pods may have waited for it. Flavours are few, and seldom change.
        queues.jobs()
    }

    fn gone(&self, flavor: &DynamicObject) -> Vec<JobRef> {
        self.0.queues.lock().flavors.remove(&flavor.name_any());
        vec![]
    }

    fn complete(&self) -> Vec<JobRef> {
        let mut queues = self.0.queues.lock();
        let queues = &mut *queues;
        for name in queues.listed_flavors.complete(queues.flavors.keys()) {
            queues.flavors.remove(&name);
        }
        vec![]
    }
}
