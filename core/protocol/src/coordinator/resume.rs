//! Decides where a recovery resumes: at the newest state that covers all units. A pure function of what is known.

use crate::message::Inventory;
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, Layout, StateId, Step, Unit, WorkerId};

/// All that a recovery knows.
pub(super) struct Evidence<'a> {
    pub(super) layout: Layout,
    pub(super) answers: &'a BTreeMap<WorkerId, Inventory>,
    /// The decision in the persisted plan's base. A worker may have applied it and died, so it is binding.
    pub(super) persisted: Option<Decision>,
    /// States of complete checkpoints.
    pub(super) checkpoints: &'a [StateId],
    /// The newest state that the run is known to have reached, whoever holds it.
    pub(super) reached: Option<StateId>,
}

/// The state at which a recovery resumes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Resume {
    pub(super) id: StateId,
    pub(super) decision: Option<Decision>,
    /// Whether some unit has no worker as source and comes from the checkpoint.
    pub(super) checkpoint: bool,
    pub(super) sources: Vec<Vec<WorkerId>>,
    /// Whether nothing newer is known to exist.
    pub(super) tip: bool,
}

/// What is known of an interrupted step.
enum Finish {
    /// It can be finished, and has to be: some worker may have committed it.
    Decided(Decision),
    /// No member has committed the step.
    Never,
    /// A worker that did not answer may have committed it.
    Unknown,
}

impl Evidence<'_> {
    /// All known decisions: those of commits, that of the persisted plan, and those that can be computed from the answers. Also the steps
    /// that another worker may have committed but that the answers do not decide.
    fn decisions(&self) -> (Vec<Decision>, Vec<(Generation, Step)>) {
        let mut decisions: Vec<Decision> = self.answers.values().filter_map(|i| i.decision).collect();
        if !bug!(ForgetDecisionOfPlan) {
            decisions.extend(self.persisted);
        }
        let mut undecided = Vec::new();
        let mut reached: BTreeSet<StateId> = self.held().collect();
        reached.extend(decisions.iter().map(|d| d.id));
        let ran = self.answers.values().filter_map(|i| i.ran);
        let open: BTreeSet<(Generation, Step)> = ran.map(|r| (r.generation, r.step)).collect();
        for (generation, step) in open {
            let committed = !bug!(FinishCommittedStep)
                && reached
                    .iter()
                    .any(|i| i.run_gen == generation && i.step == step.next());
            if committed || bug!(OnlyIfSurvivorCommitted) || bug!(RollBackPrepared) {
                continue;
            }
            match self.finish(generation, step) {
                Finish::Decided(decision) => {
                    reached.insert(decision.id);
                    decisions.push(decision);
                }
                Finish::Unknown => undecided.push((generation, step.next())),
                Finish::Never => {}
            }
        }
        (decisions, undecided)
    }

    fn held(&self) -> impl Iterator<Item = StateId> {
        self.answers.values().flat_map(|i| i.units.values().copied())
    }

    /// The decision of an interrupted step. There is none if some worker that ran the step had not put in its norm, which proves that
    /// nobody committed it, and is not prepared for it either. (If it is prepared, finishing the step costs nothing.) It is unknown if the
    /// prepared units do not make up the whole model.
    fn finish(&self, generation: Generation, step: Step) -> Finish {
        let here = |i: &&Inventory| {
            i.ran
                .is_some_and(|r| (r.generation, r.step) == (generation, step))
        };
        let answers: Vec<&Inventory> = self.answers.values().filter(here).collect();
        let prepared = |i: &Inventory, unit: &Unit| {
            let p = i.prepared.get(unit);
            p.is_some_and(|p| (p.run_gen, p.step) == (generation, step))
        };
        let ready = |i: &&Inventory| {
            let put_in = i.ran.is_some_and(|r| r.norm_put_in);
            put_in || (!i.units.is_empty() && i.units.keys().all(|u| prepared(i, u)))
        };
        if !bug!(FinishUnpreparedStep) && !answers.iter().all(ready) {
            return Finish::Never;
        }
        let mut parts: BTreeMap<Unit, UnitNorm> = BTreeMap::new();
        let mut parent = None;
        for inventory in answers {
            for (unit, prepared) in &inventory.prepared {
                if (prepared.run_gen, prepared.step) == (generation, step) {
                    // holders of a unit have the same bits, so any holder's part may be taken
                    parts.entry(*unit).or_insert(prepared.norm);
                    parent = parent.max(inventory.units.get(unit).copied());
                }
            }
        }
        if !parts.keys().copied().eq(self.layout.all_units()) {
            return Finish::Unknown;
        }
        let parts: Vec<UnitNorm> = parts.into_values().collect();
        parent.map_or(Finish::Unknown, |parent| {
            Finish::Decided(Decision::conclude(parent, generation, &parts, None))
        })
    }

    /// The greatest state that is held, was decided, or is in a checkpoint, and that covers all units.
    pub(super) fn resume(&self) -> Option<Resume> {
        let (decisions, undecided) = self.decisions();
        let mut known = self.known(&decisions);
        let reached = self.reached.filter(|_| !bug!(TipIsWhatAnswersHold));
        let tip = known.last().copied().max(reached);
        known.extend(self.checkpoints.iter().copied());
        let order: Vec<StateId> = if bug!(ResumeAtOldest) {
            known.iter().copied().collect()
        } else {
            known.iter().rev().copied().collect()
        };
        order.iter().find_map(|id| {
            let decision = decisions.iter().find(|d| d.id == *id).copied();
            let sources: Vec<Vec<WorkerId>> = self
                .layout
                .all_units()
                .map(|u| self.sources(u, *id, decision))
                .collect();
            let checkpoint = sources.iter().any(Vec::is_empty);
            let whole = bug!(ResumeUncovered) || !checkpoint || self.checkpoints.contains(id);
            let beyond = |(generation, step): &(Generation, Step)| {
                (*generation, *step) > (id.run_gen, id.step) && !bug!(IgnoreUndecidedStep)
            };
            let tip = tip.is_none_or(|t| t <= *id) && !undecided.iter().any(beyond);
            whole.then_some(Resume {
                id: *id,
                decision,
                checkpoint,
                sources,
                tip,
            })
        })
    }

    fn known(&self, decisions: &[Decision]) -> BTreeSet<StateId> {
        let mut known: BTreeSet<StateId> = self.held().collect();
        if !bug!(ForgetPersistedDecision) {
            known.extend(decisions.iter().map(|d| d.id));
        }
        known
    }

    /// The units that no worker has at the newest known state.
    pub(super) fn uncovered(&self) -> Vec<Unit> {
        let (decisions, _) = self.decisions();
        let Some(tip) = self.known(&decisions).last().copied() else {
            return self.layout.all_units().collect();
        };
        let decision = decisions.iter().find(|d| d.id == tip).copied();
        self.layout
            .all_units()
            .filter(|u| self.sources(*u, tip, decision).is_empty())
            .collect()
    }

    /// The workers that have the unit at this state, or are prepared to reach it by the decision.
    fn sources(&self, unit: Unit, id: StateId, decision: Option<Decision>) -> Vec<WorkerId> {
        let rolls = |held: &StateId, inventory: &Inventory| {
            let (Some(d), Some(p)) = (decision, inventory.prepared.get(&unit)) else {
                return false;
            };
            !bug!(RollBackPrepared)
                && (*held == d.parent || bug!(RollForwardFromAnyState))
                && p.run_gen == d.id.run_gen
                && p.step == d.parent.step
        };
        let has = |inventory: &Inventory| {
            inventory.units.get(&unit).is_some_and(|held| {
                *held == id || (bug!(StepIsIdentity) && held.step == id.step) || rolls(held, inventory)
            })
        };
        self.answers
            .iter()
            .filter(|(_, i)| has(i))
            .map(|(w, _)| *w)
            .collect()
    }
}
