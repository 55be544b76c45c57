//! What a step that did not finish tells the agent.

use super::Thread;
use crate::engine::{Compute, EngineError, StepFailure};
use crate::transport::LinkError;
use varuna_plan::{Generation, WorkerId};
use varuna_protocol::Lack;

/// Steps in a row for which the device may have no memory: from the second on, each leads to a plan that takes an eighth less of this worker, if there is one.
const WITHOUT_MEMORY_MAX: u32 = 8;

/// A step that did not finish.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedStep {
    /// Generation of the plan.
    pub generation: Generation,
    /// The peer for which the step waited.
    pub about: Option<WorkerId>,
    /// What this worker itself lacked for the step.
    pub lacks: Option<Lack>,
    /// Reason, as text for logs.
    pub why: String,
}

impl<E: Compute, T> Thread<E, T> {
    /// What a step that did not finish says, unless the engine cannot go on.
    pub(super) fn failed(
        &mut self,
        generation: Generation,
        failure: StepFailure,
    ) -> Result<FailedStep, EngineError> {
        self.prepared = failure.prepared;
        let why = failure.error.to_string();
        let late = self.engine.lacks_data().then_some(Lack::Data);
        let (about, lacks) = match failure.error {
            EngineError::Link(LinkError::Closed(peer) | LinkError::Unknown(peer)) => (Some(peer), late),
            EngineError::Link(
                LinkError::Deadline { from, .. }
                | LinkError::Unfit { from, .. }
                | LinkError::Progress { from, .. },
            ) => (Some(from), late),
            EngineError::Link(LinkError::Aborted | LinkError::Nccl(_)) => (None, late),
            // A plan follows in which no first step begins with parameters.
            EngineError::NothingToSend(_) => (None, late),
            // All workers that read may read from the same store: they keep their state until it is there again.
            ref error if error.lacks_data() => (None, Some(Lack::Data)),
            EngineError::NoMemory { shortage, why } => {
                self.without_memory += 1;
                let steps = self.without_memory;
                if steps >= WITHOUT_MEMORY_MAX {
                    return Err(EngineError::TooLittleMemory { steps, shortage, why });
                }
                (None, Some(Lack::Memory(shortage)))
            }
            other => return Err(other),
        };
        Ok(FailedStep {
            generation,
            about,
            lacks,
            why,
        })
    }
}
