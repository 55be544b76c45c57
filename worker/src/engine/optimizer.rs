//! A decision and a unit's gradient as a step of the optimizer.

use super::panics::caught;
use super::without_memory::{torn, without_room};
use super::{Engine, EngineConfig, EngineError};
use crate::state::{Gradients, UnitBuffers};
use std::time::{Duration, Instant};
use varuna_api::Training;
use varuna_plan::{Decision, Unit};

/// How long the optimizer waits for readers of the state that it would change.
#[derive(Clone, Copy)]
pub(super) struct ReaderTimeouts {
    /// When they are asked to stop: a checkpoint or a comparison is given up, and a copy for a follower or a keeper is requested again.
    pub(super) asks_after: Duration,
    /// After this time a reader that has not stopped is considered to hang.
    pub(super) ends_after: Duration,
}

impl ReaderTimeouts {
    /// When it asks, and when it ends.
    fn deadlines(self) -> [Instant; 2] {
        let now = Instant::now();
        [self.asks_after, self.ends_after].map(|after| now + after)
    }
}

impl Engine {
    /// Applies a decision to units whose gradients of that step are reduced: divide by the loss scale, clip, one step of the optimizer. A
    /// step with an overflow changes nothing but the loss scale and what is counted. The learning rate and Adam's corrections count only
    /// applied steps: a skipped step is as if it had not happened. Readers of the state that are too slow are asked to stop.
    ///
    /// # Errors
    /// A unit is not held, has no gradient of that step or does not cease to be read, or libtorch refuses; the state is then in doubt and the
    /// process must end. After a lack of memory the unit is not held any more ([`EngineError::Torn`]).
    pub fn apply(&mut self, decision: &Decision, units: &[Unit]) -> Result<(), EngineError> {
        // For all units together.
        let [asks, ends] = self.reader_timeouts.deadlines();
        for unit in units {
            match decision.overflow {
                true => self.reduced.forget(*unit),
                false => self.settle(*unit)?,
            }
            match self.apply_by(decision, *unit, asks) {
                Err(EngineError::StillRead(_)) => {
                    // Of all units: a copy of one may wait for that of another.
                    self.units.values_mut().for_each(UnitBuffers::ask_readers);
                    self.apply_by(decision, *unit, ends)?;
                }
                applied => applied?,
            }
            // The optimizer has scaled it in place.
            self.reduced.forget(*unit);
        }
        Ok(())
    }

    fn apply_by(&mut self, decision: &Decision, unit: Unit, deadline: Instant) -> Result<(), EngineError> {
        self.change(unit, |training, buffers| {
            apply(training, decision, (unit, buffers), deadline)
        })
    }

    /// Applies a decision to a unit that this worker follows, with the gradient that one of the unit's holders had ([`Engine::gradient`]): it
    /// comes to the very same bits as there. Of a skipped step the gradient is empty. A unit that lies in the host's memory stays there, unless
    /// the optimizer has other bits there.
    ///
    /// # Errors
    /// As [`Engine::apply`], for a gradient of another size, and where the device has no room for a unit that must be there.
    pub fn apply_forwarded(
        &mut self,
        decision: &Decision,
        unit: Unit,
        gradient: Vec<f32>,
    ) -> Result<(), EngineError> {
        let EngineConfig {
            training, backend, ..
        } = &self.config;
        self.reduced.forget(unit);
        if !backend.has_equal_bits_on_host(training.optimizer.rule) {
            let device = backend.device;
            let placed = self.place(&[unit]);
            placed.map_err(|error| without_room(device, unit, error))?;
        }
        let reader_timeouts = self.reader_timeouts;
        self.change(unit, |training, buffers| {
            apply_forwarded(training, decision, (unit, buffers), gradient, reader_timeouts)
        })
    }

    /// Changes a unit's state. A lack of memory meanwhile leaves it changed in part: it is dropped then, so that nobody reads it as that of any
    /// step.
    ///
    /// # Errors
    /// The unit is not held, or as `change`.
    pub(super) fn change(
        &mut self,
        unit: Unit,
        change: impl FnOnce(&Training, &mut UnitBuffers) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let buffers = self.units.get_mut(&unit).ok_or(EngineError::NotHeld(unit))?;
        let device = buffers.parameters().backend().device;
        let changed = caught(|| change(&self.config.training, buffers));
        let changed = changed.map_err(|error| torn(device, unit, error));
        if matches!(changed, Err(EngineError::Torn { .. })) {
            self.units.remove(&unit);
        }
        changed
    }
}

/// Applies a decision to one unit, once it has no readers: see [`Engine::apply`]. If it still has one at the deadline, nothing has changed.
fn apply(
    training: &Training,
    decision: &Decision,
    (unit, buffers): (Unit, &mut UnitBuffers),
    deadline: Instant,
) -> Result<(), EngineError> {
    let norm = decision.norm2.sqrt();
    let clip = training
        .optimizer
        .clip_norm
        .map_or(1.0, |most| (most / (norm + 1e-6)).min(1.0));
    let before = buffers.progress();
    let after = before.after(decision.overflow, &training.loss_scaling);
    if decision.overflow {
        buffers.set_progress(after);
        return Ok(());
    }
    if buffers.gradients().is_some_and(Gradients::is_leased) {
        return Err(EngineError::Leased(unit));
    }
    let rate = training.learning_rate.at(before.adam_steps);
    let factor = clip / before.loss_scale.factor.as_f64();
    let applied = buffers.apply(&training.optimizer, rate, factor, after, deadline);
    applied.map_err(|why| EngineError::of_buffer(unit, why))
}

/// The same with a gradient that another worker has sent: see [`Engine::apply_forwarded`].
pub(super) fn apply_forwarded(
    training: &Training,
    decision: &Decision,
    (unit, buffers): (Unit, &mut UnitBuffers),
    gradient: Vec<f32>,
    reader_timeouts: ReaderTimeouts,
) -> Result<(), EngineError> {
    let mut aside = None;
    if !decision.overflow {
        let device = buffers.parameters().backend().device;
        let used = caught(|| {
            let used = buffers.use_gradient(gradient);
            used.map_err(|e| EngineError::of_buffer(unit, e))
        });
        // The state itself is as it was.
        aside = used.map_err(|error| without_room(device, unit, error))?;
    }
    let [asks, ends] = reader_timeouts.deadlines();
    let applied = match apply(training, decision, (unit, &mut *buffers), asks) {
        Err(EngineError::StillRead(_)) => {
            buffers.ask_readers();
            apply(training, decision, (unit, &mut *buffers), ends)
        }
        applied => applied,
    };
    buffers.restore_gradients(aside);
    applied
}
