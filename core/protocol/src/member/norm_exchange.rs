//! The norm exchange: what each member says of a step, and the decision that follows from all of it.

use crate::message::Norms;
use std::collections::BTreeMap;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};

/// What some member said of a step: all members know it before any of them commits, so all do the same.
#[derive(Clone, Copy, Default)]
pub(super) struct Said {
    /// A checkpoint of the state that it leads to is wanted.
    pub(super) save: bool,
    /// A store has not taken an earlier checkpoint yet.
    pub(super) store_busy: bool,
}

/// What members of a plan have said of the present step and of the next one.
#[derive(Default)]
pub(super) struct NormExchange {
    norms: BTreeMap<Step, BTreeMap<WorkerId, Norms>>,
}

impl NormExchange {
    pub(super) fn put(&mut self, from: WorkerId, norms: Norms) {
        self.norms.entry(norms.step).or_default().insert(from, norms);
    }

    /// The sum of all parts in unit order. None while a norm is missing (or where the parts do not add up to the model, which
    /// only a broken peer can cause: the plan's deadline then ends the generation). `armed`: what this member is armed for.
    pub(super) fn decide(&self, plan: &Plan, at: StateId, armed: Generation) -> Option<Decision> {
        // Only members put something in: their number says whether somebody is missing.
        let said = self.norms.get(&at.step)?;
        if said.len() < plan.members().len() && !bug!(CommitWithoutAllNorms) {
            return None;
        }
        let said: Vec<&Norms> = said.values().collect();
        let parts: BTreeMap<Unit, UnitNorm> = said.iter().flat_map(|n| n.owned.iter().copied()).collect();
        if !bug!(CommitWithoutAllUnits) && !parts.keys().copied().eq(plan.layout.all_units()) {
            return None;
        }
        let first = said.first().map_or(Generation(0), |n| n.armed);
        let all = said.iter().all(|n| n.armed == first) || bug!(SwitchIfOneIsArmed);
        let mut switch = Some(first).filter(|g| *g != Generation(0) && all);
        if bug!(SwitchAlone) {
            switch = Some(armed).filter(|g| *g != Generation(0));
        }
        let parts: Vec<UnitNorm> = parts.into_values().collect();
        Some(Decision::conclude(at, plan.generation, &parts, switch))
    }

    /// The step is committed; what some member said of it.
    pub(super) fn committed(&mut self, parent: Step) -> Said {
        let here = self.norms.get(&parent).into_iter().flat_map(BTreeMap::values);
        let said = here.fold(Said::default(), |said, n| Said {
            save: said.save || n.save,
            store_busy: said.store_busy || n.store_busy,
        });
        self.norms.retain(|step, _| *step > parent);
        said
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.norms.values().map(BTreeMap::len).sum()
    }
}
