//! The begin of a plan's first step whose members do not all have their state yet (ADR 43): who has a unit sends its parameters, in the format
//! that is computed in, to those that wait for its state, and what the optimizer has counted.
//!
//! All workers send and take the pieces in one order: the first pieces of all units, then the second ones, and so on, so that all receivers of
//! a worker get theirs at the same time. A piece is taken when those [`AHEAD`] places behind it are sent. So no two workers wait for each
//! other: who is behind all others in this order waits only for what is sent already. That also bounds how far a worker is ahead that takes
//! pieces itself. One that only sends is ahead until the queue of the connection, and what may wait at its receiver from one sender, are full.

mod progress;

use super::super::EngineError;
use super::Run;
use super::gather::PIECE;
use crate::state::{Computing, size};
use crate::transport::{LinkError, Tag};
use progress::{NUMBERS, decoded, encoded};
use std::collections::VecDeque;
use std::ops::Range;
use tch::{Kind, Tensor};
use varuna_plan::{OptimizerProgress, Plan, Step, Unit, WorkerId};
use varuna_torch::{TorchError, vec_from_tensor};

/// How many pieces, of all units together, are sent before the first is waited for: 64 MiB in single precision, far less than may wait at a
/// receiver from one sender.
const AHEAD: usize = 64;
/// The number of the message with the optimizer's counters. No unit has as many pieces.
const PROGRESS: u32 = u32::MAX;

/// A part of a unit's parameters that this worker sends or takes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    /// Its place in the order of the pieces of all units, whoever sends them.
    place: usize,
    unit: Unit,
    number: u32,
    elements: Range<usize>,
    way: Way,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Way {
    To(Vec<WorkerId>),
    From(WorkerId),
}

/// Which way the parameters of a unit go, if this worker sends or takes them.
fn way_of(plan: &Plan, me: WorkerId, unit: Unit, step: Step) -> Option<Way> {
    if let Some(from) = plan.parameters_sender(me, unit, step) {
        return Some(Way::From(from));
    }
    let receivers = plan.parameters_receivers(me, unit, step);
    (!receivers.is_empty()).then_some(Way::To(receivers))
}

/// A worker's pieces, in the order in which all workers send and take theirs. `units`: all units, each with its elements, and which way they go.
fn pieces(units: &[(Unit, usize, Option<Way>)]) -> Vec<Piece> {
    let longest = units.iter().map(|(_, elements, _)| elements.div_ceil(PIECE));
    let longest = longest.max().unwrap_or(0);
    let (mut place, mut all) = (0, Vec::new());
    for number in 0..longest {
        for (unit, elements, way) in units {
            let start = number * PIECE;
            if start >= *elements {
                continue;
            }
            if let Some(way) = way {
                all.push(Piece {
                    place,
                    unit: *unit,
                    number: u32::try_from(number).unwrap_or(u32::MAX),
                    elements: start..(start + PIECE).min(*elements),
                    way: way.clone(),
                });
            }
            place += 1;
        }
    }
    all
}

impl Run<'_> {
    /// Sends and takes parameters of units whose state their receivers wait for.
    pub(super) fn gather_first(&mut self, units: Computing<'_>) -> Result<(), EngineError> {
        let (plan, me, config) = (self.plan, self.config.me, self.config);
        let all = plan.layout.all_units().map(|unit| {
            let elements = config.model.unit(unit).elements();
            (unit, elements, way_of(plan, me, unit, self.step))
        });
        let all: Vec<_> = all.collect();
        self.exchange_progress(units, &all)?;
        let mut awaited: VecDeque<Piece> = VecDeque::new();
        for piece in pieces(&all) {
            let is_due = |first: &mut Piece| first.place + AHEAD <= piece.place;
            while let Some(due) = awaited.pop_front_if(is_due) {
                self.take_first(units, &due)?;
            }
            match &piece.way {
                Way::To(receivers) => self.send_first(units, &piece, receivers)?,
                Way::From(_) => awaited.push_back(piece),
            }
        }
        awaited.iter().try_for_each(|piece| self.take_first(units, piece))
    }

    /// What the optimizer has counted is sent before the parameters. A worker that holds nothing needs it for the step.
    fn exchange_progress(
        &mut self,
        units: Computing<'_>,
        all: &[(Unit, usize, Option<Way>)],
    ) -> Result<(), EngineError> {
        for (unit, _, way) in all {
            if let Some(Way::To(receivers)) = way {
                let held = units.held(*unit).ok_or(EngineError::NotHeld(*unit))?;
                let numbers = self.as_computed(Tensor::from_slice(&encoded(held.progress())))?;
                self.send_to(receivers, self.tag(*unit, PROGRESS), &numbers)?;
            }
        }
        // Of the units that are held here, if there are some.
        let lacks = |unit: &Unit| {
            self.plan
                .parameters_sender(self.config.me, *unit, self.step)
                .is_some()
        };
        let holds_some = self.plan.units(self.config.me).iter().any(|unit| !lacks(unit));
        let mut known = holds_some.then_some(self.before);
        for (unit, _, way) in all {
            if let Some(Way::From(from)) = way {
                let came = self.receive_progress(*unit, *from)?;
                let expected = *known.get_or_insert(came);
                if came != expected {
                    let why = format!("{came:?}, where other units are at {expected:?}");
                    let (from, unit) = (*from, *unit);
                    return Err(LinkError::Progress { from, unit, why }.into());
                }
            }
        }
        self.before = known.unwrap_or(self.before);
        Ok(())
    }

    fn receive_progress(&mut self, unit: Unit, from: WorkerId) -> Result<OptimizerProgress, EngineError> {
        let numbers = self
            .exchange
            .receive(from, self.tag(unit, PROGRESS), &[NUMBERS])?;
        let numbers = numbers.f_to_device(tch::Device::Cpu);
        let numbers = numbers.and_then(|t| t.f_to_kind(Kind::Float)).map_err(refused)?;
        let decoded = decoded(&vec_from_tensor::<f32>(&numbers)?);
        decoded.map_err(|why| LinkError::Progress { from, unit, why }.into())
    }

    /// Sends a piece as it is computed with, from the masters: their copy in a narrower format has the same bits, and not every unit has one.
    fn send_first(
        &mut self,
        units: Computing<'_>,
        piece: &Piece,
        receivers: &[WorkerId],
    ) -> Result<(), EngineError> {
        let held = units.held(piece.unit).ok_or(EngineError::NotHeld(piece.unit))?;
        let (start, length) = (size(piece.elements.start), size(piece.elements.len()));
        let values = held
            .weights()
            .detach()
            .f_narrow(0, start, length)
            .map_err(refused)?;
        let values = self.as_computed(values)?;
        self.send_to(receivers, self.tag(piece.unit, piece.number), &values)
    }

    /// Values in the format that is computed in, on the device: a spare copy beside a GPU lies in the host's memory.
    fn as_computed(&self, values: Tensor) -> Result<Tensor, EngineError> {
        let backend = &self.config.backend;
        let narrow = values.f_to_kind(backend.numerics.compute()).map_err(refused)?;
        Ok(narrow.f_to_device(backend.device.tensors()).map_err(refused)?)
    }

    fn send_to(&mut self, receivers: &[WorkerId], tag: Tag, values: &Tensor) -> Result<(), EngineError> {
        let mut receivers = receivers.iter();
        receivers.try_for_each(|to| self.exchange.send(*to, tag, values))
    }

    fn take_first(&mut self, units: Computing<'_>, piece: &Piece) -> Result<(), EngineError> {
        let Way::From(from) = piece.way else {
            return Ok(());
        };
        let here = units.gathered().get(&piece.unit);
        let here = here.ok_or(EngineError::NotHeld(piece.unit))?;
        let tag = self.tag(piece.unit, piece.number);
        let values = self.exchange.receive(from, tag, &[piece.elements.len()])?;
        Ok(here.take(piece.elements.clone(), &values)?)
    }

    fn tag(&self, unit: Unit, piece: u32) -> Tag {
        Tag::Parameters {
            step: self.step,
            unit,
            piece,
        }
    }
}

fn refused(error: tch::TchError) -> TorchError {
    TorchError(error.to_string())
}

#[cfg(test)]
mod tests;
