//! A separate thread applies gradients to units that only follow other workers, such as spare copies, in parallel with the running step. So
//! a step waits only for the optimizer of its own units.
//!
//! The thread owns such a unit's buffers from the first gradient until the engine takes them back. Taking them back waits for all gradients
//! that were given before. It has only units in the host's memory: on a GPU all work has one order.

use super::optimizer::{self, ReaderTimeouts};
use super::panics::{caught, panic_message};
use super::without_memory::torn;
use super::{Engine, EngineConfig, EngineError};
use crate::state::UnitBuffers;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use varuna_api::Training;
use varuna_plan::{Decision, Unit};
use varuna_torch::Device;

/// Threads of the optimizer for copies beside a GPU, whose host has some cores for each. With one, a copy of a large stage would need longer
/// for a gradient than the stage for a step.
const THREADS_BESIDE_GPU: i32 = 4;

/// Is called when a gradient is applied, or with the reason if it is not: then the unit's state cannot be trusted.
pub type Done = Box<dyn FnOnce(Result<(), EngineError>) + Send>;

impl Engine {
    /// Takes these units back, with all gradients of [`Engine::apply_in_background`] applied. This must be called before anything else is done
    /// with them, except a step.
    ///
    /// # Errors
    /// The thread that applies them has ended; the process must, too.
    pub fn recall(&mut self, units: &[Unit]) -> Result<(), EngineError> {
        for unit in units {
            if let Some(buffers) = self.beside.recall(*unit)? {
                self.units.insert(*unit, buffers);
            }
        }
        Ok(())
    }

    /// As [`Engine::apply_forwarded`], beside the next step if the unit is in the host's memory and may stay there: `done` is told from another
    /// thread. A GPU has one order of its work; there it is done at once.
    ///
    /// # Errors
    /// The thread does not start, or has ended. What else may be wrong, `done` is told.
    pub fn apply_in_background(
        &mut self,
        decision: &Decision,
        unit: Unit,
        gradient: Vec<f32>,
        done: Done,
    ) -> Result<(), EngineError> {
        let EngineConfig {
            training, backend, ..
        } = &self.config;
        self.reduced.forget(unit);
        let has_equal_bits =
            backend.device.is_host() || backend.has_equal_bits_on_host(training.optimizer.rule);
        let held = self.units.get(&unit);
        if held.is_some_and(|held| !(held.is_on_host() && has_equal_bits)) {
            done(self.apply_forwarded(decision, unit, gradient));
            return Ok(());
        }
        // The thread changes the state while this one may write to what a segment is computed with.
        if let Err(error) = caught(|| self.stand_alone(std::iter::once(unit))) {
            done(Err(error));
            return Ok(());
        }
        let buffers = self.units.remove(&unit);
        if buffers.is_none() && !self.beside.units_in_background().contains(&unit) {
            return Err(EngineError::NotHeld(unit));
        }
        let decision = *decision;
        let forwarded = Forwarded {
            unit,
            decision,
            gradient,
            reader_timeouts: self.reader_timeouts,
            done,
        };
        let threads = threads_beside(self.config.backend.device);
        self.beside
            .apply((&self.config.training, threads), buffers, forwarded)
    }
}

/// Threads of the optimizer for copies. Where the processor computes the steps, the cores are theirs.
fn threads_beside(device: Device) -> i32 {
    match device {
        Device::Cpu | Device::CpuSeparateMemory => 1,
        Device::Cuda(_) => THREADS_BESIDE_GPU,
    }
}

/// A gradient to apply.
struct Forwarded {
    unit: Unit,
    decision: Decision,
    /// Empty where the step is skipped.
    gradient: Vec<f32>,
    /// How long the update waits for those who still read the unit's state.
    reader_timeouts: ReaderTimeouts,
    done: Done,
}

enum Job {
    Take(Unit, Box<UnitBuffers>),
    Apply(Forwarded),
    Return(Unit),
}

struct Thread {
    jobs: Sender<Job>,
    returned: Receiver<UnitBuffers>,
}

/// The engine's side.
#[derive(Default)]
pub(super) struct BackgroundUpdates {
    /// The thread. It starts with the first gradient, because most workers never follow another.
    thread: Option<Thread>,
    away: BTreeSet<Unit>,
}

impl BackgroundUpdates {
    /// The units that the thread has.
    pub(super) fn units_in_background(&self) -> &BTreeSet<Unit> {
        &self.away
    }

    /// Gives a gradient to the thread, and the unit's buffers where it has not got them.
    fn apply(
        &mut self,
        (training, threads): (&Training, i32),
        buffers: Option<UnitBuffers>,
        forwarded: Forwarded,
    ) -> Result<(), EngineError> {
        let unit = forwarded.unit;
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(Thread::start(training.clone(), threads)?),
        };
        if let Some(buffers) = buffers {
            thread.give(Job::Take(unit, Box::new(buffers)))?;
            self.away.insert(unit);
        }
        thread.give(Job::Apply(forwarded))
    }

    /// The unit's buffers, once all gradients that were given before are applied; none where the thread has not got them.
    fn recall(&mut self, unit: Unit) -> Result<Option<UnitBuffers>, EngineError> {
        let Some(thread) = self.thread.as_ref().filter(|_| self.away.remove(&unit)) else {
            return Ok(None);
        };
        thread.give(Job::Return(unit))?;
        thread.returned.recv().map(Some).map_err(|_| ended())
    }
}

fn ended() -> EngineError {
    EngineError::Panicked("the thread that applies gradients beside the step has ended".into())
}

impl Thread {
    fn start(training: Training, threads: i32) -> Result<Thread, EngineError> {
        let ((jobs, inbox), (give_back, returned)) = (channel(), channel());
        let thread = std::thread::Builder::new().name("spare-copies".into());
        let started = thread.spawn(move || {
            tch::set_num_threads(threads);
            serve(&training, &inbox, &give_back);
        });
        match started {
            Ok(_) => Ok(Thread { jobs, returned }),
            Err(error) => Err(EngineError::Thread("spare-copies", error.to_string())),
        }
    }

    fn give(&self, job: Job) -> Result<(), EngineError> {
        self.jobs.send(job).map_err(|_| ended())
    }
}

/// Runs the jobs until the engine is gone.
fn serve(training: &Training, inbox: &Receiver<Job>, give_back: &Sender<UnitBuffers>) {
    let mut units = BTreeMap::new();
    while let Ok(job) = inbox.recv() {
        match job {
            Job::Take(unit, buffers) => {
                units.insert(unit, *buffers);
            }
            Job::Apply(forwarded) => {
                let Forwarded {
                    unit,
                    decision,
                    gradient,
                    reader_timeouts,
                    done,
                } = forwarded;
                let buffers = units.get_mut(&unit).ok_or(EngineError::NotHeld(unit));
                let applied = buffers.and_then(|buffers: &mut UnitBuffers| {
                    let device = buffers.parameters().backend().device;
                    let to = (unit, buffers);
                    let apply =
                        || optimizer::apply_forwarded(training, &decision, to, gradient, reader_timeouts);
                    catch_unwind(AssertUnwindSafe(|| caught(apply)))
                        .unwrap_or_else(|panic| Err(EngineError::Panicked(panic_message(&*panic))))
                        .map_err(|error| torn(device, unit, error))
                });
                if matches!(applied, Err(EngineError::Torn { .. })) {
                    // Nobody must take it back.
                    units.remove(&unit);
                }
                done(applied);
            }
            Job::Return(unit) => {
                let Some(buffers) = units.remove(&unit) else {
                    return;
                };
                if give_back.send(buffers).is_err() {
                    return;
                }
            }
        }
    }
}
