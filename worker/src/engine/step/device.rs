//! The state that a step begins with.

use super::super::read_ahead::ReadAhead;
use super::super::{EngineConfig, EngineError};
use crate::model::Tables;
use crate::state::{GatheredUnit, Gradients, UnitBuffers};
use std::collections::BTreeMap;
use varuna_plan::{OptimizerProgress, Plan, Unit};

/// What the step is run with.
pub(in super::super) struct Device<'a> {
    /// The state that is held.
    pub(in super::super) units: &'a mut BTreeMap<Unit, UnitBuffers>,
    /// What is computed with, where units are ranges of segments.
    pub(in super::super) gathered: &'a BTreeMap<Unit, GatheredUnit>,
    pub(in super::super) reader: &'a mut ReadAhead,
    pub(in super::super) tables: &'a Tables,
}

impl Device<'_> {
    /// Makes gradients zero, and the parameters that this worker holds those that are computed with. Returns what the optimizer has counted.
    pub(super) fn begin(
        &mut self,
        config: &EngineConfig,
        plan: &Plan,
    ) -> Result<OptimizerProgress, EngineError> {
        let mut before = OptimizerProgress::START;
        for unit in plan.units(config.me) {
            let buffers = self.units.get_mut(&unit).ok_or(EngineError::NotHeld(unit))?;
            before = buffers.progress();
            if plan.layout.ranges == 1 {
                is_free(unit, buffers.gradients())?;
                buffers.zero_gradients()?;
                continue;
            }
            let whole = plan.layout.whole_of(unit);
            let here = self.gathered.get(&whole).ok_or(EngineError::NotHeld(unit))?;
            let elements = plan.layout.elements_of(unit, here.elements());
            here.take(elements.clone(), buffers.weights())?;
            buffers.sum_within(here, elements)?;
        }
        for (whole, here) in self.gathered {
            is_free(*whole, Some(here.gradients()))?;
            here.zero_gradients()?;
        }
        Ok(before)
    }
}

/// Whether a unit's gradients are not with the reduction any more.
fn is_free(unit: Unit, gradients: Option<&Gradients>) -> Result<(), EngineError> {
    match gradients.is_some_and(Gradients::is_leased) {
        true => Err(EngineError::Leased(unit)),
        false => Ok(()),
    }
}
