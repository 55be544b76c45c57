//! The state that a worker holds. It outlives every plan, and is given up in only one place.

use crate::message::{Inventory, Prepared, Ran};
use std::collections::{BTreeMap, VecDeque};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, StateId, Step, Unit};

/// The held state, and what is known about the last steps.
#[derive(Default)]
pub(super) struct Holdings {
    pub(super) units: BTreeMap<Unit, StateId>,
    /// Reduced gradients not yet applied.
    pub(super) prepared: BTreeMap<Unit, Prepared>,
    /// Gradients for the spare copies that this worker keeps, not yet applied. They are consecutive, oldest first, and the first is the one
    /// for the step that the unit's state has reached.
    pub(super) waiting: BTreeMap<Unit, VecDeque<Prepared>>,
    /// The decision of the last commit.
    pub(super) decision: Option<Decision>,
    pub(super) ran: Option<Ran>,
}

/// Compares whole ids: a step number alone does not identify a state.
pub(super) fn same(a: StateId, b: StateId) -> bool {
    a == b || (bug!(StepIsIdentity) && a.step == b.step)
}

impl Holdings {
    /// The answer to a fence.
    pub(super) fn inventory(&self, upto: Generation) -> Inventory {
        let mut prepared = self.prepared.clone();
        // The gradient of a step that was computed with another worker's parameters is of no use without the state.
        let is_of_state =
            |unit: &Unit, p: &Prepared| self.units.get(unit).is_some_and(|id| id.step == p.step);
        prepared.retain(|unit, p| is_of_state(unit, p) || bug!(ReportGradientWithoutState));
        for (unit, waiting) in self.waiting.iter().filter(|_| !bug!(HideSpareGradients)) {
            let here = self.units.get(unit);
            let next = waiting
                .front()
                .filter(|p| here.is_some_and(|id| id.step == p.step));
            prepared.extend(next.map(|p| (*unit, *p)));
        }
        Inventory {
            upto,
            units: self.units.clone(),
            prepared,
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

    /// Notes the units of an interrupted or completed step whose gradients are reduced.
    pub(super) fn note_prepared(&mut self, run_gen: Generation, step: Step, units: &[(Unit, UnitNorm)]) {
        let prepared = |norm: UnitNorm| Prepared { run_gen, step, norm };
        self.prepared = units.iter().map(|(u, norm)| (*u, prepared(*norm))).collect();
    }

    /// Takes the gradients of the step that was run before Go, with which Go does not do away.
    pub(super) fn take_step(&mut self) -> (BTreeMap<Unit, Prepared>, Option<Ran>) {
        (std::mem::take(&mut self.prepared), self.ran)
    }

    /// Puts them back, as far as their units are held.
    pub(super) fn put_step_back(&mut self, (prepared, ran): (BTreeMap<Unit, Prepared>, Option<Ran>)) {
        self.prepared = prepared;
        self.prepared.retain(|unit, _| self.units.contains_key(unit));
        self.ran = ran;
    }

    /// A step is about to be run: its norm has not been put in.
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

    /// How many gradients wait for the unit's spare copy.
    pub(super) fn waiting_for(&self, unit: Unit) -> u32 {
        let waiting = self.waiting.get(&unit).map_or(0, VecDeque::len);
        u32::try_from(waiting).unwrap_or(u32::MAX)
    }

    /// Takes the gradient to which the decision is applied, if it is there. The engine is about to overwrite the unit.
    pub(super) fn take_gradient(&mut self, unit: Unit, decision: &Decision) -> bool {
        let of_step = |p: &Prepared| p.run_gen == decision.id.run_gen && p.step == decision.parent.step;
        let waiting = self
            .waiting
            .get_mut(&unit)
            .filter(|w| w.front().is_some_and(of_step));
        let Some(waiting) = waiting else { return false };
        waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&unit);
        }
        self.units.remove(&unit);
        true
    }

    /// The engine is about to overwrite the unit with the state from which it has run, or runs, the present step: the step's gradient stays.
    pub(super) fn forget_state(&mut self, unit: Unit) {
        self.units.remove(&unit);
        self.waiting.remove(&unit);
    }

    /// The engine is about to overwrite the unit.
    pub(super) fn forget(&mut self, unit: Unit) {
        if !bug!(KeepReplacedState) {
            self.units.remove(&unit);
        }
        self.prepared.remove(&unit);
        self.waiting.remove(&unit);
    }

    /// Gives up all state but that of `keep`.
    pub(super) fn keep_only(&mut self, keep: &[Unit]) {
        self.units.retain(|u, _| keep.contains(u));
        if !bug!(KeepGradientsAfterFree) {
            self.prepared.clear();
        }
        self.waiting.clear();
        if !bug!(KeepRanAfterFree) {
            self.ran = None;
        }
    }
}
