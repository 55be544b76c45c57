//! The state that a step begins with.

use super::super::read_ahead::ReadAhead;
use super::super::{EngineConfig, EngineError};
use crate::model::Tables;
use crate::state::{Computing, GatheredUnit, UnitBuffers};
use std::collections::BTreeMap;
use varuna_plan::{OptimizerProgress, Plan, Step, Unit};

/// What the step is run with.
pub(in super::super) struct Device<'a> {
    /// The state that is held.
    pub(in super::super) units: &'a mut BTreeMap<Unit, UnitBuffers>,
    /// What is computed with, where units are ranges of segments, or their state is still on its way.
    pub(in super::super) gathered: &'a BTreeMap<Unit, GatheredUnit>,
    pub(in super::super) reader: &'a mut ReadAhead,
    pub(in super::super) tables: &'a Tables,
}

impl Device<'_> {
    /// Makes gradients zero, and the parameters that this worker holds those that are computed with, where they are not the same memory. Returns
    /// what the optimizer has counted, if units are held that are at this step's state.
    pub(super) fn begin(
        &mut self,
        config: &EngineConfig,
        (plan, step): (&Plan, Step),
    ) -> Result<OptimizerProgress, EngineError> {
        let mut before = OptimizerProgress::START;
        for unit in plan.units(config.me) {
            // What is held of it may be former state.
            if plan.parameters_sender(config.me, unit, step).is_some() {
                continue;
            }
            let buffers = self.units.get_mut(&unit).ok_or(EngineError::NotHeld(unit))?;
            before = buffers.progress();
            if let Some(here) = self.gathered.get(&plan.layout.whole_of(unit)) {
                let elements = plan.layout.elements_of(unit, here.elements());
                if !here.has(buffers) {
                    here.take(elements.clone(), buffers.weights())?;
                }
                buffers.sum_within(here, elements)?;
            }
        }
        let computing = Computing::of(plan, self.units, self.gathered);
        for whole in plan.whole_units(config.me) {
            let gradients = computing.gradients(whole).ok_or(EngineError::NotHeld(whole))?;
            if gradients.is_leased() {
                return Err(EngineError::Leased(whole));
            }
            gradients.zero()?;
        }
        Ok(before)
    }
}
