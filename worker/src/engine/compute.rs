//! The interface of an engine to its thread.

use super::{Adopter, Done, Engine, EngineError, StepFailure, StepReport};
use crate::state::{UnitSnapshot, UnitState};
use crate::transport::Link;
use std::sync::Arc;
use std::time::Instant;
use varuna_plan::{Decision, Plan, StateId, Step, Unit};

/// The part that computes steps. [`Engine`] trains; a program that measures the rest of a worker uses an implementation that computes
/// nothing. The functions of [`Engine`] document what each one does, and when it fails.
#[expect(missing_docs, reason = "they stand with those of Engine")]
pub trait Compute: Send + 'static {
    fn initialise(&mut self, unit: Unit) -> Result<(), EngineError>;
    fn import(&mut self, unit: Unit, state: &UnitState) -> Result<(), EngineError>;
    /// One that computes nothing keeps no gradient for state that comes later.
    fn adopt(&mut self, unit: Unit, _id: StateId, state: &UnitState) -> Result<bool, EngineError> {
        self.import(unit, state).map(|()| false)
    }
    /// One that has none adopts units in turn with its steps.
    fn adopter(&self) -> Option<Adopter> {
        None
    }
    /// What was adopted beside a step.
    fn take_adopted(&mut self, _waits: bool) -> Result<Vec<(Unit, bool)>, EngineError> {
        Ok(Vec::new())
    }
    fn snapshot(&self, unit: Unit) -> Result<UnitSnapshot, EngineError>;
    /// One that has no device has nowhere to copy to.
    fn share(&self, unit: Unit) -> Result<UnitSnapshot, EngineError> {
        self.snapshot(unit)
    }
    fn gradient(&self, unit: Unit) -> Result<Vec<f32>, EngineError>;
    fn free(&mut self, keep: &[Unit]) -> Result<(), EngineError>;
    /// One that has no device has one place for all state.
    fn keep_copies(&mut self, _copies: &[Unit]) -> Result<(), EngineError> {
        Ok(())
    }
    fn recall(&mut self, units: &[Unit]) -> Result<(), EngineError>;
    fn run_step(
        &mut self,
        plan: &Plan,
        step: Step,
        link: &Arc<dyn Link>,
        deadline: Instant,
    ) -> Result<StepReport, StepFailure>;
    /// One that reads nothing lacks nothing.
    fn lacks_data(&self) -> bool {
        false
    }
    fn apply(&mut self, decision: &Decision, units: &[Unit]) -> Result<(), EngineError>;
    fn apply_in_background(
        &mut self,
        decision: &Decision,
        unit: Unit,
        gradient: Vec<f32>,
        done: Done,
    ) -> Result<(), EngineError>;
}

impl Compute for Engine {
    fn initialise(&mut self, unit: Unit) -> Result<(), EngineError> {
        Engine::initialise(self, unit)
    }

    fn import(&mut self, unit: Unit, state: &UnitState) -> Result<(), EngineError> {
        Engine::import(self, unit, state)
    }

    fn adopt(&mut self, unit: Unit, id: StateId, state: &UnitState) -> Result<bool, EngineError> {
        Engine::adopt(self, unit, id, state)
    }

    fn adopter(&self) -> Option<Adopter> {
        Some(Engine::adopter(self))
    }

    fn take_adopted(&mut self, waits: bool) -> Result<Vec<(Unit, bool)>, EngineError> {
        Engine::take_adopted(self, waits)
    }

    fn snapshot(&self, unit: Unit) -> Result<UnitSnapshot, EngineError> {
        Engine::snapshot(self, unit)
    }

    fn share(&self, unit: Unit) -> Result<UnitSnapshot, EngineError> {
        Engine::share(self, unit)
    }

    fn gradient(&self, unit: Unit) -> Result<Vec<f32>, EngineError> {
        Engine::gradient(self, unit)
    }

    fn free(&mut self, keep: &[Unit]) -> Result<(), EngineError> {
        Engine::free(self, keep)
    }

    fn keep_copies(&mut self, copies: &[Unit]) -> Result<(), EngineError> {
        Engine::keep_copies(self, copies)
    }

    fn recall(&mut self, units: &[Unit]) -> Result<(), EngineError> {
        Engine::recall(self, units)
    }

    fn run_step(
        &mut self,
        plan: &Plan,
        step: Step,
        link: &Arc<dyn Link>,
        deadline: Instant,
    ) -> Result<StepReport, StepFailure> {
        Engine::run_step(self, plan, step, link, deadline)
    }

    fn lacks_data(&self) -> bool {
        Engine::lacks_data(self)
    }

    fn apply(&mut self, decision: &Decision, units: &[Unit]) -> Result<(), EngineError> {
        Engine::apply(self, decision, units)
    }

    fn apply_in_background(
        &mut self,
        decision: &Decision,
        unit: Unit,
        gradient: Vec<f32>,
        done: Done,
    ) -> Result<(), EngineError> {
        Engine::apply_in_background(self, decision, unit, gradient, done)
    }
}
