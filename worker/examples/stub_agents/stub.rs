//! An engine that computes nothing.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::Job;
use varuna_model::Transformer;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Moments, Plan, Step, Unit, WorkerId};
use varuna_worker::backend::Backend;
use varuna_worker::engine::{
    Compute, Done, EngineError, SegmentTiming, StepFailure, StepReport, StepTimings, Work,
};
use varuna_worker::numerics::Numerics;
use varuna_worker::state::{UnitBuffers, UnitSnapshot, UnitSpec, UnitState};
use varuna_worker::transport::Link;

/// An engine that takes its time and computes nothing.
pub(crate) struct Stub {
    pub(crate) me: WorkerId,
    pub(crate) step: Duration,
    /// The job's model; each of its units has only a few numbers here.
    pub(crate) model: Transformer,
}

impl Compute for Stub {
    fn initialise(&mut self, _: Unit) -> Result<(), EngineError> {
        Ok(())
    }

    fn import(&mut self, _: Unit, _: &UnitState) -> Result<(), EngineError> {
        Ok(())
    }

    fn snapshot(&self, unit: Unit) -> Result<UnitSnapshot, EngineError> {
        let zeros = UnitBuffers::new(
            &UnitSpec::of(&self.model, unit),
            Backend::of_processor(Numerics::FP32),
            Moments::Adam,
        )?;
        zeros.snapshot().map_err(|_| EngineError::Leased(unit))
    }

    fn gradient(&self, unit: Unit) -> Result<Vec<f32>, EngineError> {
        let zeros = UnitBuffers::new(
            &UnitSpec::of(&self.model, unit),
            Backend::of_processor(Numerics::FP32),
            Moments::Adam,
        )?;
        zeros.gradient().map_err(|_| EngineError::Leased(unit))
    }

    fn apply_in_background(
        &mut self,
        _: &Decision,
        _: Unit,
        _: Vec<f32>,
        done: Done,
    ) -> Result<(), EngineError> {
        done(Ok(()));
        Ok(())
    }

    fn recall(&mut self, _: &[Unit]) -> Result<(), EngineError> {
        Ok(())
    }

    fn free(&mut self, _: &[Unit]) -> Result<(), EngineError> {
        Ok(())
    }

    fn run_step(
        &mut self,
        plan: &Plan,
        _: Step,
        link: &Arc<dyn Link>,
        deadline: Instant,
    ) -> Result<StepReport, StepFailure> {
        let end = (Instant::now() + self.step).min(deadline);
        // Nothing comes: this ends with the time, or with a fence.
        let waited = link.recv_any(&BTreeSet::new(), end);
        waited.map_err(|error| StepFailure {
            error: error.into(),
            prepared: Vec::new(),
        })?;
        let norm = UnitNorm {
            norm2: 1.0,
            overflow: false,
            before: varuna_plan::OptimizerProgress::START,
            loss: 1.0,
            eval_loss: None,
        };
        let units = plan.units(self.me);
        let took = self.step / (2 * u32::try_from(units.len()).unwrap_or(1).max(1));
        let timing = |segment: u32, work| SegmentTiming {
            segment,
            work,
            samples: 1,
            took,
        };
        let works = [Work::Forward, Work::Backward];
        let segment_timings = units
            .iter()
            .flat_map(|unit| works.map(|work| timing(unit.0, work)));
        Ok(StepReport {
            segment_timings: segment_timings.collect(),
            timeline: None,
            tasks_ahead: 0,
            prepared: units.iter().map(|unit| (*unit, norm)).collect(),
            timings: StepTimings {
                forward: self.step / 2,
                backward: self.step / 2,
                total: self.step,
                ..StepTimings::default()
            },
        })
    }

    fn apply(&mut self, _: &Decision, _: &[Unit]) -> Result<(), EngineError> {
        Ok(())
    }
}

/// The job's model with the same units, but small: what is sent for a unit is a few numbers.
///
/// # Errors
/// The job's model is one of the user's own.
pub(crate) fn tiny(job: &Job) -> Result<Transformer> {
    let model = job
        .model
        .transformer()
        .context("spec.model.exported: this program plays workers of presets alone")?;
    Ok(Transformer {
        hidden_size: 8,
        heads: 1,
        sequence_length: 8,
        vocabulary_size: 16,
        ..model.clone()
    })
}
