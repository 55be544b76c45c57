//! When a change of plan was last thought about, and whether there can be anything new since.

use super::shared::Shared;
use crate::message::Time;
use std::time::Duration;
use varuna_plan::{Generation, Plan, Shape, WorkerId};

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

/// A change to workers that are idle, which would not have repaid its way before the next change was expected. The longer nobody comes or goes, the
/// later that is.
#[derive(Clone, Copy)]
pub(super) struct Refused {
    /// The plan in force.
    generation: Generation,
    /// With which expected time to the next change it is thought about again.
    from: Duration,
}

impl Refused {
    /// This shape in place of the plan, whose steps take `present_ms`. It is thought about again as soon as it repays; but not for a little more time,
    /// since that takes the planner each time, and for twice the time in any case, since the planner may choose another shape then.
    pub(super) fn now(shared: &Shared, plan: &Plan, shape: &Shape, present_ms: f64) -> Self {
        let horizon = shared.roster.churn.horizon();
        let most = horizon.saturating_mul(2);
        let needed = shared.repays_within(shape, present_ms).unwrap_or(most);
        Self {
            generation: plan.generation,
            from: needed.clamp(horizon.saturating_add(horizon / 8), most),
        }
    }

    /// It is of this plan.
    pub(super) fn is_of(&self, plan: &Plan) -> bool {
        self.generation == plan.generation
    }

    /// In what time it may repay, if nobody comes or goes until then.
    pub(super) fn due_in(&self, shared: &Shared, now: Time) -> Duration {
        let churn = &shared.roster.churn;
        churn.until_expected(self.from, now, shared.config.timing.stay)
    }

    /// It may repay now.
    pub(super) fn is_due(&self, shared: &Shared, now: Time, plan: &Plan) -> bool {
        let expected = shared.roster.churn.expected(now, shared.config.timing.stay);
        self.is_of(plan) && expected >= self.from && !bug!(NoSecondChance)
    }
}
