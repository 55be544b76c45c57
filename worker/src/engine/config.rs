//! What an engine is made from, and the units of state that follow from it.

use super::Samples;
use crate::backend::Backend;
use crate::model::Module;
use crate::state::{GatheredUnit, UnitBuffers, UnitSpec};
use std::ops::Range;
use std::sync::Arc;
use varuna_api::Training;
use varuna_plan::{Layout, Unit, WorkerId};
use varuna_torch::TorchError;

/// What an engine is made from.
#[derive(Clone)]
pub struct EngineConfig {
    /// Id of this worker.
    pub me: WorkerId,
    /// The model.
    pub model: Module,
    /// Training settings of the job.
    pub training: Training,
    /// Device, formats of numbers and kernels.
    pub backend: Backend,
    /// Data of the job.
    pub samples: Arc<dyn Samples>,
}

impl EngineConfig {
    /// The units of the job's state.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.training.optimizer.sharding.layout(self.model.layout())
    }

    /// Which parameters of its segment a unit has.
    pub(super) fn elements_of(&self, unit: Unit) -> Range<usize> {
        let layout = self.layout();
        let elements = self.model.unit(layout.whole_of(unit)).elements();
        layout.elements_of(unit, elements)
    }

    /// Zeroed buffers for a unit.
    pub(super) fn empty(&self, unit: Unit) -> Result<UnitBuffers, TorchError> {
        let (spec, moments) = (self.spec_of(unit), self.training.optimizer.rule.moments());
        match self.layout().ranges {
            1 => UnitBuffers::new(&spec, self.backend, moments),
            _ => UnitBuffers::of_range(&spec, self.backend, moments),
        }
    }

    /// Zeroed buffers for a unit's state in the host's memory, which nobody computes with.
    pub(super) fn empty_on_host(&self, unit: Unit) -> Result<UnitBuffers, TorchError> {
        let host = Backend::of_processor(self.backend.numerics);
        let moments = self.training.optimizer.rule.moments();
        UnitBuffers::of_range(&self.spec_of(unit), host, moments)
    }

    /// Zeroed tensors for computing a unit of the undivided layout.
    pub(super) fn gathered(&self, whole: Unit) -> Result<GatheredUnit, TorchError> {
        GatheredUnit::new(&self.model.unit(whole), self.backend)
    }

    fn spec_of(&self, unit: Unit) -> UnitSpec {
        let layout = self.layout();
        let spec = self.model.unit(layout.whole_of(unit));
        match layout.ranges {
            1 => spec,
            _ => spec.range(&self.elements_of(unit)),
        }
    }
}
