//! The classes of priority that Workloads and pods can have.

use super::Fill;
use super::Index;
use super::relist::Relist;
use crate::decide::{PriorityClasses, PriorityKind};
use crate::observe_queue;
use crate::resource::JobRef;
use kube::ResourceExt;
use kube::api::DynamicObject;
use std::collections::BTreeSet;

/// All classes, and what is being listed of each kind.
#[derive(Debug, Default)]
pub struct PriorityIndex {
    pub(super) classes: PriorityClasses,
    listed_of_workloads: Relist<String>,
    listed_of_pods: Relist<String>,
    /// The kinds of which all classes were listed once.
    complete: BTreeSet<PriorityKind>,
}

impl PriorityIndex {
    fn listed(&mut self, kind: PriorityKind) -> &mut Relist<String> {
        match kind {
            PriorityKind::Workload => &mut self.listed_of_workloads,
            PriorityKind::Pod => &mut self.listed_of_pods,
        }
    }

    /// Whether all classes of both kinds are known.
    pub(super) fn has_all(&self) -> bool {
        let kinds = [PriorityKind::Workload, PriorityKind::Pod];
        kinds.iter().all(|kind| self.complete.contains(kind))
    }

    /// True where that is new.
    fn seen(&mut self, kind: PriorityKind, name: String, value: i32, is_default: bool) -> bool {
        self.listed(kind).seen(&name);
        let classes = &mut self.classes;
        let is_default = is_default && kind == PriorityKind::Pod;
        let default_changed = if is_default {
            classes.defaults.insert(name.clone())
        } else {
            kind == PriorityKind::Pod && classes.defaults.remove(&name)
        };
        classes.values.insert((kind, name), value) != Some(value) || default_changed
    }

    fn gone(&mut self, kind: PriorityKind, name: &str) {
        self.classes.values.remove(&(kind, name.to_owned()));
        if kind == PriorityKind::Pod {
            self.classes.defaults.remove(name);
        }
    }
}

/// The part of an index that a watch of one kind of classes fills. `jobs`: those with a queue, of which some may wait for a class.
#[derive(Clone, Copy, Debug)]
pub struct Priorities<'a, F> {
    /// The index.
    pub index: &'a Index,
    /// The kind.
    pub kind: PriorityKind,
    /// All jobs with a queue.
    pub jobs: F,
}

impl<F: Fn() -> Vec<JobRef> + Send + Sync> Fill<DynamicObject> for Priorities<'_, F> {
    fn begin(&self) {
        self.index.queues.lock().priorities.listed(self.kind).begin();
    }

    fn seen(&self, class: &DynamicObject) -> Vec<JobRef> {
        let Some((value, is_default)) = observe_queue::priority_class(class) else {
            return vec![];
        };
        let mut queues = self.index.queues.lock();
        let is_new = queues
            .priorities
            .seen(self.kind, class.name_any(), value, is_default);
        drop(queues);
        if is_new { (self.jobs)() } else { vec![] }
    }

    fn gone(&self, class: &DynamicObject) -> Vec<JobRef> {
        self.index
            .queues
            .lock()
            .priorities
            .gone(self.kind, &class.name_any());
        vec![]
    }

    fn complete(&self) -> Vec<JobRef> {
        let mut queues = self.index.queues.lock();
        let all = &mut queues.priorities;
        let of_kind = |(kind, name): &(PriorityKind, String)| (*kind == self.kind).then(|| name.clone());
        let known: Vec<String> = all.classes.values.keys().filter_map(of_kind).collect();
        for name in all.listed(self.kind).complete(known.iter()) {
            all.gone(self.kind, &name);
        }
        all.complete.insert(self.kind);
        vec![]
    }
}
