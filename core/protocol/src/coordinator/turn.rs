//! The handling of one input: when it came, and the effects it has so far.

use super::config::{CoordinatorEffect, CoordinatorInput};
use super::event::Event;
use crate::message::{Order, Time};
use crate::record::Record;
use varuna_plan::WorkerId;

/// The workers whose status an input can have changed. Work that is done for each worker is done only for these: otherwise the work for one
/// message would grow with the number of workers, and the work for one step with its square.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Everyone's: the clock, the record, the store, the user.
    Everyone,
    /// The status of one worker.
    One(WorkerId),
}

impl Scope {
    pub(super) fn of(input: &CoordinatorInput) -> Self {
        match input {
            CoordinatorInput::Report { from, .. }
            | CoordinatorInput::Observed { from, .. }
            | CoordinatorInput::StreamUp { from, .. }
            | CoordinatorInput::StreamDown { from } => Scope::One(*from),
            CoordinatorInput::ProcessEnded { worker } | CoordinatorInput::Notice { worker, .. } => {
                Scope::One(*worker)
            }
            _ => Scope::Everyone,
        }
    }

    /// The workers of this ascending list that are within the scope.
    pub(super) fn among(self, workers: &[WorkerId]) -> &[WorkerId] {
        match self {
            Scope::Everyone => workers,
            Scope::One(worker) => match workers.binary_search(&worker) {
                Ok(i) => &workers[i..=i],
                Err(_) => &[],
            },
        }
    }
}

/// One input, and what follows from it.
pub(super) struct Turn<'a> {
    pub(super) now: Time,
    pub(super) scope: Scope,
    pub(super) effects: &'a mut Vec<CoordinatorEffect>,
}

impl Turn<'_> {
    pub(super) fn push(&mut self, effect: CoordinatorEffect) {
        self.effects.push(effect);
    }
    pub(super) fn event(&mut self, event: Event) {
        self.push(CoordinatorEffect::Event(event));
    }
    pub(super) fn send(&mut self, to: WorkerId, order: Order) {
        self.push(CoordinatorEffect::Send { to, order });
    }
}

/// What a mode asks for next.
pub(super) enum Next {
    /// The mode continues.
    Stay,
    /// The generation cannot continue, for this reason: stop all workers and ask for their inventories.
    Recover(String),
    /// Write this record.
    Write(Record),
}
