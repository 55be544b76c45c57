//! From a stage's gradients to the reduced ones and their norms.

use super::super::EngineError;
use super::Run;
use super::exchange::Summed;
use super::loss::LossSum;
use crate::model::tied_weight_of;
use crate::state::{Computing, Gradients, TAIL};
use std::time::Instant;
use tch::{TchError, Tensor};
use varuna_plan::Unit;
use varuna_plan::state::UnitNorm;
use varuna_torch::{BlockSums, TorchError, read_block_sums};

/// Norms that lie on the device.
type DeviceNorms = Vec<(Unit, BlockSums<TAIL>)>;

impl Run<'_> {
    /// Hands the gradient of `segment`, which its last backward has finished, to the reduction.
    pub(super) fn reduce(&mut self, units: Computing<'_>, segment: u32) -> Result<(), EngineError> {
        if segment + 1 == self.plan.layout.segments {
            let losses = [Some(&self.loss), self.eval_loss.as_ref()];
            let gradient = gradient(units, Unit(segment))?.memory().tensor()?;
            set_tail(&gradient, losses).map_err(|e| TorchError(e.to_string()))?;
        }
        self.reduce_unit(units, Unit(segment))
    }

    /// The same for the tied weight, where this worker holds it: after all that it sends. The first sum over a communicator may not begin before all
    /// holders come to it, and those of the embedding come after they have the last gradient from here.
    pub(super) fn reduce_tied(&mut self, units: Computing<'_>) -> Result<(), EngineError> {
        let mut places = self.places.iter();
        match places.find_map(|place| tied_weight_of(self.plan.layout, place.segments)) {
            Some(tied) => self.reduce_unit(units, tied),
            None => Ok(()),
        }
    }

    fn reduce_unit(&mut self, units: Computing<'_>, unit: Unit) -> Result<(), EngineError> {
        let gradient = gradient(units, unit)?;
        self.exchange.begin(unit, gradient.memory())
    }

    /// Waits for all reductions.
    pub(super) fn collect(
        &mut self,
        units: Computing<'_>,
        prepared: &mut Vec<(Unit, UnitNorm)>,
    ) -> Result<(), EngineError> {
        let start = Instant::now();
        let count = self.plan.whole_units(self.config.me).len();
        let mut device_norms = DeviceNorms::new();
        let mut next = |run: &mut Self| {
            let summed = run.exchange.next()?;
            run.arrive(units, summed, &mut device_norms, prepared)
        };
        let result = (0..count).try_for_each(|_| next(self));
        // Those that are summed count, whatever became of the others.
        let read = self.read(device_norms, prepared);
        self.timings.reduce = start.elapsed();
        result.and(read)
    }

    /// The same for sums that were done before the step was stopped. What it keeps for backwards goes first: norms need memory on the device, and a
    /// lack of it may be why the step ends.
    pub(super) fn collect_finished(
        &mut self,
        units: Computing<'_>,
        prepared: &mut Vec<(Unit, UnitNorm)>,
    ) -> Result<(), EngineError> {
        self.stash.clear();
        let mut device_norms = DeviceNorms::new();
        for summed in self.exchange.stop()? {
            self.arrive(units, summed, &mut device_norms, prepared)?;
        }
        self.read(device_norms, prepared)
    }

    /// Brings a sum to where the optimizer takes it from, and finds the norms of the units there that this worker holds.
    fn arrive(
        &self,
        units: Computing<'_>,
        summed: Summed,
        device_norms: &mut DeviceNorms,
        prepared: &mut Vec<(Unit, UnitNorm)>,
    ) -> Result<(), EngineError> {
        let Summed { unit, lease, on_host } = summed;
        let gradients = gradient(units, unit)?;
        let (memory, backend) = (gradients.memory(), &self.config.backend);
        let is_host = backend.device.is_host();
        if on_host && !is_host {
            let coming = lease.copy_to_device(backend.streams, memory.tensor()?)?;
            drop(coming.arrive()?);
        }
        drop(lease);
        let (layout, elements) = (self.plan.layout, memory.len() - TAIL);
        let mine = |unit: &Unit| self.plan.holders(*unit).contains(&self.config.me);
        for unit in layout.ranges_of(unit).filter(mine) {
            let own = layout.elements_of(unit, elements);
            if is_host {
                let found = memory.sum_of_squares(own);
                let found = found.map_err(|e| EngineError::of_buffer(unit, e))?;
                prepared.push((unit, self.norm(unit, found)));
            } else {
                let own = memory.narrow(own.start..own.end + TAIL)?;
                device_norms.push((unit, BlockSums::of(backend.kernels, &own)?));
            }
        }
        Ok(())
    }

    /// Reads all norms from the device at once: the one time in a step that the host waits for its numbers.
    fn read(
        &self,
        device_norms: DeviceNorms,
        prepared: &mut Vec<(Unit, UnitNorm)>,
    ) -> Result<(), EngineError> {
        let (units, sums): (Vec<_>, Vec<_>) = device_norms.into_iter().unzip();
        for (unit, found) in units.into_iter().zip(read_block_sums(&sums)?) {
            prepared.push((unit, self.norm(unit, found)));
        }
        Ok(())
    }

    fn norm(&self, unit: Unit, (squares, [loss, eval_loss]): (f64, [f32; TAIL])) -> UnitNorm {
        // Of the gradient itself. The scale is a power of two and the sum is in double precision: this rounds nothing.
        let scale = self.before.loss_scale.factor.as_f64();
        let layout = self.plan.layout;
        let last = layout.ranges_of(Unit(layout.segments.saturating_sub(1))).last();
        // Of any other range, what follows it is no loss.
        let carries = last == Some(unit);
        let loss = if carries { loss } else { 0.0 };
        let eval_loss = (carries && self.eval_loss.is_some()).then(|| f64::from(eval_loss));
        let norm = UnitNorm::new(squares / (scale * scale), f64::from(loss), eval_loss, self.before);
        // Without a target the gradient is zero, and the optimizer applies it: only the loss is none.
        match carries && !self.loss.has_targets() {
            true => norm.without_loss(),
            false => norm,
        }
    }
}

/// The gradients of a unit of the undivided layout.
fn gradient(units: Computing<'_>, unit: Unit) -> Result<&Gradients, EngineError> {
    units.gradients(unit).ok_or(EngineError::NotHeld(unit))
}

/// Writes the losses into the last elements of a gradient, on its device: nothing waits for their values.
fn set_tail(gradient: &Tensor, sums: [Option<&LossSum>; TAIL]) -> Result<(), TchError> {
    // Counted from the end.
    for (place, sum) in (1..).zip(sums.into_iter().rev()) {
        if let Some(sum) = sum {
            gradient.f_narrow(0, -place, 1)?.f_copy_(&sum.sum())?;
        }
    }
    Ok(())
}
