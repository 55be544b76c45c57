//! From a stage's gradients to the reduced ones and their norms.

use super::super::EngineError;
use super::exchange::Summed;
use super::loss::LossSum;
use super::{Place, Run};
use crate::model::units_finished_by;
use crate::state::{TAIL, UnitBuffers};
use std::collections::BTreeMap;
use std::time::Instant;
use tch::{TchError, Tensor};
use varuna_plan::Unit;
use varuna_plan::state::UnitNorm;
use varuna_torch::TorchError;

impl Run<'_> {
    /// Hands the gradients that `segment` has finished to the reduction.
    pub(super) fn reduce(
        &mut self,
        place: Place,
        units: &BTreeMap<Unit, UnitBuffers>,
        segment: u32,
    ) -> Result<(), EngineError> {
        for unit in units_finished_by(&self.config.model, place.segments, segment) {
            let memory = &units
                .get(&unit)
                .ok_or(EngineError::NotHeld(unit))?
                .gradient_memory;
            if segment + 1 == self.plan.layout.segments && unit == Unit(segment) {
                let losses = [Some(&self.loss), self.eval_loss.as_ref()];
                set_tail(&memory.tensor()?, losses).map_err(|e| TorchError(e.to_string()))?;
            }
            self.exchange.begin(unit, memory)?;
        }
        Ok(())
    }

    /// Waits for all reductions.
    pub(super) fn collect(
        &mut self,
        units: &BTreeMap<Unit, UnitBuffers>,
        count: usize,
        prepared: &mut Vec<(Unit, UnitNorm)>,
    ) -> Result<(), EngineError> {
        let start = Instant::now();
        for _ in 0..count {
            let summed = self.exchange.next()?;
            prepared.push(self.prepare(units, summed)?);
        }
        self.timings.reduce = start.elapsed();
        Ok(())
    }

    /// Brings a sum to where the optimizer takes it from, and finds its norm there.
    pub(super) fn prepare(
        &self,
        units: &BTreeMap<Unit, UnitBuffers>,
        summed: Summed,
    ) -> Result<(Unit, UnitNorm), EngineError> {
        let Summed { unit, lease, on_host } = summed;
        drop(lease);
        let memory = &units
            .get(&unit)
            .ok_or(EngineError::NotHeld(unit))?
            .gradient_memory;
        if on_host {
            memory.load()?;
        }
        let (squares, [loss, eval_loss]) = memory
            .sum_of_squares()
            .map_err(|e| EngineError::of_buffer(unit, e))?;
        // Of the gradient itself. The scale is a power of two and the sum is in double precision: this rounds nothing.
        let scale = self.before.loss_scale.factor.as_f64();
        let carries = unit.0 + 1 == self.plan.layout.segments;
        let eval_loss = (carries && self.evaluates()).then(|| f64::from(eval_loss));
        let norm = UnitNorm::new(squares / (scale * scale), f64::from(loss), eval_loss, self.before);
        Ok((unit, norm))
    }
}

/// Writes the losses into the last elements of a gradient, where it lies: nothing waits for their values.
fn set_tail(gradient: &Tensor, sums: [Option<&LossSum>; TAIL]) -> Result<(), TchError> {
    // Counted from the end.
    for (place, sum) in (1..).zip(sums.into_iter().rev()) {
        if let Some(sum) = sum {
            gradient.f_narrow(0, -place, 1)?.f_copy_(&sum.sum())?;
        }
    }
    Ok(())
}
