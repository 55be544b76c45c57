//! The norm exchange. What members report about a step is gathered up a tree: each member adds its children's reports to its own and passes
//! them on once its whole subtree has run the step. The root concludes the step, and the decision spreads down the same tree. So a step
//! takes two messages per member, and none to the coordinator.

use crate::message::{Conclusion, Norms};
use std::collections::BTreeMap;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Plan, StateId, Step, Unit, WorkerId};

/// What this member and its children have reported about the present step, and what children have reported about the next one.
#[derive(Default)]
pub(super) struct NormExchange {
    own: Option<Norms>,
    from_children: BTreeMap<Step, BTreeMap<WorkerId, Norms>>,
    /// The conclusion of the step that is being applied.
    concluded: Option<Conclusion>,
}

impl NormExchange {
    /// Adds this member's own part.
    pub(super) fn put(&mut self, own: Norms) {
        self.own = Some(own);
    }

    /// A child's report for its subtree.
    pub(super) fn take(&mut self, child: WorkerId, norms: Norms) {
        let step = self.from_children.entry(norms.step).or_default();
        step.insert(child, norms);
    }

    /// The report of this member's whole subtree about the step; none while one of its members is missing.
    pub(super) fn gathered(&self, step: Step, children: &[WorkerId]) -> Option<Norms> {
        let mut all = self.own.clone().filter(|own| own.step == step)?;
        let none = BTreeMap::new();
        let said = self.from_children.get(&step).unwrap_or(&none);
        if said.len() < children.len() && !bug!(PassOnWithoutSubtree) {
            return None;
        }
        for theirs in said.values() {
            all.units.extend(&theirs.units);
            // A change for which not all members are armed does not take place.
            if bug!(SwitchIfOneIsArmed) {
                all.armed = all.armed.max(theirs.armed);
            } else if all.armed != theirs.armed {
                all.armed = Generation(0);
            }
            all.save |= theirs.save;
            all.store_busy |= theirs.store_busy;
        }
        Some(all)
    }

    /// The decision that follows from the reports of all members, taken in unit order. None if these do not add up to the model, which only
    /// a faulty peer can cause: then the plan's deadline ends the generation.
    pub(super) fn conclude(plan: &Plan, at: StateId, said: &Norms) -> Option<Conclusion> {
        let parts: BTreeMap<Unit, UnitNorm> = said.units.iter().copied().collect();
        if !bug!(CommitWithoutAllUnits) && !parts.keys().copied().eq(plan.layout.all_units()) {
            return None;
        }
        let switch = Some(said.armed).filter(|g| *g != Generation(0));
        let parts: Vec<UnitNorm> = parts.into_values().collect();
        Some(Conclusion {
            decision: Decision::conclude(at, plan.generation, &parts, switch),
            save: said.save,
            store_busy: said.store_busy,
        })
    }

    /// The step's conclusion is being applied.
    pub(super) fn apply(&mut self, conclusion: Conclusion) {
        self.concluded = Some(conclusion);
    }

    /// The step is committed. Returns its conclusion.
    pub(super) fn committed(&mut self, parent: Step) -> Option<Conclusion> {
        self.own = None;
        self.from_children.retain(|step, _| *step > parent);
        self.concluded.take()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.from_children.values().map(BTreeMap::len).sum()
    }
}
