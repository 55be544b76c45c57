//! Kueue's objects for jobs with a queue: their Workloads, and the nodes of flavours.

use super::Fill;
use super::Index;
use super::documents::{controller_uid, job_of, resource_version};
use super::priorities::PriorityIndex;
use super::recently_gone::RecentlyGone;
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
    gone_workloads: RecentlyGone,
    /// Since Kueue is served, all Workloads, and all flavours, were listed once.
    has_workloads: bool,
    has_flavors: bool,
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
            is_being_listed: self.is_being_listed(),
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

    /// The uid of a job's Workload of this name; none if there is none, or if it is another's.
    #[must_use]
    pub fn uid(&self, job: &ObservedJob, name: &str) -> Option<String> {
        let found = self.workloads.get(&(job.namespace.clone(), name.to_owned()))?;
        (found.owner.as_ref() == Some(&job.uid)).then(|| found.uid.clone())
    }

    /// The answer to a write has shown this version of a Workload. It is ignored if a watch was faster, and has shown a later one or that the Workload is
    /// gone.
    pub fn written(&mut self, workload: &DynamicObject) {
        if !self.gone_workloads.has(&workload.uid().unwrap_or_default()) {
            self.seen(workload);
        }
    }

    /// This version of a Workload was shown. Older versions are ignored. Returns the job, if something has changed.
    fn seen(&mut self, workload: &DynamicObject) -> Option<JobRef> {
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

    /// Another version of Kueue's API is served from now on, or none. The jobs that have to do with that.
    ///
    /// All versions have the same objects. So known objects are kept from one version to the next until the new lists are complete: if a
    /// Workload were forgotten in between, its job's run would end. If Kueue is gone, nothing is known any more. If Kueue is new, nothing is
    /// known before everything is listed.
    pub fn set_served(&mut self, served: Option<KueueVersion>) -> Vec<JobRef> {
        if self.served == served {
            return vec![];
        }
        let before = std::mem::replace(&mut self.served, served);
        let jobs = self.jobs();
        if before.is_none() || served.is_none() {
            self.workloads.clear();
            self.flavors.clear();
            self.priorities = PriorityIndex::default();
            (self.has_workloads, self.has_flavors) = (false, false);
        }
        jobs
    }

    fn is_being_listed(&self) -> bool {
        let has_all = self.has_workloads && self.has_flavors && self.priorities.has_all();
        self.served.is_some() && !has_all
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
        let mut queues = self.0.queues.lock();
        queues.gone_workloads.note(&workload.metadata);
        // The answer to a write may have shown another one of that name already.
        let known = queues.workloads.get(&key);
        if known.is_none_or(|known| Some(&known.uid) != workload.metadata.uid.as_ref()) {
            return vec![];
        }
        let removed = queues.workloads.remove(&key);
        removed.and_then(|workload| workload.job).into_iter().collect()
    }

    fn complete(&self) -> Vec<JobRef> {
        let mut queues = self.0.queues.lock();
        let queues = &mut *queues;
        let gone = queues.listed_workloads.complete(queues.workloads.keys());
        let removed = gone.iter().filter_map(|key| queues.workloads.remove(key));
        let removed = removed.inspect(|workload| queues.gone_workloads.note_uid(&workload.uid));
        let changed = removed.filter_map(|workload| workload.job).collect();
        queues.has_workloads = true;
        changed
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
        queues.has_flavors = true;
        vec![]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::PriorityKind;
    use crate::fixtures;
    use crate::index::Priorities;
    use crate::resource::job_ref;
    use serde_json::{Value, json};
    use varuna_api::manifest::{API_VERSION, KIND};

    fn index() -> Index {
        Index::new(fixtures::settings())
    }

    fn job() -> ObservedJob {
        fixtures::job("j", "u")
    }

    fn object(document: Value) -> DynamicObject {
        serde_json::from_value(document).unwrap()
    }

    /// The job's Workload in this version of Kueue's API, admitted on a flavour.
    fn workload(version: KueueVersion) -> DynamicObject {
        let owner =
            json!([{ "apiVersion": API_VERSION, "kind": KIND, "name": "j", "uid": "u", "controller": true }]);
        let assigned = json!({ "name": "workers", "count": 1, "flavors": { "cpu": "spot" } });
        object(json!({
            "apiVersion": version.api_version(), "kind": "Workload",
            "metadata": { "name": "j-q1-u", "namespace": "n", "uid": "w", "resourceVersion": "7", "ownerReferences": owner },
            "spec": { "queueName": "q" }, "status": { "admission": { "podSetAssignments": [assigned] } },
        }))
    }

    fn flavor() -> DynamicObject {
        let metadata = json!({ "name": "spot" });
        object(
            json!({ "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": metadata }),
        )
    }

    /// All objects, as a watch shows them when it starts.
    fn list(watch: &impl Fill<DynamicObject>, objects: &[DynamicObject]) {
        watch.begin();
        for object in objects {
            watch.seen(object);
        }
        watch.complete();
    }

    fn list_classes(index: &Index, kind: PriorityKind) {
        let classes = Priorities {
            index,
            kind,
            jobs: Vec::<JobRef>::new,
        };
        list(&classes, &[]);
    }

    #[test]
    fn queue_state_stays_while_another_version_is_listed() {
        let index = index();
        let known = || index.queues.lock().of(&job());
        let serve = |version| index.queues.lock().set_served(version);
        serve(Some(KueueVersion::V1Beta1));
        list(&Workloads(&index), &[workload(KueueVersion::V1Beta1)]);
        list(&Flavors(&index), &[flavor()]);
        list_classes(&index, PriorityKind::Workload);
        list_classes(&index, PriorityKind::Pod);
        let before = known();
        assert!(!before.is_being_listed && before.workload.is_some() && before.flavors.len() == 1);
        assert_eq!(serve(Some(KueueVersion::V1Beta2)), [job_ref("n", "j")]);
        let same = ObservedQueue {
            served: Some(KueueVersion::V1Beta2),
            ..before
        };
        assert_eq!(known(), same);
        // The new lists arrive in parts.
        Workloads(&index).begin();
        Flavors(&index).begin();
        assert_eq!(known(), same);
        Workloads(&index).seen(&workload(KueueVersion::V1Beta2));
        Workloads(&index).complete();
        assert_eq!(known(), same);
        // Objects that are not in the new list are gone.
        list(&Workloads(&index), &[]);
        list(&Flavors(&index), &[]);
        let after = known();
        assert!(!after.is_being_listed && after.workload.is_none() && after.flavors.is_empty());
    }

    #[test]
    fn queue_state_is_unknown_until_kueue_is_listed() {
        let index = index();
        let is_being_listed = || index.queues.lock().of(&job()).is_being_listed;
        let serve = |version| index.queues.lock().set_served(version);
        assert!(!is_being_listed(), "there is nothing to list");
        for _ in 0..2 {
            serve(Some(KueueVersion::V1Beta2));
            list(&Workloads(&index), &[workload(KueueVersion::V1Beta2)]);
            assert!(is_being_listed());
            list(&Flavors(&index), &[]);
            list_classes(&index, PriorityKind::Workload);
            assert!(is_being_listed());
            list_classes(&index, PriorityKind::Pod);
            assert!(!is_being_listed());
            // The resource is removed, and its Workloads with it.
            assert_eq!(serve(None), [job_ref("n", "j")]);
            let gone = index.queues.lock().of(&job());
            assert!(!gone.is_being_listed && gone.workload.is_none());
        }
    }
}
