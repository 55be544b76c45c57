//! What is observed of Kueue's objects, as far as decisions are made from it.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use varuna_api::crd::Condition;

/// Versions of Kueue's API that this release can use, the newest first: all that it reads and writes is alike in them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KueueVersion {
    /// Served from Kueue 0.15.
    V1Beta2,
    /// Served by those before.
    V1Beta1,
}

impl KueueVersion {
    /// All of them, in the order in which they are preferred.
    pub const ALL: [KueueVersion; 2] = [KueueVersion::V1Beta2, KueueVersion::V1Beta1];
    /// The API group.
    pub const GROUP: &'static str = "kueue.x-k8s.io";

    /// The version alone, as in `v1beta2`.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            KueueVersion::V1Beta2 => "v1beta2",
            KueueVersion::V1Beta1 => "v1beta1",
        }
    }

    /// The value of `apiVersion`.
    #[must_use]
    pub fn api_version(self) -> String {
        format!("{}/{}", KueueVersion::GROUP, self.version())
    }
}

/// What is known of a job's queue.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ObservedQueue {
    /// What the API server serves; none where Kueue is not installed, or the operator may not use it.
    pub served: Option<KueueVersion>,
    /// Not everything that is served has been listed yet: an object that is missing here may exist.
    pub is_being_listed: bool,
    /// The newest Workload of the job.
    pub workload: Option<ObservedWorkload>,
    /// Names of those before it.
    pub earlier: Vec<String>,
    /// Workloads beside it, each for pods that it was not admitted with; oldest first.
    pub increments: Vec<ObservedWorkload>,
    /// Where flavours are, by name.
    pub flavors: BTreeMap<String, Placement>,
    /// The classes of priority that there are; none for a job without a queue.
    pub classes: PriorityClasses,
}

impl ObservedQueue {
    /// Whether Workloads may be made, changed and deleted: all that there are are known.
    pub(super) fn may_be_changed(&self) -> bool {
        self.served.is_some() && !self.is_being_listed
    }
}

/// A kind of classes of priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PriorityKind {
    /// Kueue's class: which Workload a queue prefers.
    Workload,
    /// Kubernetes' class: which pod the scheduler prefers.
    Pod,
}

impl PriorityKind {
    /// The value of `kind`.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            PriorityKind::Workload => "WorkloadPriorityClass",
            PriorityKind::Pod => "PriorityClass",
        }
    }

    /// API group of the kind.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            PriorityKind::Workload => KueueVersion::GROUP,
            PriorityKind::Pod => "scheduling.k8s.io",
        }
    }
}

/// The classes of priority in a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PriorityClasses {
    /// Their values, by kind and name.
    pub values: BTreeMap<(PriorityKind, String), i32>,
    /// Names of the classes that pods get that name none.
    pub defaults: BTreeSet<String>,
}

/// The priority of a Workload, and the class that it is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Priority {
    /// The kind of the class.
    pub kind: PriorityKind,
    /// The name of the class.
    pub name: String,
    /// The greater the sooner.
    pub value: i32,
}

/// A Workload.
#[derive(Clone, PartialEq, Debug)]
pub struct ObservedWorkload {
    /// Name of the Workload.
    pub name: String,
    /// Its number among those of the job: increments have numbers of their own.
    pub number: i64,
    /// Whether it is an increment.
    pub is_increment: bool,
    /// When it was made, in seconds since 1970.
    pub made: i64,
    /// The Workload's `resourceVersion`: decisions are written only over this version.
    pub version: String,
    /// Generation of its spec.
    pub generation: i64,
    /// Identity of what its spec was made from.
    pub made_from: Option<String>,
    /// Whether the Workload has a deletion timestamp.
    pub deleting: bool,
    /// Whether it may be admitted.
    pub is_active: bool,
    /// Name of the queue that it is in.
    pub queue: String,
    /// Name of its class of priority.
    pub priority_class: Option<String>,
    /// Conditions of the Workload.
    pub conditions: Vec<Condition>,
    /// What was admitted, by set of pods; none where nothing is.
    pub assignments: Option<BTreeMap<String, Assignment>>,
    /// What admission checks ask of its pods, by set.
    pub updates: BTreeMap<String, Placement>,
}

impl ObservedWorkload {
    /// The Workload's condition of a type.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.type_ == kind)
    }

    /// The same, if it is true.
    #[must_use]
    pub fn if_true(&self, kind: &str) -> Option<&Condition> {
        self.condition(kind).filter(|c| c.status == "True")
    }

    /// Whether quota is reserved for it: then its spec is fixed.
    #[must_use]
    pub fn holds_quota(&self) -> bool {
        self.if_true("QuotaReserved").is_some()
    }

    /// Whether all that it needs is given to it, so that its pods may be made.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.if_true("Admitted").is_some() && self.assignments.is_some()
    }

    /// Whether it is to give up its quota, or is to be given none.
    #[must_use]
    pub fn is_taken_back(&self) -> bool {
        self.if_true("Evicted").is_some() || !self.is_active
    }

    /// Whether its pods may be there from now on.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        let goes = self.deleting || self.is_taken_back() || self.if_true("Finished").is_some();
        self.is_admitted() && !goes
    }

    /// What was admitted of a set of pods.
    #[must_use]
    pub fn assignment(&self, set: &str) -> Option<&Assignment> {
        self.assignments.as_ref()?.get(set)
    }
}

/// What was admitted of a set of pods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Pods.
    pub count: u32,
    /// Flavours, one for each resource that has a quota.
    pub flavors: BTreeSet<String>,
}

/// What pods need to be on certain nodes, and what else an admission check asks of them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Placement {
    /// Labels of the nodes.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations, as documents.
    pub tolerations: Vec<Value>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

impl Placement {
    /// Adds these constraints to a pod. If the pod has another value, the queue's value is used: otherwise the pod could use nodes of
    /// another queue's quota.
    pub(super) fn add_to(&self, pod: &mut Value) {
        for (at, more) in [
            ("/metadata/labels", &self.labels),
            ("/metadata/annotations", &self.annotations),
            ("/spec/nodeSelector", &self.node_selector),
        ] {
            let (above, field) = at.rsplit_once('/').unwrap_or_default();
            let Some(above) = pod.pointer_mut(above) else {
                continue;
            };
            if above[field].is_null() && !more.is_empty() {
                above[field] = json!({});
            }
            for (name, value) in more {
                above[field][name] = value.as_str().into();
            }
        }
        let given = &mut pod["spec"]["tolerations"];
        if given.is_null() {
            *given = json!([]);
        }
        if let Some(tolerations) = given.as_array_mut() {
            let new = self.tolerations.iter().filter(|t| !tolerations.contains(t));
            let new: Vec<Value> = new.cloned().collect();
            tolerations.extend(new);
        }
    }
}
