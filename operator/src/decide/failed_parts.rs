//! What could not be carried out for a job, by the part that failed: parts fail, and are tried again, separately.

/// The parts of what is carried out for a job. They fail separately.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum JobPart {
    /// Service, Secret and the like: pods and coordinators need them.
    Objects,
    /// Pods.
    Pods,
    /// The coordinator.
    Coordinator,
    /// Names of the job's objects, which others may have taken.
    Names,
    /// Deletions of pods.
    Deletions,
    /// The deletion of the job itself, some time after its end.
    JobDeletion,
    /// The job's Workload in Kueue.
    Workload,
    /// Changes of the disruption budget and of network policies that are there already.
    Policies,
    /// Everything: the API server does not answer, or not as it should.
    Server,
}

/// What could not be carried out, and is not tried again for a while.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Part of the job that failed.
    pub part: JobPart,
    /// The error's message.
    pub message: String,
    /// Seconds until it is tried again.
    pub retry_in: i64,
}

/// Whether nothing is carried out for now, because the API server did not answer.
#[must_use]
pub fn waits_for_server(failures: &[Failure]) -> bool {
    postponed(failures, &[JobPart::Server])
}

/// Whether one of these parts failed and is not to be tried again yet.
pub(super) fn postponed(failures: &[Failure], parts: &[JobPart]) -> bool {
    failures.iter().any(|f| f.retry_in > 0 && parts.contains(&f.part))
}
