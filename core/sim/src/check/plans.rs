//! (a): at most one plan per generation is persisted; workers accept only persisted plans.

use super::{Checker, Violation, broken};
use std::sync::Arc;
use varuna_plan::{Plan, WorkerId};

impl Checker {
    /// True if the plan is a new one.
    pub(crate) fn persisted(&mut self, plan: &Arc<Plan>) -> Result<bool, Violation> {
        match self.plans.get(&plan.generation) {
            Some(old) if same(old, plan) => Ok(false),
            Some(_) => {
                broken('a', format!("two plans of generation {}", plan.generation))?;
                Ok(false)
            }
            None => {
                self.plans.insert(plan.generation, plan.clone());
                Ok(true)
            }
        }
    }

    pub(crate) fn accepted(&self, worker: WorkerId, plan: &Arc<Plan>) -> Result<(), Violation> {
        if self
            .plans
            .get(&plan.generation)
            .is_some_and(|old| same(old, plan))
        {
            return Ok(());
        }
        let generation = plan.generation;
        broken(
            'a',
            format!("{worker:?} took a plan {generation} that is not the persisted one"),
        )
    }
}

/// Equal, also where a decision in them is not a number: such a one is not equal to itself.
fn same(a: &Arc<Plan>, b: &Arc<Plan>) -> bool {
    a == b || format!("{a:?}") == format!("{b:?}")
}
