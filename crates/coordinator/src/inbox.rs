//! The messages that reach the driver. Everything that happens outside of its task arrives here, through one bounded channel.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tonic::Status;
use varuna_plan::{Generation, StateId, Step, WorkerId};
use varuna_protocol::coordinator::CoordinatorInput;
use varuna_run_folder::RunStatus;
use varuna_wire::v1::Down;
use varuna_wire::{Hello, Upward};

/// Where the messages to one worker go.
pub(crate) type DownSender = Sender<Result<Down, Status>>;

/// Identity of one stream: only a worker's newest counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StreamNumber(pub(crate) u64);

/// A message for the driver.
pub(crate) enum Inbound {
    /// A worker has opened a stream and said hello.
    Attached {
        number: StreamNumber,
        hello: Hello,
        down: DownSender,
    },
    /// A worker has sent a message.
    Message {
        worker: WorkerId,
        number: StreamNumber,
        message: Upward,
    },
    /// A stream has ended.
    Detached { worker: WorkerId, number: StreamNumber },
    /// A request for the run's status.
    Status(oneshot::Sender<RunStatus>),
    /// A request for another number of workers.
    Scale(u32, oneshot::Sender<Result<String, String>>),
    /// A request for a checkpoint; answered with the steps done, where an answer is wanted.
    Save(Option<oneshot::Sender<Result<u64, String>>>),
    /// The run's last step is to be this one, where that is more than is known.
    LastStep(Step),
    /// Where nodes are, by their names.
    Domains(BTreeMap<String, String>),
    /// Whether the job may lose what it has trained.
    AllowStateLoss(bool),
    /// A request to end the run.
    Stop,
    /// The run is gone, its record with it.
    Abandon,
    /// The thread that asks the record's store has an answer.
    Record(CoordinatorInput),
    /// The checkpoint store was asked.
    Checkpoints(CheckpointListing),
    /// The run of this name has taken the checkpoint location.
    LocationTaken(String),
    /// A worker's process has ended.
    ProcessEnded(Process),
    /// The process around the coordinator knows something about a worker.
    Notice(WorkerNotice),
}

/// A process, as a worker says it in its Hello.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Process {
    /// Name of its host; of a pod, the pod's own.
    pub(crate) host: String,
    /// Its id there.
    pub(crate) id: u32,
}

/// What is known about the workers of a name from outside, for example by the operator of their pods.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkerNotice {
    /// They will end soon, perhaps within this time; where it is not known, within the job's notice.
    Leaving(String, Option<Duration>),
    /// They have ended for certain.
    Ended(String),
}

impl WorkerNotice {
    /// What it means for a worker of this name that is attached or not.
    pub(crate) fn meaning(&self, worker: WorkerId, own: &str, attached: bool) -> Option<CoordinatorInput> {
        match self {
            WorkerNotice::Leaving(name, within) if attached && own == name => {
                Some(CoordinatorInput::Notice {
                    worker,
                    leaves_in: *within,
                })
            }
            // One that is attached has not ended, whoever says so.
            WorkerNotice::Ended(name) if !attached && own == name => {
                Some(CoordinatorInput::ProcessEnded { worker })
            }
            _ => None,
        }
    }
}

/// What is known of the checkpoints in the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointListing {
    /// The store has answered at least once.
    pub(crate) answered: bool,
    /// Those that can be resumed from, oldest first.
    pub(crate) usable: Vec<StateId>,
    /// Those that were marked as damaged.
    pub(crate) damaged: Vec<StateId>,
    /// The newest generation of anything that was ever seen there, whosesoever it is.
    pub(crate) newest_generation: Generation,
    /// Why the store could not be asked the last time.
    pub(crate) failing: Option<String>,
}

impl CheckpointListing {
    /// The newest that can be resumed from.
    pub(crate) fn newest(&self) -> Option<StateId> {
        self.usable.iter().max().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_for_the_workers_of_its_name_and_who_is_attached_has_not_ended() {
        let (leaving, ended) = (
            WorkerNotice::Leaving("w1".into(), None),
            WorkerNotice::Ended("w1".into()),
        );
        let of = |notice: &WorkerNotice, name, attached| {
            let meaning = notice.meaning(WorkerId(7), name, attached);
            match meaning {
                Some(CoordinatorInput::Notice { worker, .. }) => Some(("leaves", worker.0)),
                Some(CoordinatorInput::ProcessEnded { worker }) => Some(("has ended", worker.0)),
                _ => None,
            }
        };
        assert_eq!(of(&leaving, "w1", true), Some(("leaves", 7)));
        assert_eq!(of(&leaving, "w1", false), None);
        let within = Some(Duration::from_secs(3));
        let timed = WorkerNotice::Leaving("w1".into(), within).meaning(WorkerId(7), "w1", true);
        assert!(
            matches!(timed, Some(CoordinatorInput::Notice { leaves_in, .. }) if leaves_in == within),
            "its time is passed on"
        );
        assert_eq!(of(&ended, "w1", false), Some(("has ended", 7)));
        assert_eq!(of(&ended, "w1", true), None, "its name is used again");
        assert_eq!((of(&leaving, "w2", true), of(&ended, "w2", false)), (None, None));
    }
}
