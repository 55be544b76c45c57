//! The state that a worker holds. It outlives every plan, and is given up in one place only.

use crate::message::{Inventory, Prepared, Ran};
use std::collections::BTreeMap;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, StateId, Step, Unit};

/// State held, and what is known of the last steps.
#[derive(Default)]
pub(super) struct Holdings {
    pub(super) units: BTreeMap<Unit, StateId>,
    /// Reduced gradients not yet applied.
    pub(super) prepared: BTreeMap<Unit, Prepared>,
    /// Of the last commit.
    pub(super) decision: Option<Decision>,
    pub(super) ran: Option<Ran>,
}

/// Ids are compared whole: a step number identifies nothing.
pub(super) fn same(a: StateId, b: StateId) -> bool {
    a == b || (bug!(StepIsIdentity) && a.step == b.step)
}

impl Holdings {
    /// The answer to a fence.
    pub(super) fn inventory(&self, upto: Generation) -> Inventory {
        Inventory {
            upto,
            units: self.units.clone(),
            prepared: self.prepared.clone(),
            ran: self.ran,
            decision: self.decision,
        }
    }

    pub(super) fn is_at(&self, unit: Unit, base: Option<StateId>) -> bool {
        let held = self.units.get(&unit);
        held.is_some_and(|id| base.is_some_and(|base| same(*id, base)))
    }

    /// The units that are at exactly this state.
    pub(super) fn units_at(&self, id: Option<StateId>) -> impl Iterator<Item = (Unit, StateId)> {
        let here = self.units.iter().filter(move |(_, held)| Some(**held) == id);
        here.map(|(unit, id)| (*unit, *id))
    }

    /// The units of an interrupted or completed step that are reduced.
    pub(super) fn note_prepared(&mut self, run_gen: Generation, step: Step, units: &[(Unit, UnitNorm)]) {
        let prepared = |norm: UnitNorm| Prepared { run_gen, step, norm };
        self.prepared = units.iter().map(|(u, norm)| (*u, prepared(*norm))).collect();
    }

    /// The step that is about to be run: its norm was not put in.
    pub(super) fn begin_step(&mut self, generation: Generation, step: Step) {
        self.ran = Some(Ran {
            generation,
            step,
            norm_put_in: false,
        });
    }

    /// The engine has applied the decision.
    pub(super) fn applied(&mut self, units: &[Unit], decision: Decision) {
        for unit in units {
            self.units.insert(*unit, decision.id);
            self.prepared.remove(unit);
        }
        if !bug!(ForgetOwnDecision) {
            self.decision = Some(decision);
        }
    }

    /// The units that are prepared for the decision.
    pub(super) fn prepared_for(&self, decision: &Decision) -> Vec<Unit> {
        let fits = |unit: &Unit, id: &StateId| {
            let prepared = |p: &Prepared| {
                let ran = p.run_gen == decision.id.run_gen || bug!(ApplyGradientOfAnotherGeneration);
                ran && p.step == decision.parent.step
            };
            let parent = *id == decision.parent || bug!(ApplyFromAnyParent);
            parent && self.prepared.get(unit).is_some_and(prepared)
        };
        let units = self.units.iter().filter(|(u, id)| fits(u, id));
        units.map(|(u, _)| *u).collect()
    }

    /// The engine is about to overwrite the unit.
    pub(super) fn forget(&mut self, unit: Unit) {
        if !bug!(KeepReplacedState) {
            self.units.remove(&unit);
        }
        self.prepared.remove(&unit);
    }

    /// Gives up all state but that of `keep`.
    pub(super) fn keep_only(&mut self, keep: &[Unit]) {
        self.units.retain(|u, _| keep.contains(u));
        if !bug!(KeepGradientsAfterFree) {
            self.prepared.clear();
        }
        if !bug!(KeepRanAfterFree) {
            self.ran = None;
        }
    }
}
