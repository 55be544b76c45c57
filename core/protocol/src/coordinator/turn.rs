//! One input: when it came, and the effects that it has so far.

use super::config::CoordinatorEffect;
use super::event::Event;
use crate::message::{Order, Record, Time};
use varuna_plan::WorkerId;

/// One input, and what follows from it.
pub(super) struct Turn<'a> {
    pub(super) now: Time,
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

/// What a mode wants to happen next.
pub(super) enum Next {
    /// Nothing: the mode goes on.
    Stay,
    /// The generation cannot go on, for this reason: stop all workers and ask what they hold.
    Recover(String),
    /// The record changes.
    Write(Record),
}
