//! Invariant (c): the plan resumes at the newest committed state, if the workers that were heard cover it.

use super::{Checker, Violation, broken};
use varuna_plan::{Plan, StateId, WorkerId};
use varuna_protocol::Member;

impl Checker {
    /// Somebody had a greater state.
    pub(crate) fn goes_back(&self, base: StateId) -> bool {
        self.top
            .is_some_and(|top| (base.run_gen, base.step) < (top.run_gen, top.step))
    }

    /// Once a restore has superseded the plan that carried the decision, a worker that comes back merely prepared may be ignored; one that
    /// comes back with the state itself may not.
    ///
    /// `member` gives a worker's machine while it lives.
    pub(crate) fn nothing_lost<'a>(
        &mut self,
        plan: &Plan,
        base: StateId,
        member: impl Fn(WorkerId) -> Option<&'a Member>,
    ) -> Result<(), Violation> {
        let Some(top) = self.top.filter(|_| self.goes_back(base)) else {
            return Ok(());
        };
        let parent = self.parent.get(&top);
        let covers = |unit, worker: WorkerId| {
            let Some(member) = member(worker) else {
                return false;
            };
            if self.had.get(&(worker, unit)) == Some(&top) {
                return true; // it had it and was not allowed to give it up
            }
            let held = member.held().get(&unit);
            let rolls = |p: &varuna_protocol::Prepared| {
                p.run_gen == top.run_gen && p.step.next() == top.step && parent == held
            };
            !self.given_up && held.is_some() && member.prepared().get(&unit).is_some_and(rolls)
        };
        let all = plan
            .layout
            .all_units()
            .all(|u| plan.evidence.iter().any(|w| covers(u, *w)));
        if all {
            return broken(
                'c',
                format!("plan {} resumes at {base}, {top} was there", plan.generation),
            );
        }
        self.given_up = true;
        Ok(())
    }
}
