//! The beginning of a coordinator: the record is read, its own term written, the members of an inherited plan waited for.

use super::active::Active;
use super::config::CoordinatorEffect;
use super::shared::Shared;
use super::turn::Turn;
use crate::message::Time;
use varuna_plan::WorkerId;

/// Reads the record.
#[derive(Default)]
pub(super) struct Starting {
    read_at: Time,
}

impl Starting {
    /// From the beginning, at that time.
    pub(super) fn again_at(read_at: Time) -> Self {
        Self { read_at }
    }

    /// What follows. The store was asked a moment ago: not again before it is due.
    pub(super) fn into_active(self) -> Active {
        Active::asking_at(self.read_at)
    }

    pub(super) fn step(&mut self, shared: &Shared, turn: &mut Turn<'_>) {
        if turn.now >= self.read_at {
            self.read_at = turn.now.after(shared.config.timing.ask_again);
            turn.push(CoordinatorEffect::ReadRecord);
        }
    }
}

/// Waits for the members of an inherited plan.
pub(super) struct Settling {
    until: Time,
    /// What follows.
    pub(super) active: Active,
}

impl Settling {
    /// From now on.
    pub(super) fn new(active: Active, shared: &Shared, now: Time) -> Self {
        let until = now.after(shared.config.timing.settle);
        Self { until, active }
    }

    /// The members of the plans in the record are back, or it takes too long.
    pub(super) fn is_over(&self, shared: &Shared, now: Time) -> bool {
        let back = |w: &WorkerId| shared.roster.status(*w).is_some();
        let members = shared.record.plans().flat_map(|p| p.members());
        bug!(NoSettling) || now >= self.until || { members }.all(back)
    }
}
