//! When a change of plan was last considered, and whether anything relevant can have changed since.

use super::shared::Shared;
use crate::message::Time;
use std::time::Duration;
use varuna_plan::{Generation, Plan, Shape, WorkerId};

/// The situation in which a change was last considered.
pub(super) struct Considered {
    /// The workers that could be planned with, ascending.
    pub(super) workers: Vec<WorkerId>,
    /// The roster's change counter.
    changes: u64,
    /// When the change is considered again: a quarantine or a bad link may have ended.
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

    /// Whether nothing relevant can have changed, so that the many workers need not be examined on every tick.
    pub(super) fn holds(&self, shared: &Shared, now: Time, plan: &Plan) -> bool {
        let same = now < self.until && self.changes == shared.roster.changes();
        same && !shared.speeds.is_due(plan.members())
    }
}

/// A change to use idle workers that was rejected because it would not have repaid its cost before the next expected change. The longer no
/// worker comes or goes, the later that change is expected.
#[derive(Clone, Copy)]
pub(super) struct Refused {
    /// The plan in force.
    generation: Generation,
    /// The change is reconsidered once the expected time to the next change is at least this.
    from: Duration,
}

impl Refused {
    /// A rejected change from the plan, whose steps take `present_ms` milliseconds, to this shape. It is reconsidered once it repays its
    /// cost, but not before the expected time has grown by an eighth, since each attempt calls the planner, and in any case once that time
    /// has doubled, since the planner may then choose another shape.
    pub(super) fn now(shared: &Shared, plan: &Plan, shape: &Shape, present_ms: f64) -> Self {
        let horizon = shared.roster.churn.horizon();
        let most = horizon.saturating_mul(2);
        let needed = shared.repays_within(shape, present_ms).unwrap_or(most);
        Self {
            generation: plan.generation,
            from: needed.clamp(horizon.saturating_add(horizon / 8), most),
        }
    }

    /// Whether it is a change from this plan.
    pub(super) fn is_of(&self, plan: &Plan) -> bool {
        self.generation == plan.generation
    }

    /// The time until it may repay its cost, if no worker comes or goes until then.
    pub(super) fn due_in(&self, shared: &Shared, now: Time) -> Duration {
        let churn = &shared.roster.churn;
        churn.until_expected(self.from, now, shared.config.timing.stay)
    }

    /// Whether it may repay its cost now.
    pub(super) fn is_due(&self, shared: &Shared, now: Time, plan: &Plan) -> bool {
        let expected = shared.roster.churn.expected(now, shared.config.timing.stay);
        self.is_of(plan) && expected >= self.from && !bug!(NoSecondChance)
    }
}
