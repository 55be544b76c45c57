//! Tells the planner which holders of state leave and how long they can still send it, so that it prefers plans that have the state in time.
//! When a worker leaves is known from its notice (`roster`); which plan follows from that is the planner's decision.

use super::shared::Shared;
use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::{Departure, Infeasible, PlanRequest, Shape, Unit, WorkerId};

impl Shared {
    /// The holders of state that leave and are not planned with, and how long each can send it. None if it is not known when any of them does.
    /// `before_moves`: the time that passes from now until state begins to move.
    pub(super) fn departure(
        &self,
        pool: &[WorkerId],
        held: &BTreeMap<WorkerId, Vec<Unit>>,
        now: Time,
        before_moves: Duration,
    ) -> Option<Departure> {
        let leaves = |w: &WorkerId| self.roster.get(*w).is_some_and(|w| w.is_draining()) && !pool.contains(w);
        let sends_for_ms = |w: WorkerId| {
            let left = self
                .roster
                .leaves_at(w)
                .map(|at| at.since(now).saturating_sub(before_moves));
            left.map_or(f64::INFINITY, |left| left.as_secs_f64() * 1e3)
        };
        let leaving = held.keys().copied().filter(leaves);
        let sends_for_ms: BTreeMap<WorkerId, f64> = leaving.map(|w| (w, sends_for_ms(w))).collect();
        let is_known = sends_for_ms.values().any(|ms| ms.is_finite());
        is_known.then_some(Departure { sends_for_ms })
    }

    /// The best shape for the request. If a better one was not taken for lack of time, also what to add to the reason of the plan; empty
    /// otherwise.
    pub(super) fn plan_in_time(&self, request: &PlanRequest) -> Result<(Shape, String), Infeasible> {
        let (shape, haste) = self.planner.plan_in_time(request)?;
        Ok((shape, haste.map(|why| format!("; {why}")).unwrap_or_default()))
    }
}
