//! Invariant (p): steps that living workers hold are not given up before these were waited for.
//!
//! Steps that no coordinator was told of may be given up: if a group of workers is cut off and continues training, nobody knows. So this is
//! checked only if the coordinator was told of the newest state, or has taken over a plan and was told nothing about it.

use super::{Checker, Violation, broken};
use std::collections::BTreeMap;
use varuna_plan::{Generation, Plan, StateId, Step, WorkerId};

/// The states with which recoveries began.
#[derive(Default)]
pub(super) struct Waits {
    /// When each plan was fenced first, by whichever coordinator.
    fenced_at: BTreeMap<Generation, u64>,
    /// The plan that was in force when the coordinator took over.
    inherited: BTreeMap<usize, Generation>,
}

/// A recovery's plan.
pub(crate) struct Decided<'a> {
    /// The coordinator that decides on it.
    pub(crate) by: usize,
    pub(crate) plan: &'a Plan,
    pub(crate) base: StateId,
    /// The newest state that it was told of.
    pub(crate) heard: StateId,
    /// The last step of the run: a worker that has done it is not waited for once the run has ended.
    pub(crate) last_step: Step,
    pub(crate) at: u64,
    /// How long holders are waited for at least, milliseconds.
    pub(crate) restore: u64,
}

impl Checker {
    /// A coordinator takes over the plan in force.
    pub(crate) fn takes_over(&mut self, c: usize, plan: Option<Generation>) {
        self.waits.inherited.insert(c, plan.unwrap_or(Generation(0)));
    }

    /// The plan in force is fenced.
    pub(crate) fn fenced(&mut self, plan: Option<Generation>, at: u64) {
        if let Some(plan) = plan {
            self.waits.fenced_at.entry(plan).or_insert(at);
        }
    }

    /// `lives`: whether the worker does.
    pub(crate) fn waits(
        &self,
        decided: &Decided<'_>,
        lives: impl Fn(WorkerId) -> bool,
    ) -> Result<(), Violation> {
        let Decided { by, plan, base, .. } = *decided;
        let known = self.plans.contains_key(&plan.generation);
        // Only members of the plan in force are waited for.
        let here = |top: &StateId| top.run_gen == plan.parent && top.step < decided.last_step;
        let top = self.top.filter(|top| here(top) && self.goes_back(base));
        let (Some(top), Some(parent), false) = (top, self.plans.get(&plan.parent), known) else {
            return Ok(());
        };
        let inherited = self.waits.inherited.get(&by) == Some(&plan.parent);
        let told = decided.heard >= top;
        let told_nothing = inherited && decided.heard.run_gen < plan.parent;
        let fenced_at = self.waits.fenced_at.get(&plan.parent);
        let early = fenced_at.is_some_and(|at| decided.at < at + decided.restore);
        let holds = |w: &WorkerId, unit| lives(*w) && self.had.get(&(*w, unit)) == Some(&top);
        let held = |unit| parent.members().iter().any(|w| holds(w, unit));
        if early && (told || told_nothing) && plan.layout.all_units().all(held) {
            let generation = plan.generation;
            let seen = format!("plan {generation} goes back to {base}, and holders of {top} live");
            return broken('p', seen);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::RandomPlanner;
    use std::sync::Arc;
    use varuna_plan::{
        Base, Layout, PlanIndex, PlanRequest, Planner, StepDeadline, WorkerInfo, tree_fan_out,
    };

    const LAYOUT: Layout = Layout::new(2, false);
    const WORKER: WorkerId = WorkerId(1);

    fn state(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            ..StateId::INITIAL
        }
    }

    /// A plan of one worker.
    fn plan(generation: u64) -> Plan {
        let workers = vec![WorkerInfo::nominal(WORKER, "n")];
        let request = PlanRequest::first(workers, LAYOUT, 8);
        Plan {
            generation: Generation(generation),
            parent: Generation(generation - 1),
            base: Base::Fixed {
                id: StateId::INITIAL,
                decision: None,
                checkpoint: true,
            },
            layout: LAYOUT,
            deadline: StepDeadline::of_ms(1_000),
            sources: vec![Vec::new(); LAYOUT.units()],
            addresses: BTreeMap::new(),
            relay: false,
            tree_fan_out: tree_fan_out(1, 2),
            following: false,
            parameters_first: false,
            keepers: Vec::new(),
            evidence: Vec::new(),
            reason: String::new(),
            shape: RandomPlanner::new(1, 2).plan(&request).unwrap(),
            index: PlanIndex::default(),
        }
    }

    /// The violation by a plan that goes back to step 2 while a worker holds step 4, 500 ms after the fence.
    fn verdict(heard: StateId, inherited: bool, lives: bool, restore: u64) -> Option<char> {
        let mut checker = Checker::default();
        checker.plans.insert(Generation(1), Arc::new(plan(1)));
        checker.takes_over(0, inherited.then_some(Generation(1)));
        checker.fenced(Some(Generation(1)), 100);
        checker.fenced(Some(Generation(1)), 400);
        checker.top = Some(state(4));
        for unit in LAYOUT.all_units() {
            checker.had.insert((WORKER, unit), state(4));
        }
        let decided = Decided {
            by: 0,
            plan: &plan(2),
            base: state(2),
            heard,
            last_step: Step(10),
            at: 600,
            restore,
        };
        checker.waits(&decided, |_| lives).err().map(|v| v.invariant)
    }

    #[test]
    fn steps_of_living_workers_are_awaited_before_giving_up() {
        assert_eq!(
            verdict(state(4), false, true, 700),
            Some('p'),
            "it was told of them"
        );
        assert_eq!(
            verdict(StateId::INITIAL, true, true, 700),
            Some('p'),
            "it cannot know"
        );
        assert_eq!(verdict(state(4), false, true, 500), None, "they were waited for");
        assert_eq!(verdict(state(4), false, false, 700), None, "they died");
        assert_eq!(
            verdict(state(3), true, true, 700),
            None,
            "the last step was never told"
        );
        assert_eq!(verdict(StateId::INITIAL, false, true, 700), None);
    }
}
