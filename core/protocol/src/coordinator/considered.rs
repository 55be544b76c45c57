//! When a change of plan was last thought about, and whether there can be anything new since.

use super::shared::Shared;
use crate::message::Time;
use varuna_plan::{Plan, WorkerId};

/// What was there when a change was last thought about.
pub(super) struct Considered {
    /// Who could be planned with, in order.
    pub(super) workers: Vec<WorkerId>,
    /// The roster's number.
    changes: u64,
    /// From then on it is looked at again: a quarantine or a bad link may have come to its end.
    until: Time,
}

impl Considered {
    pub(super) fn now(mut workers: Vec<WorkerId>, shared: &Shared, now: Time) -> Self {
        workers.sort_unstable();
        Self {
            workers,
            changes: shared.roster.changes(),
            until: now.after(shared.config.timing.heartbeat),
        }
    }

    /// There can be nothing new: what is known of many workers need not be looked at with every tick.
    pub(super) fn holds(&self, shared: &Shared, now: Time, plan: &Plan) -> bool {
        let same = now < self.until && self.changes == shared.roster.changes();
        same && !shared.speeds.is_due(plan.members())
    }
}
