//! The resource `VarunaJob`, as the API server knows it.

use crate::decide::ObservedJob;
use crate::job_object::JobObject;
use kube::runtime::reflector::ObjectRef;

/// Field manager of all objects of jobs.
pub const MANAGER: &str = "varuna-operator";

/// A job, by namespace and name.
pub type JobRef = ObjectRef<JobObject>;

/// The job of this namespace and name.
#[must_use]
pub fn job_ref(namespace: &str, name: &str) -> JobRef {
    JobRef::new(name).within(namespace)
}

/// Which job: its names and its uid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobIdentity {
    /// Name of the job.
    pub name: String,
    /// Namespace of the job.
    pub namespace: String,
    /// The object's uid: another object of the same name has another.
    pub uid: String,
}

impl JobIdentity {
    /// The identity of a job.
    #[must_use]
    pub fn of(job: &ObservedJob) -> JobIdentity {
        JobIdentity {
            name: job.name.clone(),
            namespace: job.namespace.clone(),
            uid: job.uid.clone(),
        }
    }
}
