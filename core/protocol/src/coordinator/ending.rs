//! The end: all workers are released; who still trains is fenced first.
//!
//! Who takes up a run that was stopped need not wait for its members if none of them can train any more. A worker that was released proves
//! nothing: the order may be lost. An answer to a fence does: who gave it never commits in those generations, wherever it is (the stop
//! promise). So everyone whom a plan in the record names is fenced before it is released, and once all have answered, or have ended for
//! certain, and their streams are closed, the record says so. Where one of them was lost without an answer it does not, and the
//! successor waits as after a death.

use super::event::Outcome;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Order, Phase, Time};
use crate::record::Record;
use varuna_plan::WorkerId;

/// Releases all workers.
pub(super) struct Ending {
    outcome: Outcome,
    since: Time,
    /// That nobody is left was written, or is being written.
    noted: bool,
    /// That write was refused, or nobody knows.
    refused: bool,
}

impl Ending {
    pub(super) fn new(outcome: Outcome, since: Time) -> Self {
        Self {
            outcome,
            since,
            noted: false,
            refused: false,
        }
    }

    /// The last step is committed.
    pub(super) fn is_done(&self) -> bool {
        self.outcome == Outcome::Done
    }

    /// The outcome, once all streams are closed or it takes too long.
    pub(super) fn step(&mut self, shared: &mut Shared, turn: &mut Turn<'_>) -> Option<Outcome> {
        let upto = shared.record.stored.highest;
        let all = shared.roster.connected();
        // Before its term is in the record another may be in charge, and workers would obey nobody else again.
        let in_charge = shared.record.is_in_charge() || bug!(EndBeforeTakeOver);
        for to in all.iter().filter(|_| in_charge) {
            let Some(status) = shared.roster.status(*to) else {
                continue;
            };
            let finished = status.at.step >= shared.last_step() && self.is_done();
            let busy = matches!(status.phase, Phase::Loading | Phase::Ready | Phase::Running);
            let unpromised = self.outcome == Outcome::Stopped && !has_promised(shared, *to);
            let order = if (busy && !finished) || unpromised {
                Order::Fence { upto }
            } else {
                Order::Release
            };
            shared.outbox.order(turn, *to, order);
        }
        let late = turn.now > self.since.after(shared.config.timing.silent);
        if late {
            return Some(self.outcome.clone());
        }
        let waits = !all.is_empty() || self.note_stopped(shared, turn);
        (!waits).then(|| self.outcome.clone())
    }

    /// All streams are closed: writes that nobody of the plans in the record can train any more, where that is known; true until it is
    /// written. One attempt: where it fails, the successor waits, which is never wrong.
    fn note_stopped(&mut self, shared: &Shared, turn: &mut Turn<'_>) -> bool {
        let record = &shared.record;
        if self.outcome != Outcome::Stopped || record.stored.plan.is_none() || record.stored.is_stopped() {
            return false;
        }
        let named = record
            .plans()
            .flat_map(|p| p.members().iter().chain(p.sources.iter().flatten()));
        let mut unpromised = named.filter(|w| !has_promised(shared, **w));
        let proven = unpromised.next().is_none() || bug!(StoppedWithoutPromises);
        if !record.is_in_charge() || !proven || self.refused {
            return false;
        }
        if !std::mem::replace(&mut self.noted, true) {
            record.write(record.with_stopped(), turn);
        }
        true
    }

    /// A write was answered. One that was refused, or of which nobody knows, is not waited for.
    pub(super) fn written(&mut self, ok: bool, record: &Record) {
        self.refused |= record.is_stopped() && !ok;
    }
}

/// No plan in the record names the worker, or it can train in none of them any more.
fn has_promised(shared: &Shared, worker: WorkerId) -> bool {
    let upto = shared.record.stored.highest;
    let named = shared.record.plans().any(|p| p.involves(worker));
    let known = shared.roster.get(worker);
    !named || known.is_some_and(|w| w.process_ended || w.status.is_some_and(|s| s.fenced >= upto))
}
