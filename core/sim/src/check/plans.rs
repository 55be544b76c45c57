//! (a): at most one plan per generation is persisted; workers accept only persisted plans.

use super::{Checker, Violation, broken};
use std::sync::Arc;
use varuna_plan::{Plan, WorkerId};

impl Checker {
    /// True if the plan is a new one.
    pub(crate) fn persisted(&mut self, plan: &Arc<Plan>) -> Result<bool, Violation> {
        match self.plans.get(&plan.generation) {
            Some(old) if old == plan => Ok(false),
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
        if self.plans.get(&plan.generation) == Some(plan) {
            return Ok(());
        }
        let generation = plan.generation;
        broken(
            'a',
            format!("{worker:?} took a plan {generation} that is not the persisted one"),
        )
    }
}
