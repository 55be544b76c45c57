//! The memory that following and spare copies take on the worker that follows or keeps.

use super::Replay;
use crate::host::Host;
use varuna_plan::{Unit, WorkerId};

/// Gradients are sent and kept in single precision: bytes per parameter.
const GRADIENT_BYTES: f64 = 4.0;

impl Host<Replay<'_>> {
    /// State of a unit, bytes.
    pub(super) fn state_bytes(&self, unit: Unit) -> f64 {
        self.env.unit_bytes.get(unit.index()).copied().unwrap_or(0.0)
    }

    /// Gradient of a unit, bytes.
    pub(super) fn gradient_bytes(&self, unit: Unit) -> f64 {
        let setup = self.env.setup;
        let of_parameter = setup.parts.state_bytes(&setup.planner.costs).max(GRADIENT_BYTES);
        self.state_bytes(unit) * GRADIENT_BYTES / of_parameter
    }

    /// Parameters of a unit as they are computed with, bytes.
    #[expect(clippy::cast_precision_loss, reason = "a few bytes")]
    pub(super) fn parameter_bytes(&self, unit: Unit) -> f64 {
        let setup = self.env.setup;
        let parameter = setup.planner.costs.parameter;
        let computed = parameter.without_state().saturating_sub(parameter.gradient) as f64;
        self.state_bytes(unit) * computed / setup.parts.state_bytes(&setup.planner.costs).max(computed)
    }

    /// Counts what the worker holds now. It can only have become more if a copy has arrived or a gradient was sent to it. As in the
    /// planner, the memory for a gradient counts for the worker that will apply it from the moment it is sent.
    pub(super) fn note_extra_memory(&mut self, w: WorkerId) {
        let Some(worker) = self.members.alive(w) else {
            return;
        };
        let of_unit = |(unit, gradients): (Unit, u32)| {
            self.state_bytes(unit) + f64::from(gradients) * self.gradient_bytes(unit)
        };
        let held: f64 = worker.machine.extra_units().into_iter().map(of_unit).sum();
        let on_the_way = self.env.transfers.gradients_to(w);
        let on_the_way: f64 = on_the_way.map(|unit| self.gradient_bytes(unit)).sum();
        let trains = self.env.in_force.as_ref().is_some_and(|p| p.has(w));
        let memory = &mut self.env.account.report.extra_memory;
        memory.note(held + on_the_way, trains);
    }
}
