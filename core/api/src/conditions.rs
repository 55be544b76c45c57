//! The names that the operator uses in its reports on a job: phases, condition types and reasons.
//!
//! The status, its conditions, the Events, the metrics and the documentation in the CRD all take these names from here, so that
//! a name cannot be in one of them and missing in another.

use std::fmt;

/// An enum whose variants are serialized by their names.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them, in the order in which they are documented.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The name, as users see it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => stringify!($variant),)* }
            }

            /// The variant with this name, if there is one.
            #[must_use]
            pub fn parse(word: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|w| w.as_str() == word)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// What a job is doing: the column PHASE of `kubectl get vj`.
    JobPhase {
        /// No coordinator runs yet.
        Pending,
        /// Its queue has not admitted it, or takes its quota back.
        Queued,
        /// The coordinator runs, and no step was committed yet.
        Starting,
        /// Steps are committed.
        Training,
        /// A worker was lost, and training will continue soon.
        Recovering,
        /// Too few workers are attached.
        Waiting,
        /// `spec.suspend` is true and nothing runs.
        Suspended,
        /// The last step is committed.
        Complete,
        /// The job cannot continue.
        Failed,
        /// The spec is invalid, or its checkpoint location belongs to another run.
        Refused,
    }
}

words! {
    /// Type of a condition in a job's status.
    ConditionType {
        /// The spec is valid and may be run.
        Accepted,
        /// Its queue has admitted it. Only jobs with a queue have it.
        Admitted,
        /// A plan is in force.
        Planned,
        /// Steps are committed.
        Training,
        /// Something is wrong although the job may be training.
        Degraded,
        /// The newest checkpoint is too old, or its store fails.
        CheckpointStale,
        /// The job is suspended and nothing runs.
        Suspended,
        /// The last step is committed.
        Complete,
        /// The job cannot continue.
        Failed,
    }
}

words! {
    /// How a pod failed.
    FailureKind {
        /// Its worker ended with an error.
        Crashed,
        /// Its worker was killed from outside, not for memory.
        Killed,
        /// Its node did not accept it.
        Rejected,
        /// Its node did not start it in time.
        NotStarted,
        /// One of its init containers ended with an error: its worker never started.
        InitFailed,
        /// Its worker ended without an error although the job runs.
        Left,
    }
}

words! {
    /// Why a condition has its status, and what an Event reports. The reason of the condition `Training` is the job's phase.
    Reason {
        /// Accepted: every check passed.
        ValidSpec,
        /// Accepted: a check failed.
        InvalidSpec,
        /// Accepted: another run writes to the checkpoint location.
        CheckpointsTaken,
        /// Admitted: the queue has admitted the job.
        QuotaReserved,
        /// Admitted: the queue has no quota for the job yet.
        WaitsForQuota,
        /// Admitted, Suspended: the queue takes its quota back.
        Evicted,
        /// Admitted: the API server does not serve Kueue's resources.
        NoKueue,
        /// Planned: no coordinator runs.
        NoCoordinator,
        /// Planned: the coordinator has made no plan yet.
        NoPlan,
        /// Planned: a plan is in force.
        PlanInForce,
        /// Degraded: nothing is wrong.
        AllIsWell,
        /// Degraded: the API server refuses the job's Service, Secrets or another of its objects.
        ObjectsRefused,
        /// Degraded: the API server refuses the job's pods, or to delete them.
        PodsRefused,
        /// Degraded: the API server does not answer the operator, or answers too late.
        ServerFails,
        /// Degraded: an object that does not belong to the job has a name that the job needs.
        NameTaken,
        /// Degraded: the coordinator cannot start, or has ended with an error.
        CoordinatorFails,
        /// Degraded: a container cannot start, because of its image or its configuration.
        PodsCannotStart,
        /// Degraded: the scheduler finds no node.
        PodsCannotBeScheduled,
        /// Degraded: a node does not accept the job's pods.
        PodsRejected,
        /// Degraded, Failed: an init container of the job's pods ends with an error.
        InitContainersFail,
        /// Degraded, Failed: worker processes end with an error.
        WorkersCrash,
        /// CheckpointStale: the job has no checkpoints.
        NoCheckpoints,
        /// CheckpointStale: the store does not answer, or refuses a request.
        StoreFails,
        /// CheckpointStale: the newest checkpoint is several intervals old.
        NoneForLong,
        /// CheckpointStale: the newest checkpoint is recent.
        Fresh,
        /// Suspended: `spec.suspend` is false.
        SuspendIsFalse,
        /// Suspended: the run continues until a checkpoint contains its state.
        Saving,
        /// Suspended: the job continues, because its state would be lost.
        WouldLoseState,
        /// Suspended: the run is being stopped.
        Stopping,
        /// Suspended: nothing runs.
        SuspendIsTrue,
        /// Complete: there are steps left to train.
        StepsLeft,
        /// Complete: the last step is committed.
        LastStep,
        /// Failed: the job has not failed.
        NotFailed,
        /// Failed: neither a worker nor a checkpoint holds a part of the model's state.
        StateLost,
        /// Failed: the job has existed for longer than `spec.activeDeadlineSeconds`.
        DeadlineExceeded,
        /// Failed: more steps in a row were skipped than `spec.training.skipLimit` allows.
        Diverged,
        /// Event: the phase changed.
        Phase,
        /// Event: a new plan is in force.
        Planned,
        /// Event: a message of the coordinator.
        Run,
        /// Event: training continues after a recovery or a change of plan.
        Resumed,
        /// Event: pods of an earlier template are replaced.
        RollingUpdate,
        /// Event: a worker's node announced its end.
        WorkerNoticed,
        /// Event: a worker's node does not answer or is gone.
        WorkerLost,
        /// Event: Kubernetes preempted or evicted a worker.
        WorkerPreempted,
    }
}

/// The words of a list with commas and a last "or": for documentation.
#[must_use]
pub fn listed<T: fmt::Display>(words: &[T]) -> String {
    let mut text = String::new();
    for (i, word) in words.iter().enumerate() {
        let separator = match i {
            0 => "",
            _ if i + 1 == words.len() => " or ",
            _ => ", ",
        };
        text.push_str(separator);
        text.push_str(&word.to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_as_it_is_written_and_no_other_is() {
        for phase in JobPhase::ALL {
            assert_eq!(JobPhase::parse(&phase.to_string()), Some(*phase));
        }
        assert_eq!(JobPhase::parse("training"), None);
        assert_eq!(listed(&["a", "b", "c"]), "a, b or c");
    }
}
