//! State that comes here and goes again: initial values, the state of peers and checkpoints; and where it lies.
//!
//! The device may have no room for a unit that comes, above all before a plan starts: until then a worker holds its former units as well. Such a unit lies in the
//! host's memory, where peers and checkpoints read it as any other. So this worker holds it, whatever becomes of the plan. The first step
//! that needs the unit brings it to the device, or fails for lack of memory, which is reported as that of any other step.

use super::panics::caught;
use super::without_memory::{give_back, shortage, without_room};
use super::{Engine, EngineConfig, EngineError};
use crate::memory::make_room;
use crate::state::{UnitBuffers, UnitState, on_device, size};
use varuna_plan::{OptimizerProgress, Unit};
use varuna_protocol::MemoryShortage;
use varuna_torch::{Device, TorchError};

/// These buffers with a unit's state.
pub(super) fn imported(mut buffers: UnitBuffers, state: &UnitState) -> Result<UnitBuffers, EngineError> {
    buffers.import(state)?;
    Ok(buffers)
}

/// A unit's state in the host's memory, which nobody computes with.
pub(super) fn imported_on_host(
    config: &EngineConfig,
    unit: Unit,
    state: &UnitState,
) -> Result<UnitBuffers, EngineError> {
    let made = caught(|| imported(config.empty_on_host(unit)?, state));
    made.map_err(|error| no_room_on_host(unit, error))
}

/// The error as what it is for a unit in the host's memory, whatever the device is.
fn no_room_on_host(unit: Unit, error: EngineError) -> EngineError {
    without_room(Device::Cpu, unit, error)
}

/// Where a unit's state comes from.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// The job's seed, or a user-defined model.
    Initial,
    /// A peer, a checkpoint, or the host's memory.
    State(&'a UnitState),
}

impl Engine {
    /// Makes the unit's initial state, from the job's seed or from a user-defined model: the same bits on every worker. What is held of the unit
    /// is given up.
    ///
    /// # Errors
    /// libtorch refuses, there is no memory for it on the host either, or the model's values cannot be read.
    pub fn initialise(&mut self, unit: Unit) -> Result<(), EngineError> {
        self.load(unit, Origin::Initial)
    }

    /// Takes over a unit's state. What is held of the unit is given up.
    ///
    /// # Errors
    /// The state is of another size, libtorch refuses, or there is no memory for it on the host either.
    pub fn import(&mut self, unit: Unit, state: &UnitState) -> Result<(), EngineError> {
        self.load(unit, Origin::State(state))
    }

    /// Units held, in order.
    #[must_use]
    pub fn held(&self) -> Vec<Unit> {
        let here = self.units.keys();
        let mut held: Vec<Unit> = here.chain(self.beside.units_in_background()).copied().collect();
        held.sort_unstable();
        held
    }

    /// Drops the state of all other units, the tensors for computing their segments, and the pinned memory for copies of them.
    ///
    /// # Errors
    /// As [`Engine::recall`], or the device's driver reports an error.
    pub fn free(&mut self, keep: &[Unit]) -> Result<(), EngineError> {
        let away: Vec<Unit> = self.beside.units_in_background().iter().copied().collect();
        self.recall(&away)?;
        self.units.retain(|u, _| keep.contains(u));
        self.reduced.retain(keep);
        let layout = self.config.layout();
        let is_kept = |whole: &Unit| keep.iter().any(|unit| layout.whole_of(*unit) == *whole);
        // The next step makes what it lacks. A worker without a stage runs no step that would free the rest.
        self.gathered.retain(|whole, _| is_kept(whole));
        self.initial = None;
        self.config.backend.streams.release_unused();
        Ok(make_room(self.config.backend.device)?)
    }

    /// Brings those of these units to the device that lie in the host's memory while the device has its own.
    ///
    /// # Errors
    /// As libtorch says: the device still has no room, for example. The unit stays where it is.
    pub(super) fn place(&mut self, units: &[Unit]) -> Result<(), EngineError> {
        if self.config.backend.device.is_host() {
            return Ok(());
        }
        for unit in units {
            let Some(waiting) = self.units.get(unit).filter(|held| held.is_on_host()) else {
                continue;
            };
            let state = waiting.export().map_err(|e| EngineError::of_buffer(*unit, e))?;
            let buffers = self.made(*unit, Origin::State(&state))?;
            self.units.insert(*unit, buffers);
            tracing::info!(%unit, "the device has room now for a unit that was in the host's memory");
        }
        Ok(())
    }

    /// Loads a unit to the device, or to the host's memory if it is a spare copy or the device has no room for it.
    fn load(&mut self, unit: Unit, from: Origin<'_>) -> Result<(), EngineError> {
        self.units.remove(&unit);
        self.reduced.forget(unit);
        let buffers = match self.copies.contains(&unit) {
            true => self.made_on_host(unit, from)?,
            false => self.made_where_there_is_room(unit, from)?,
        };
        self.units.insert(unit, buffers);
        Ok(())
    }

    /// Makes a unit on the device, or in the host's memory if the device has no room for it.
    fn made_where_there_is_room(&mut self, unit: Unit, from: Origin<'_>) -> Result<UnitBuffers, EngineError> {
        let mut made = self.made(unit, from);
        if self.shortage_beside_host(&made).is_some() {
            self.initial = None;
            // What libtorch keeps may have room for masters that lie with what is dropped. Gradients that wait for the optimizer stay.
            give_back(&self.config.backend);
            self.drop_gathered();
            give_back(&self.config.backend);
            made = self.made(unit, from);
        }
        if let Some((shortage, why)) = self.shortage_beside_host(&made) {
            tracing::warn!(
                %unit,
                %shortage,
                why,
                "the device has no memory for the state of a unit, which lies in the host's memory until a step needs it"
            );
            self.initial = None;
            return self.made_on_host(unit, from);
        }
        let device = self.config.backend.device;
        made.map_err(|error| without_room(device, unit, error))
    }

    /// What is known of a lack of the device's memory, and what libtorch says of it, if that is why the unit is not made and the host has memory of
    /// its own.
    fn shortage_beside_host(
        &self,
        made: &Result<UnitBuffers, EngineError>,
    ) -> Option<(MemoryShortage, String)> {
        let device = self.config.backend.device;
        let error = made.as_ref().err().filter(|_| !device.is_host())?;
        shortage(device, error)
    }

    fn made(&mut self, unit: Unit, from: Origin<'_>) -> Result<UnitBuffers, EngineError> {
        caught(|| {
            let mut buffers = (self.empty)(&self.config, unit)?;
            self.fill(unit, &mut buffers, from)?;
            Ok(buffers)
        })
    }

    fn made_on_host(&mut self, unit: Unit, from: Origin<'_>) -> Result<UnitBuffers, EngineError> {
        let made = caught(|| {
            let mut buffers = self.config.empty_on_host(unit)?;
            self.fill(unit, &mut buffers, from)?;
            Ok(buffers)
        });
        made.map_err(|error| no_room_on_host(unit, error))
    }

    fn fill(&mut self, unit: Unit, buffers: &mut UnitBuffers, from: Origin<'_>) -> Result<(), EngineError> {
        match from {
            Origin::State(state) => Ok(buffers.import(state)?),
            Origin::Initial => {
                self.set_initial(unit, buffers)?;
                let scaling = &self.config.training.loss_scaling;
                buffers.set_progress(OptimizerProgress::initial(scaling));
                Ok(())
            }
        }
    }

    /// Gives zeroed buffers the initial values of their parameters.
    fn set_initial(&mut self, unit: Unit, buffers: &mut UnitBuffers) -> Result<(), EngineError> {
        if self.config.layout().ranges > 1 {
            return self.set_initial_range(unit, buffers);
        }
        let EngineConfig { model, training, .. } = &self.config;
        match model.initial_values(unit)? {
            Some(values) => buffers.set_values(&values)?,
            None => buffers.set_initial(&model.unit(unit), training.seed)?,
        }
        Ok(())
    }

    /// The same for a unit that is a range of a segment's.
    fn set_initial_range(&mut self, unit: Unit, buffers: &mut UnitBuffers) -> Result<(), EngineError> {
        let EngineConfig { model, training, .. } = &self.config;
        let whole = self.config.layout().whole_of(unit);
        if self.initial.as_ref().is_none_or(|(known, _)| *known != whole) {
            let backend = buffers.parameters().backend();
            let values = match model.initial_values(whole)? {
                Some(values) => on_device(values, backend)?,
                None => model.unit(whole).initial_values(backend, training.seed)?,
            };
            self.initial = Some((whole, values));
        }
        let elements = self.config.elements_of(unit);
        if let Some((_, values)) = &self.initial {
            let refused = |e: tch::TchError| TorchError(e.to_string());
            let (start, length) = (size(elements.start), size(elements.len()));
            buffers.set_parameters(&values.f_narrow(0, start, length).map_err(refused)?)?;
        }
        Ok(())
    }
}
