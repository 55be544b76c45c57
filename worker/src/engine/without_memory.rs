//! What follows from a lack of memory on the device. A step fails like one that a fence ends, and the next one finds more. A unit that the optimizer
//! has changed in part is of no step, and the worker must end.

use super::{Engine, EngineError, StepFailure, StepReport};
use crate::backend::Backend;
use crate::memory;
use crate::transport::Link;
use std::sync::Arc;
use std::time::Instant;
use varuna_plan::{Plan, Step, Unit};
use varuna_protocol::MemoryShortage;
use varuna_torch::Device;

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
        let Some((shortage, why)) = shortage(backend.device, &failure.error) else {
            return failure;
        };
        give_back(backend);
        StepFailure {
            error: EngineError::NoMemory { shortage, why },
            prepared: failure.prepared,
        }
    }
}

/// What is known of a lack of memory and what libtorch says of it, if this error tells of one.
pub(super) fn shortage(device: Device, error: &EngineError) -> Option<(MemoryShortage, String)> {
    let EngineError::Torch(error) = error else {
        return None;
    };
    let shortage = memory::shortage(device, &error.0)?;
    // A panic quotes the lines that follow the first, which say where in libtorch this was.
    let first = error.0.lines().next().and_then(|line| line.split("\\n").next());
    Some((shortage, first.unwrap_or_default().to_owned()))
}

/// Gives what libtorch keeps for later tensors back to the driver.
pub(super) fn give_back(backend: &Backend) {
    backend.streams.release_unused();
    if let Err(error) = varuna_torch::release_cached() {
        // The next step finds out what is wrong with the device.
        tracing::warn!(%error, "libtorch keeps the memory that it has");
    }
}

/// The error as what it is for a unit for which there is no place; its state, if it is held, is as it was.
pub(super) fn without_room(device: Device, unit: Unit, error: EngineError) -> EngineError {
    match shortage(device, &error) {
        Some((shortage, why)) => EngineError::NoRoom { unit, shortage, why },
        None => error,
    }
}

/// The error as what it is for a unit that was being changed.
pub(super) fn torn(device: Device, unit: Unit, error: EngineError) -> EngineError {
    match shortage(device, &error) {
        Some((shortage, why)) => EngineError::Torn { unit, shortage, why },
        None => error,
    }
}
