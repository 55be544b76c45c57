//! The engine: owns the device state, runs steps by the plan's schedule, applies decisions.
//!
//! It decides nothing: which step, which plan and whether a step counts come from outside. It must never talk to the
//! coordinator; peers only through [`Link`].

mod adopting;
mod background_updates;
mod compute;
mod config;
mod error;
mod gathered;
mod host_copies;
mod loading;
mod masked;
mod optimizer;
mod panics;
mod parameters_first;
mod read_ahead;
mod reduced;
mod samples;
mod step;
mod without_memory;

pub use adopting::Adopter;
pub use background_updates::Done;
pub use compute::Compute;
pub use config::EngineConfig;
pub use error::EngineError;
pub(crate) use masked::{hide, leave_targets};
pub(crate) use panics::panic_message;
use samples::Split;
pub use samples::{SampleError, SamplePart, Samples};
pub use step::Timeline;

use crate::model::{ExportedError, Tables};
use crate::read_failures::{BACKOFF, read_again};
use crate::state::{GatheredUnit, UnitBuffers, UnitSnapshot, UnitState};
use crate::transport::Link;
use adopting::AdoptedUnits;
use background_updates::BackgroundUpdates;
use optimizer::ReaderTimeouts;
use panics::caught;
use read_ahead::ReadAhead;
use reduced::Reduced;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use step::{Device, Ordered};
use varuna_plan::measured_step::measured_workers;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Generation, Plan, Step, Unit};
use varuna_torch::TorchError;

/// How long the optimizer waits for readers of the state that it would change: a copy or a digest, which take a second or two for
/// gigabytes. After that the reader hangs. The state can then neither change nor be reported, so the worker ends and a plan without it is
/// made. Everything else that a fence may wait for fits into the 45 s that a member waits for its engine.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(20);
/// When readers are asked to stop, which they do within a fraction of a second. Hundreds of gigabytes take longer to copy on all workers:
/// then the checkpoint is given up, not the workers.
const READERS_ASKED: Duration = Duration::from_secs(15);

/// Which step of a generation is measured task by task, counted from 0. It is not one of the first, which allocate memory.
const MEASURED: u32 = 2;

/// Where the time of a step went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTimings {
    /// Forwards, recomputed ones not counted.
    pub forward: Duration,
    /// Forwards that were run again.
    pub recompute: Duration,
    /// Backwards.
    pub backward: Duration,
    /// Waiting for activations and gradients.
    pub wait: Duration,
    /// From the end of the last backward to the last reduced gradient.
    pub reduce: Duration,
    /// The whole step without the optimizer.
    pub total: Duration,
}

/// What a [`SegmentTiming`] was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// A forward.
    Forward,
    /// A forward that was run again.
    Recompute,
    /// A backward; of the last segment with the loss.
    Backward,
}

/// One segment's work on one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentTiming {
    /// Number of the segment.
    pub segment: u32,
    /// Kind of work.
    pub work: Work,
    /// Samples in the micro-batch.
    pub samples: u32,
    /// Duration of the work.
    pub took: Duration,
}

/// A step up to its reduced gradients.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Every unit of this worker with its part of the norm.
    pub prepared: Vec<(Unit, UnitNorm)>,
    /// Durations of the parts of the step.
    pub timings: StepTimings,
    /// The same by segment and micro-batch, in the order of the work.
    pub segment_timings: Vec<SegmentTiming>,
    /// When each task ran, where this step is measured.
    pub timeline: Option<Timeline>,
    /// The most tasks that waited on the device when it was given another one: a fence waits for them. 0 on the CPU.
    pub tasks_ahead: usize,
}

/// A step that ended early.
#[derive(Clone, Debug)]
pub struct StepFailure {
    /// Error that ended the step.
    pub error: EngineError,
    /// Units whose gradients were completely reduced before.
    pub prepared: Vec<(Unit, UnitNorm)>,
}

/// Device state and the means to move it on.
pub struct Engine {
    config: EngineConfig,
    /// On the device; but spare copies that are kept in the host's memory, and units for which the device had no room, have buffers there.
    units: BTreeMap<Unit, UnitBuffers>,
    /// Where units are ranges of segments: what the segments of this worker's stages are computed with, by unit of the undivided layout. Also,
    /// during a step, the units that it computes without their state.
    gathered: BTreeMap<Unit, GatheredUnit>,
    /// The initial values of the undivided unit whose range was made last: its other ranges are mostly made next.
    initial: Option<(Unit, tch::Tensor)>,
    /// Units whose spare copies are kept here, in the host's memory. Empty where they are kept on the device.
    copies: BTreeSet<Unit>,
    /// Gradients of the last step, until they are applied.
    reduced: Reduced,
    /// Units that were adopted beside a step.
    adopted: Arc<AdoptedUnits>,
    beside: BackgroundUpdates,
    reader: ReadAhead,
    tables: Tables,
    /// How many steps of the newest generation were begun.
    begun: (Generation, u32),
    /// [`READERS_ASKED`] and [`SNAPSHOT_WAIT`], but in tests.
    reader_timeouts: ReaderTimeouts,
    /// Zeroed buffers on the device: [`EngineConfig::empty`], but in tests.
    empty: fn(&EngineConfig, Unit) -> Result<UnitBuffers, TorchError>,
    /// Tensors for computing a unit whose parameters others send: [`EngineConfig::gathered`], but in tests.
    gathered_empty: fn(&EngineConfig, Unit) -> Result<GatheredUnit, TorchError>,
}

impl Engine {
    /// An engine without state.
    #[must_use]
    pub fn new(config: EngineConfig) -> Engine {
        Engine {
            reader: ReadAhead::of(&config),
            config,
            units: BTreeMap::new(),
            gathered: BTreeMap::new(),
            initial: None,
            copies: BTreeSet::new(),
            reduced: Reduced::default(),
            adopted: Arc::default(),
            beside: BackgroundUpdates::default(),
            tables: Tables::default(),
            begun: (Generation(0), 0),
            reader_timeouts: ReaderTimeouts {
                asks_after: READERS_ASKED,
                ends_after: SNAPSHOT_WAIT,
            },
            empty: EngineConfig::empty,
            gathered_empty: EngineConfig::gathered,
        }
    }

    /// A copy of the unit's state.
    ///
    /// # Errors
    /// The unit is not held.
    pub fn export(&self, unit: Unit) -> Result<UnitState, EngineError> {
        self.held_unit(unit)?
            .export()
            .map_err(|e| EngineError::of_buffer(unit, e))
    }

    /// The unit's state as it is now, to be copied out beside the next step.
    ///
    /// # Errors
    /// The unit is not held.
    pub fn snapshot(&self, unit: Unit) -> Result<UnitSnapshot, EngineError> {
        self.held_unit(unit)?
            .snapshot()
            .map_err(|e| EngineError::of_buffer(unit, e))
    }

    /// The unit's state itself, for readers while no state changes, which may take as long as a network needs. The first step of a plan may be
    /// computed meanwhile.
    ///
    /// # Errors
    /// The unit is not held.
    pub fn share(&self, unit: Unit) -> Result<UnitSnapshot, EngineError> {
        let shared = self.held_unit(unit)?.share();
        shared.map_err(|e| EngineError::of_buffer(unit, e))
    }

    /// A copy of the unit's reduced gradient for followers of the unit: one element for each parameter element, in their order. It must be
    /// taken before the step's decision is applied, because that scales the gradient in place.
    ///
    /// # Errors
    /// The unit is neither held nor computed without its state, or its gradient is with the reduction.
    pub fn gradient(&self, unit: Unit) -> Result<Vec<f32>, EngineError> {
        let copy = match self.reduced.waiting.get(&unit) {
            Some(waiting) => waiting.copy(),
            None => self.held_unit(unit)?.gradient(),
        };
        copy.map_err(|e| EngineError::of_buffer(unit, e))
    }

    /// See [`Engine::run_step`].
    fn try_step(
        &mut self,
        plan: &Plan,
        step: Step,
        link: &Arc<dyn Link>,
        deadline: Instant,
    ) -> Result<StepReport, StepFailure> {
        let mut prepared = Vec::new();
        self.reduced = Reduced::default();
        let units = self.with_state(plan, step);
        let begun = self
            .read_code(plan, link, deadline)
            .and_then(|()| self.recall_sent(plan, step))
            .and_then(|()| self.recall(&units));
        if let Err(error) = begun.and_then(|()| self.place(&units)) {
            return Err(StepFailure { error, prepared });
        }
        let ordered = Ordered {
            plan,
            step,
            link,
            deadline,
            is_measured: self.is_measured(plan),
        };
        self.initial = None;
        let made = caught(|| {
            self.make_gathered(plan)?;
            self.make_without_state(plan, step)
        });
        if let Err(error) = made {
            return Err(StepFailure { error, prepared });
        }
        let device = Device {
            units: &mut self.units,
            gathered: &self.gathered,
            reader: &mut self.reader,
            tables: &self.tables,
        };
        let result = step::run(&self.config, device, &mut prepared, &ordered);
        prepared.sort_by_key(|(u, _)| *u);
        self.keep_reduced(plan, step, &prepared);
        match result {
            Ok(done) => Ok(StepReport {
                prepared,
                timings: done.timings,
                segment_timings: done.segment_timings,
                timeline: done.timeline,
                tasks_ahead: done.tasks_ahead,
            }),
            Err(error) => Err(StepFailure { error, prepared }),
        }
    }

    /// Reads the code of the segments of this worker's stages, where that was not done before. A file system that is away must not end the worker
    /// with its state, nor make one recovery after the other: it is asked again within the step, as for a sample.
    fn read_code(&self, plan: &Plan, link: &Arc<dyn Link>, deadline: Instant) -> Result<(), EngineError> {
        let Some((pipeline, stages)) = plan.shape.stages_of(self.config.me) else {
            return Ok(());
        };
        let of = |stage: usize| plan.shape.pipelines[pipeline].stages[stage].segments;
        let mut segments = stages.iter().flat_map(|stage| of(*stage).start..of(*stage).end);
        let mut wanted = || !link.is_aborted() && Instant::now() < deadline;
        segments.try_for_each(|segment| {
            let read = || self.config.model.read_segment(segment);
            let done = read_again(
                BACKOFF,
                &format_args!("the code of segment {segment}"),
                &mut wanted,
                ExportedError::may_pass,
                read,
            );
            done.map_err(EngineError::of_code)
        })
    }

    /// Whether the step of this plan that begins is the one that is measured. All members begin a generation with the same step, so that
    /// they choose the same one.
    fn is_measured(&mut self, plan: &Plan) -> bool {
        if self.begun.0 != plan.generation {
            self.begun = (plan.generation, 0);
        }
        let before = self.begun.1;
        self.begun.1 = before.saturating_add(1);
        before == MEASURED && measured_workers(&plan.shape).contains(&self.config.me)
    }

    /// Whether data of samples that the engine needs has not come for long, or cannot be read.
    #[must_use]
    pub fn lacks_data(&self) -> bool {
        self.reader.is_late()
    }

    /// The unit's master parameters by name, for export and tests.
    ///
    /// # Errors
    /// The unit is not held.
    pub fn parameters(&self, unit: Unit) -> Result<Vec<(String, tch::Tensor)>, EngineError> {
        let held = self.held_unit(unit)?;
        let copies = held.masters().into_iter();
        Ok(copies.map(|(name, t)| (name.to_owned(), t.copy())).collect())
    }

    /// A hash of the unit's master parameters: equal hashes mean equal bits, but for chance.
    ///
    /// # Errors
    /// The unit is not held.
    pub fn parameters_digest(&self, unit: Unit) -> Result<u64, EngineError> {
        self.held_unit(unit)?
            .parameters_digest()
            .map_err(|e| EngineError::of_buffer(unit, e))
    }

    fn held_unit(&self, unit: Unit) -> Result<&UnitBuffers, EngineError> {
        self.units.get(&unit).ok_or(EngineError::NotHeld(unit))
    }
}

#[cfg(test)]
mod tests;
