//! The start of a coordinator: it reads the record, writes its own term, and waits for the members of an inherited plan.

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
    /// Starts again from the beginning, at that time.
    pub(super) fn again_at(read_at: Time) -> Self {
        Self { read_at }
    }

    /// The active mode that follows. The store was listed a moment ago, so it is not listed again before that is due.
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
    /// The mode that follows.
    pub(super) active: Active,
}

impl Settling {
    /// Waits from this time on.
    pub(super) fn new(active: Active, shared: &Shared, now: Time) -> Self {
        let until = now.after(shared.config.timing.settle);
        Self { until, active }
    }

    /// Whether the wait is over: the members of the plans in the record are back, or it has taken too long.
    pub(super) fn is_over(&self, shared: &Shared, now: Time) -> bool {
        let back = |w: &WorkerId| shared.roster.status(*w).is_some();
        let members = shared.record.plans().flat_map(|p| p.members());
        bug!(NoSettling) || now >= self.until || { members }.all(back)
    }
}
