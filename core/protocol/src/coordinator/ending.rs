//! The end of a run: all workers are released, and those that still train are fenced first.
//!
//! A successor that resumes a stopped run need not wait for its members if none of them can train any more. Releasing a worker does not
//! prove that, since the order may be lost. An answer to a fence does: a worker that answered never commits in those generations (the stop
//! promise). So every worker that a plan in the record names is fenced before it is released. Once all of them have answered or have
//! certainly ended, and their streams are closed, the record says so. If one of them was lost without an answer, the record does not say
//! so, and the successor waits as it would after a crash.

use super::event::{Divergence, Event, Outcome};
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Order, Phase, Time};
use crate::record::Record;
use varuna_plan::WorkerId;

/// Releases all workers.
pub(super) struct Ending {
    outcome: Outcome,
    since: Time,
    /// Whether it was written, or is being written, that no worker can train any more.
    noted: bool,
    /// Whether that write was refused, or its outcome is unknown.
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

    /// The end of a run whose gradients are no longer finite.
    pub(super) fn diverged(divergence: Divergence, turn: &mut Turn<'_>) -> Self {
        turn.event(Event::Diverged(divergence));
        Self::new(Outcome::Diverged(divergence), turn.now)
    }

    /// Whether the last step is committed.
    pub(super) fn is_done(&self) -> bool {
        self.outcome == Outcome::Done
    }

    /// The outcome, once all streams are closed or it takes too long.
    pub(super) fn step(&mut self, shared: &mut Shared, turn: &mut Turn<'_>) -> Option<Outcome> {
        let upto = shared.record.stored.highest;
        let all = shared.roster.connected();
        // Before this coordinator's term is in the record, another one may be in charge, and after an order with this term workers would
        // obey no other.
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

    /// All streams are closed: writes that no worker named by a plan in the record can train any more, if that is known. True until it is
    /// written. There is one attempt: if it fails, the successor waits, which is always safe.
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

    /// A write was answered. If it was refused or its outcome is unknown, it is not waited for.
    pub(super) fn written(&mut self, ok: bool, record: &Record) {
        self.refused |= record.is_stopped() && !ok;
    }
}

/// Whether no plan in the record names the worker, or it can no longer train in any of them.
fn has_promised(shared: &Shared, worker: WorkerId) -> bool {
    let upto = shared.record.stored.highest;
    let named = shared.record.plans().any(|p| p.involves(worker));
    let known = shared.roster.get(worker);
    !named || known.is_some_and(|w| w.process_ended || w.status.is_some_and(|s| s.fenced >= upto))
}
