//! What the watches have shown, reduced to the data on which decisions depend and sorted by job. So the cost of a reconciliation depends
//! on the size of the job, not of the cluster. State only: no clock, no I/O.

mod documents;
mod indexed_pod;
mod nodes;
mod owned;
mod pods;
mod priorities;
mod recently_gone;
mod relist;
mod runs;
mod workloads;

pub use documents::resource_version;
pub use indexed_pod::IndexedPod;
pub use nodes::NodeIndex;
pub use owned::{KindIndex, KnownObject, ObjectKey, ObjectKind, OwnedIndex};
pub use pods::{Expected, JobPods, PodIndex};
pub use priorities::{Priorities, PriorityIndex};
pub use runs::RunIndex;
pub use workloads::{Flavors, QueueIndex, Workloads};

use crate::decide::Settings;
use crate::node_object::NodeObject;
use crate::resource::JobRef;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use parking_lot::Mutex;

/// A kind of object whose fields decisions are made from. Each has a watch of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecidedOn {
    /// Pods of workers and of coordinators.
    Pod,
    /// Nodes.
    Node,
    /// What coordinators are ordered, and what they report.
    VarunaRun,
}

impl DecidedOn {
    /// All kinds.
    pub const ALL: [DecidedOn; 3] = [DecidedOn::Pod, DecidedOn::Node, DecidedOn::VarunaRun];

    /// The value of `kind`.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            DecidedOn::Pod => "Pod",
            DecidedOn::Node => "Node",
            DecidedOn::VarunaRun => "VarunaRun",
        }
    }
}

/// Namespace and name of a job.
pub type JobKey = (String, String);

/// What is known of the cluster.
#[derive(Debug)]
pub struct Index {
    /// Pods of workers and of coordinators.
    pub pods: Mutex<PodIndex>,
    /// Nodes.
    pub nodes: Mutex<NodeIndex>,
    /// What coordinators are ordered, and what they report.
    pub runs: Mutex<RunIndex>,
    /// All other objects of jobs.
    pub owned: Mutex<OwnedIndex>,
    /// Kueue's objects for jobs with a queue.
    pub queues: Mutex<QueueIndex>,
}

/// An index that a watch fills. Each method returns the jobs for which something has changed that decisions are made from.
pub trait Fill<K>: Send + Sync {
    /// The watch has started again and lists all objects from now on.
    fn begin(&self);
    /// The watch has shown this version of an object.
    fn seen(&self, object: &K) -> Vec<JobRef>;
    /// An object is gone.
    fn gone(&self, object: &K) -> Vec<JobRef>;
    /// All objects were listed: those that were not are gone.
    fn complete(&self) -> Vec<JobRef>;
}

impl Index {
    /// An empty index. The settings say what announces the end of a node, and where it is.
    #[must_use]
    pub fn new(settings: Settings) -> Index {
        Index {
            pods: Mutex::default(),
            nodes: Mutex::new(NodeIndex::new(settings)),
            runs: Mutex::default(),
            owned: Mutex::default(),
            queues: Mutex::default(),
        }
    }

    /// A node that was read apart from the watch.
    pub fn node_read(&self, node: &NodeObject) {
        self.nodes.lock().read(node);
    }

    fn jobs_on(&self, nodes: impl IntoIterator<Item = String>) -> Vec<JobRef> {
        let pods = self.pods.lock();
        let jobs = nodes.into_iter().flat_map(|node| pods.jobs_on(&node));
        jobs.collect()
    }
}

impl Fill<Pod> for Index {
    fn begin(&self) {
        self.pods.lock().begin();
    }

    fn seen(&self, pod: &Pod) -> Vec<JobRef> {
        self.pods.lock().seen(pod).into_iter().collect()
    }

    fn gone(&self, pod: &Pod) -> Vec<JobRef> {
        self.pods.lock().gone(pod).into_iter().collect()
    }

    fn complete(&self) -> Vec<JobRef> {
        self.pods.lock().complete()
    }
}

impl Fill<NodeObject> for Index {
    fn begin(&self) {
        self.nodes.lock().begin();
    }

    fn seen(&self, node: &NodeObject) -> Vec<JobRef> {
        let has_changed = self.nodes.lock().seen(node);
        self.jobs_on(has_changed.then(|| node.name_any()))
    }

    fn gone(&self, node: &NodeObject) -> Vec<JobRef> {
        self.nodes.lock().gone(node);
        self.jobs_on([node.name_any()])
    }

    fn complete(&self) -> Vec<JobRef> {
        let gone = self.nodes.lock().complete();
        self.jobs_on(gone)
    }
}

#[cfg(test)]
mod tests;
