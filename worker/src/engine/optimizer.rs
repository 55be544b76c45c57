//! A decision and a unit's gradient as a step of the optimizer.

use super::EngineError;
use crate::state::{Gradients, UnitBuffers};
use std::time::Instant;
use varuna_api::Training;
use varuna_plan::{Decision, Unit};

/// Applies a decision to one unit, once nobody reads it any more: see [`super::Engine::apply`].
pub(super) fn apply(
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

/// The same with a gradient that another worker has sent: see [`super::Engine::apply_forwarded`].
pub(super) fn apply_forwarded(
    training: &Training,
    decision: &Decision,
    (unit, buffers): (Unit, &mut UnitBuffers),
    gradient: &[f32],
    deadline: Instant,
) -> Result<(), EngineError> {
    if !decision.overflow {
        let set = buffers.set_gradient(gradient);
        set.map_err(|e| EngineError::of_buffer(unit, e))?;
    }
    apply(training, decision, (unit, buffers), deadline)
}
