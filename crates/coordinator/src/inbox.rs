//! The messages that reach the driver. Everything that happens outside of its task arrives here, through one bounded channel.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tonic::Status;
use varuna_plan::{Generation, StateId, Step, WorkerId};
use varuna_protocol::coordinator::CoordinatorInput;
use varuna_run_folder::{CheckpointEvent, RunStatus};
use varuna_wire::v1::Down;
use varuna_wire::{Hello, Upward};

/// The channel for messages to one worker.
pub(crate) type DownSender = Sender<Result<Down, Status>>;

/// Identity of a stream: only a worker's newest stream counts.
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
    /// A request for a checkpoint. If an answer is wanted, it is the number of steps done.
    Save(Option<oneshot::Sender<Result<u64, String>>>),
    /// The run's last step, if it is greater than the known one.
    LastStep(Step),
    /// The locations of nodes, by name.
    Domains(BTreeMap<String, String>),
    /// Whether the job may lose its training progress.
    AllowStateLoss(bool),
    /// A request to end the run after one more checkpoint, if the job names a location for checkpoints.
    SaveAndStop,
    /// A request to end the run now.
    Stop,
    /// The run is gone, and its record too.
    Abandon,
    /// The answer of the thread that asks the record's store.
    Record(CoordinatorInput),
    /// The answer of the checkpoint store.
    Checkpoints(CheckpointListing),
    /// What else is to be said about the checkpoint store.
    CheckpointEvent(CheckpointEvent),
    /// The run of this name has taken the checkpoint location.
    LocationTaken(String),
    /// A worker's process has ended.
    ProcessEnded(Process),
    /// A worker of an earlier coordinator's process has ended.
    WorkerEnded(WorkerId),
    /// The process around the coordinator knows something about a worker.
    Notice(WorkerNotice),
}

/// A process, as a worker reports it in its Hello.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Process {
    /// Name of its host; for a pod, the pod's name.
    pub(crate) host: String,
    /// Process id of the worker on that host.
    pub(crate) id: u32,
}

/// What the surroundings, for example the operator, know about the workers of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkerNotice {
    /// They will end soon. The time is given if it is known; otherwise it is the job's notice.
    Leaving(String, Option<Duration>),
    /// Workers with this name have certainly ended.
    Ended(String),
}

impl WorkerNotice {
    /// Name of the workers that it is about.
    pub(crate) fn name(&self) -> &str {
        match self {
            WorkerNotice::Leaving(name, _) | WorkerNotice::Ended(name) => name,
        }
    }

    /// The input that follows for a worker of that name that is attached or not.
    pub(crate) fn meaning(&self, worker: WorkerId, attached: bool) -> Option<CoordinatorInput> {
        match self {
            WorkerNotice::Leaving(_, within) if attached => Some(CoordinatorInput::Notice {
                worker,
                leaves_in: *within,
            }),
            // A worker that is attached has not ended, whatever the notice says.
            WorkerNotice::Ended(_) if !attached => Some(CoordinatorInput::ProcessEnded { worker }),
            WorkerNotice::Leaving(..) | WorkerNotice::Ended(_) => None,
        }
    }
}

/// What is known about the checkpoints in the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointListing {
    /// The store has answered at least once.
    pub(crate) answered: bool,
    /// The checkpoints that can be resumed from, oldest first.
    pub(crate) usable: Vec<StateId>,
    /// The one of them that is another job's, with which this job begins; none once the job has one of its own.
    pub(crate) origin: Option<StateId>,
    /// The checkpoints that are marked: as damaged, or as given up by this run or an earlier one.
    pub(crate) damaged: Vec<StateId>,
    /// The newest generation of anything that was ever seen there, whichever run wrote it.
    pub(crate) newest_generation: Generation,
    /// Why the last request to the store failed; none if it succeeded.
    pub(crate) failing: Option<String>,
    /// Bytes of the checkpoints that are not complete yet, and newer than those that are.
    pub(crate) unfinished_bytes: u64,
    /// A newer listing is under way and takes longer than was waited for: this is the one before.
    pub(crate) under_way: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attached_workers_leave_and_have_not_ended() {
        let (leaving, ended) = (
            WorkerNotice::Leaving("w1".into(), None),
            WorkerNotice::Ended("w1".into()),
        );
        let of = |notice: &WorkerNotice, attached| {
            assert_eq!(notice.name(), "w1");
            let meaning = notice.meaning(WorkerId(7), attached);
            match meaning {
                Some(CoordinatorInput::Notice { worker, .. }) => Some(("leaves", worker.0)),
                Some(CoordinatorInput::ProcessEnded { worker }) => Some(("has ended", worker.0)),
                _ => None,
            }
        };
        assert_eq!(of(&leaving, true), Some(("leaves", 7)));
        assert_eq!(of(&leaving, false), None);
        let within = Some(Duration::from_secs(3));
        let timed = WorkerNotice::Leaving("w1".into(), within).meaning(WorkerId(7), true);
        assert!(
            matches!(timed, Some(CoordinatorInput::Notice { leaves_in, .. }) if leaves_in == within),
            "its time is passed on"
        );
        assert_eq!(of(&ended, false), Some(("has ended", 7)));
        assert_eq!(of(&ended, true), None, "its name is used again");
    }
}
