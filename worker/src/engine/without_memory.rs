//! Steps for which the device has no memory. They fail like those that a fence ends, and the next one finds more.

use super::{Engine, EngineError, StepFailure, StepReport};
use crate::memory;
use crate::transport::Link;
use std::sync::Arc;
use std::time::Instant;
use varuna_plan::{Plan, Step};

impl Engine {
    /// Runs the step that starts from `step` steps done, up to its reduced gradients. The weights stay as they are. If the device has no memory
    /// for it, what libtorch keeps for later tensors goes back to the driver, with what the step has freed: the next try finds it in one piece.
    ///
    /// # Errors
    /// Why it ended early, with the units that were completely reduced until then.
    pub fn run_step(
        &mut self,
        plan: &Plan,
        step: Step,
        link: &Arc<dyn Link>,
        deadline: Instant,
    ) -> Result<StepReport, StepFailure> {
        let ran = self.try_step(plan, step, link, deadline);
        ran.map_err(|failure| self.without_memory(failure))
    }

    /// The failure as what it is, if it is a lack of memory.
    pub(super) fn without_memory(&self, failure: StepFailure) -> StepFailure {
        let backend = &self.config.backend;
        let EngineError::Torch(error) = &failure.error else {
            return failure;
        };
        let Some(shortage) = memory::shortage(backend.device, &error.0) else {
            return failure;
        };
        // A panic quotes the lines that follow the first, which say where in libtorch this was.
        let first = error.0.lines().next().and_then(|line| line.split("\\n").next());
        let why = first.unwrap_or_default().to_owned();
        backend.streams.release_unused();
        if let Err(error) = varuna_torch::release_cached() {
            // The next step finds out what is wrong with the device.
            tracing::warn!(%error, "libtorch keeps the memory that it has");
        }
        StepFailure {
            error: EngineError::NoMemory { shortage, why },
            prepared: failure.prepared,
        }
    }
}
