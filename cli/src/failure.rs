//! Why a command failed, and the exit code that says so.

use std::io::ErrorKind;
use std::process::ExitCode;
use varuna_coordinator::{CoordinatorError, Divergence, Outcome};
use varuna_plan::Layout;
use varuna_run_folder::FolderError;

/// Exit code of a command that the user has stopped.
pub(crate) const STOPPED: u8 = 130;

/// Why a command failed. The messages are for the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The user's input cannot be used.
    #[error("{0}")]
    Input(String),
    /// The user's input cannot be used. The worker program has printed the reason, and nothing more is to be said.
    #[error("the worker program has printed the reason")]
    Reported,
    /// A run folder, a port, a checkpoint location or the folder of an export is in use.
    #[error("{0}")]
    Busy(String),
    /// Training state is lost for good.
    #[error("the last worker that held {0} is lost and there is no checkpoint: the run cannot continue")]
    StateLost(String),
    /// No gradient is finite any more.
    #[error("the run cannot continue: {0}")]
    Diverged(Divergence),
    /// The user stopped the command.
    #[error("stopped by the user")]
    Stopped,
    /// Any other error.
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Internal(_) => 1,
            Failure::Input(_) | Failure::Reported => 2,
            Failure::Busy(_) => 3,
            Failure::StateLost(_) => 4,
            Failure::Diverged(_) => 5,
            Failure::Stopped => STOPPED,
        })
    }

    /// The result of a command, depending on how its coordinator ended.
    pub(crate) fn of_outcome(outcome: &Outcome, layout: &Layout) -> Result<(), Failure> {
        match outcome {
            Outcome::Done => Ok(()),
            Outcome::Stopped => Err(Failure::Stopped),
            Outcome::Deposed => Err(Failure::Busy(
                "another coordinator has taken over this run".into(),
            )),
            Outcome::Diverged(divergence) => Err(Failure::Diverged(*divergence)),
            Outcome::StateLost { units } => Err(Failure::StateLost(layout.name(units))),
        }
    }
}

impl From<FolderError> for Failure {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::Held(_) => Failure::Busy(error.to_string()),
            FolderError::OtherJob(_) | FolderError::Io { .. } => Failure::Input(error.to_string()),
        }
    }
}

impl From<CoordinatorError> for Failure {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::Listen { ref source, .. } if source.kind() == ErrorKind::AddrInUse => {
                Failure::Busy(error.to_string())
            }
            CoordinatorError::Listen { .. }
            | CoordinatorError::Store(_)
            | CoordinatorError::FewerSteps { .. }
            | CoordinatorError::NothingToGoOnFrom { .. } => Failure::Input(error.to_string()),
            CoordinatorError::Folder(error) => error.into(),
            taken @ CoordinatorError::CheckpointsTaken { .. } => Failure::Busy(taken.to_string()),
            other => Failure::Internal(other.to_string()),
        }
    }
}
