//! State that is adopted beside a running step: a separate thread makes a unit's buffers from it, and the engine takes them before it does
//! anything else than the step. So who waits for the adoption does not wait for the step, which may itself wait for other workers.

use super::loading::{imported, imported_on_host};
use super::panics::{caught, panic_message};
use super::without_memory::{give_back, shortage, without_room};
use super::{Done, Engine, EngineConfig, EngineError};
use crate::state::{UnitBuffers, UnitState};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use varuna_plan::{StateId, Unit};
use varuna_torch::TorchError;

/// A unit, its state's id and its buffers.
type Adopted = (Unit, StateId, UnitBuffers);

/// Units that were adopted and that the engine has not taken yet.
#[derive(Default)]
pub(super) struct AdoptedUnits {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Units that are given to the thread, and about which it has not said that it is done.
    pending: usize,
    made: Vec<Adopted>,
}

impl AdoptedUnits {
    /// The units that are made, in their order; with `waits`, once none is pending.
    pub(super) fn take(&self, waits: bool) -> Vec<Adopted> {
        let mut state = self.state.lock();
        while waits && state.pending > 0 {
            self.ended.wait(&mut state);
        }
        std::mem::take(&mut state.made)
    }
}

/// Counts a unit as pending for as long as it lives: also where the thread ends without it.
struct Pending(Arc<AdoptedUnits>);

impl Pending {
    fn new(of: &Arc<AdoptedUnits>) -> Pending {
        of.state.lock().pending += 1;
        Pending(Arc::clone(of))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.state.lock().pending -= 1;
        self.0.ended.notify_all();
    }
}

/// A unit to adopt.
struct Job {
    unit: Unit,
    id: StateId,
    state: UnitState,
    done: Done,
    pending: Pending,
}

/// What the thread makes units with.
#[derive(Clone)]
struct Maker {
    config: EngineConfig,
    empty: fn(&EngineConfig, Unit) -> Result<UnitBuffers, TorchError>,
}

/// Adopts units for an engine, from another thread than the engine's.
pub struct Adopter {
    maker: Maker,
    adopted: Arc<AdoptedUnits>,
    /// The thread's queue. It starts with the first unit, because most workers never need it.
    jobs: Option<Sender<Job>>,
}

impl Engine {
    /// Adopts units beside this engine's steps. [`Engine::take_adopted`] must be called before anything else is done with a unit of it, except a
    /// step that computes the unit without its state.
    #[must_use]
    pub fn adopter(&self) -> Adopter {
        Adopter {
            maker: Maker {
                config: self.config.clone(),
                empty: self.empty,
            },
            adopted: Arc::clone(&self.adopted),
            jobs: None,
        }
    }
}

impl Adopter {
    /// Has the state `id` of a unit taken over. `done` is told from another thread, before anybody who waits in [`Engine::take_adopted`] goes on.
    ///
    /// # Errors
    /// The thread does not start, or has ended. What else may be wrong, `done` is told; then the unit is not adopted.
    pub fn adopt(
        &mut self,
        unit: Unit,
        id: StateId,
        state: UnitState,
        done: Done,
    ) -> Result<(), EngineError> {
        let jobs = match &mut self.jobs {
            Some(jobs) => jobs,
            none => none.insert(start(self.maker.clone())?),
        };
        let job = Job {
            unit,
            id,
            state,
            done,
            pending: Pending::new(&self.adopted),
        };
        let ended = || EngineError::Panicked("the thread that adopts units beside the step has ended".into());
        jobs.send(job).map_err(|_| ended())
    }
}

fn start(maker: Maker) -> Result<Sender<Job>, EngineError> {
    let (jobs, inbox) = channel();
    let thread = std::thread::Builder::new().name("adopt-units".into());
    let started = thread.spawn(move || {
        // The others compute the step.
        tch::set_num_threads(1);
        serve(&maker, &inbox);
    });
    match started {
        Ok(_) => Ok(jobs),
        Err(error) => Err(EngineError::Thread("adopt-units", error.to_string())),
    }
}

/// Makes units until nobody can ask for one any more.
fn serve(maker: &Maker, inbox: &Receiver<Job>) {
    while let Ok(job) = inbox.recv() {
        let Job {
            unit,
            id,
            state,
            done,
            pending,
        } = job;
        let made = catch_unwind(AssertUnwindSafe(|| maker.make(unit, &state)));
        let made = made.unwrap_or_else(|panic| Err(EngineError::Panicked(panic_message(&*panic))));
        done(made.map(|buffers| pending.0.state.lock().made.push((unit, id, buffers))));
    }
}

impl Maker {
    /// A unit on the device, or in the host's memory if the device has no room for it beside the step.
    fn make(&self, unit: Unit, state: &UnitState) -> Result<UnitBuffers, EngineError> {
        let backend = &self.config.backend;
        let on_device = || caught(|| imported((self.empty)(&self.config, unit)?, state));
        let is_full = |made: &Result<UnitBuffers, EngineError>| {
            let error = made.as_ref().err().filter(|_| !backend.device.is_host());
            error.is_some_and(|error| shortage(backend.device, error).is_some())
        };
        let mut made = on_device();
        if is_full(&made) {
            give_back(backend);
            made = on_device();
        }
        if is_full(&made) {
            tracing::warn!(
                %unit,
                "the device has no memory beside the step for the state of a unit, which lies in the host's memory until it is needed"
            );
            return imported_on_host(&self.config, unit, state);
        }
        made.map_err(|error| without_room(backend.device, unit, error))
    }
}

#[cfg(test)]
mod tests;
