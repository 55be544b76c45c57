//! From a stage's gradients to the reduced ones and their norms.

use super::super::EngineError;
use super::loss::LossSum;
use super::{Place, Run};
use crate::model::units_finished_by;
use crate::state::{TAIL, UnitBuffers};
use crate::transport::ring::Reducer;
use std::collections::BTreeMap;
use std::time::Instant;
use varuna_plan::Unit;
use varuna_plan::state::UnitNorm;
use varuna_torch::{Lease, sum_of_squares};

impl Run<'_> {
    /// Hands the gradients that `segment` has finished to the reduction.
    pub(super) fn reduce(
        &mut self,
        place: Place,
        units: &BTreeMap<Unit, UnitBuffers>,
        segment: u32,
        reducer: &mut Reducer<Lease>,
    ) -> Result<(), EngineError> {
        for unit in units_finished_by(&self.config.model, place.segments, segment) {
            let memory = &units
                .get(&unit)
                .ok_or(EngineError::NotHeld(unit))?
                .gradient_memory;
            let mut lease = memory.lease().map_err(|e| EngineError::of_buffer(unit, e))?;
            if segment + 1 == self.plan.layout.segments && unit == Unit(segment) {
                let loss = self.loss.value()?;
                let evaluated = self.eval_loss.as_ref().map(LossSum::value).transpose()?;
                let values = lease.as_mut();
                let tail = values.len() - TAIL;
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "the gradients are single precision, too"
                )]
                values[tail..].copy_from_slice(&[loss as f32, evaluated.unwrap_or(0.0) as f32]);
            }
            reducer.begin(
                self.step,
                unit,
                self.plan.holders(unit).to_vec(),
                lease,
                self.deadline,
            );
        }
        Ok(())
    }

    /// Waits for all reductions.
    pub(super) fn collect(
        &mut self,
        reducer: &mut Reducer<Lease>,
        count: usize,
        prepared: &mut Vec<(Unit, UnitNorm)>,
    ) -> Result<(), EngineError> {
        let start = Instant::now();
        for _ in 0..count {
            let (unit, lease) = reducer.wait()?;
            prepared.push((unit, self.norm(unit, lease.as_ref())));
        }
        self.timings.reduce = start.elapsed();
        Ok(())
    }

    pub(super) fn norm(&self, unit: Unit, reduced: &[f32]) -> UnitNorm {
        let (gradient, tail) = reduced.split_at(reduced.len() - TAIL);
        // Of the gradient itself. The scale is a power of two and the sum is in double precision: this rounds nothing.
        let scale = self.before.loss_scale.factor.as_f64();
        let norm2 = sum_of_squares(gradient) / (scale * scale);
        let carries = unit.0 + 1 == self.plan.layout.segments;
        let eval_loss = (carries && self.evaluates()).then(|| f64::from(tail[1]));
        UnitNorm::new(norm2, f64::from(tail[0]), eval_loss, self.before)
    }
}
