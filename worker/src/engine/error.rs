//! What can go wrong in an engine.

use super::{SNAPSHOT_WAIT, SampleError};
use crate::model::ExportedError;
use crate::transport::LinkError;
use varuna_plan::{Unit, WorkerId};
use varuna_protocol::MemoryShortage;
use varuna_torch::{LeaseError, TorchError};

/// Why the engine could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The network or a fence ended the step; the state is as it was before the step.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// libtorch refused.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// The device had no memory for a step; the state is as it was before the step.
    #[error("the device had no memory for a step ({shortage}): {why}")]
    NoMemory {
        /// What is known of it.
        shortage: MemoryShortage,
        /// What libtorch says.
        why: String,
    },
    /// The device had no memory for many steps in a row, whatever was planned: the process must end.
    #[error(
        "the device had no memory for {steps} steps in a row (the last time {shortage}): this worker ends; the job needs less with a smaller \
         spec.training.microBatchSize, with spec.pipeline.recompute: full, or with more workers, and a new job is planned for less by \
         spec.workers.deviceMemory ({why})"
    )]
    TooLittleMemory {
        /// How many.
        steps: u32,
        /// What is known of the last.
        shortage: MemoryShortage,
        /// What libtorch said then.
        why: String,
    },
    /// There is no memory for a unit's state, neither on the device nor where else it may lie: the process must end.
    #[error(
        "there is no memory for the state of unit {unit} ({shortage}): this worker ends, without holding the unit at a new state; a new job is \
         planned for less by spec.workers.deviceMemory ({why})"
    )]
    NoRoom {
        /// Which unit.
        unit: Unit,
        /// What is known of it.
        shortage: MemoryShortage,
        /// What libtorch says.
        why: String,
    },
    /// There was no memory within the optimizer's step: the unit may be changed in part, and the process must end.
    #[error(
        "there was no memory for the optimizer's step of unit {unit} ({shortage}): the unit may be changed in part, so that it is neither at the \
         state before the step nor at the one after it; this worker holds it no more and ends, and the run goes on from the unit's other holders, \
         its spare copy or a checkpoint; a new job is planned for less by spec.workers.deviceMemory ({why})"
    )]
    Torn {
        /// Which unit.
        unit: Unit,
        /// What is known of it.
        shortage: MemoryShortage,
        /// What libtorch says.
        why: String,
    },
    /// The data cannot be read.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The initial values of a user-defined model cannot be read.
    #[error("{0}")]
    Model(String),
    /// The code of a segment of a user-defined model cannot be read; the state is as it was before the step.
    #[error("{why}")]
    Code {
        /// What cannot be read, and why.
        why: String,
        /// Another try may succeed later.
        may_pass: bool,
    },
    /// A unit's state is needed and not here.
    #[error("the state of unit {0} is not held here")]
    NotHeld(Unit),
    /// Others wait for parameters that are not here either; the state is as it was before the step.
    #[error(
        "the state of unit {0} is not held here, and other workers need its parameters for the first step"
    )]
    NothingToSend(Unit),
    /// The optimizer is to apply a gradient that is not here; this is a defect of this program, and the process must end.
    #[error(
        "the gradient of unit {0} is not here, and the decision of its step cannot be applied: this worker ends with the unit's state as it was \
         before the step"
    )]
    NoGradient(Unit),
    /// The plan gives this worker nothing to do.
    #[error("worker {0} has no stage in the plan")]
    NoStage(WorkerId),
    /// The reduction or a reader still has a buffer.
    #[error("a buffer of unit {0} is still lent out")]
    Leased(Unit),
    /// A copy or a digest of a unit does not end: the process must end.
    #[error("the state of unit {0} must change, and is still read after {SNAPSHOT_WAIT:?}")]
    StillRead(Unit),
    /// The device failed, or does not end what it was told to stop: the process must end.
    #[error("the device failed: {0}")]
    Device(String),
    /// The engine's thread panicked; this is a defect of this program.
    #[error("the engine's thread panicked: {0}")]
    Panicked(String),
    /// A thread did not start: which, and why.
    #[error("cannot start the thread {0}: {1}")]
    Thread(&'static str, String),
}

impl From<ExportedError> for EngineError {
    fn from(error: ExportedError) -> EngineError {
        EngineError::Model(error.to_string())
    }
}

impl EngineError {
    /// Whether something could not be read that may be there later.
    pub(crate) fn lacks_data(&self) -> bool {
        match self {
            EngineError::Sample(error) => error.may_pass,
            EngineError::Code { may_pass, .. } => *may_pass,
            _ => false,
        }
    }

    /// The code of a segment that there is not. It is loaded onto the device, where there may be no memory for it: what libtorch says stays an
    /// error of libtorch's, so that a lack of memory is found in it.
    pub(crate) fn of_code(error: ExportedError) -> EngineError {
        match error {
            ExportedError::Code { file, why } => TorchError(format!("{}: {}", file.display(), why.0)).into(),
            other => EngineError::Code {
                may_pass: other.may_pass(),
                why: other.to_string(),
            },
        }
    }

    /// A buffer of a unit that the host cannot have.
    pub(crate) fn of_buffer(unit: Unit, why: LeaseError) -> EngineError {
        match why {
            LeaseError::Taken => EngineError::Leased(unit),
            LeaseError::StillRead => EngineError::StillRead(unit),
            LeaseError::Torch(error) => error.into(),
        }
    }
}
