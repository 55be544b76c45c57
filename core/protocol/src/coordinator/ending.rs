//! The end: all workers are released; who still trains is fenced first.

use super::event::Outcome;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::{Order, Phase, Time};

/// Releases all workers.
pub(super) struct Ending {
    outcome: Outcome,
    since: Time,
}

impl Ending {
    pub(super) fn new(outcome: Outcome, since: Time) -> Self {
        Self { outcome, since }
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
            let order = if busy && !finished {
                Order::Fence { upto }
            } else {
                Order::Release
            };
            shared.outbox.order(turn, *to, order);
        }
        let late = turn.now > self.since.after(shared.config.timing.silent);
        (all.is_empty() || late).then(|| self.outcome.clone())
    }
}
