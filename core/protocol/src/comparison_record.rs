//! Which states may be resumed from, according to comparisons between holders, and which parts of a worker's answer are no longer valid.
//! This is part of the record, so that a new coordinator uses the same.

use crate::message::Inventory;
use serde::{Deserialize, Serialize};
use varuna_plan::{Generation, StateId, Step, WorkerId};

/// Number of compared checkpoints that are remembered. At most two states wait for their upload, so the newest complete checkpoint is among
/// these even if several uploads fail.
pub const COMPARED_MAX: usize = 8;
/// Number of rollbacks that are remembered. An older one matters only if all checkpoints since then are gone.
pub const ROLLBACKS_MAX: usize = 16;
/// Number of odd holders that are remembered. Each is released when it is found, so an older one ended long ago.
pub const ODD_MAX: usize = 64;

/// The results of comparisons between holders.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ComparisonRecord {
    /// States that were put into the store and on which all holders agreed; oldest first.
    pub compared: Vec<StateId>,
    /// Steps that were given up because holders differed; oldest first.
    pub rollbacks: Vec<Rollback>,
    /// Workers whose bits differed from a majority's, oldest first. They are neither planned with nor resumed from.
    pub odd: Vec<MinorityHolder>,
}

/// A worker whose bits differed from those of most holders of the same state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MinorityHolder {
    /// Id of the worker.
    pub worker: WorkerId,
    /// Its name: a worker that is restarted under this name runs on the same machine.
    pub name: String,
}

/// A rollback: everything that was done after a state and before a generation is invalid, since it may follow from wrong bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rollback {
    /// The state that the run went back to.
    pub to: StateId,
    /// The first generation after it.
    pub generation: Generation,
}

impl Rollback {
    fn gives_up(&self, id: StateId) -> bool {
        id > self.to && id.run_gen < self.generation
    }
}

impl ComparisonRecord {
    /// Whether nothing is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.compared.is_empty() && self.rollbacks.is_empty() && self.odd.is_empty()
    }

    /// Whether the state was given up because it may follow from wrong bits.
    #[must_use]
    pub fn is_rolled_back(&self, id: StateId) -> bool {
        !bug!(ResumeFromVoidState) && self.rollbacks.iter().any(|r| r.gives_up(id))
    }

    /// The checkpoint that a rollback goes to: the newest one that was compared and is complete.
    #[must_use]
    pub fn newest_compared(&self, complete: &[StateId]) -> Option<StateId> {
        let sound = |id: &&StateId| self.compared.contains(id) || bug!(RollBackToUncompared);
        complete.iter().filter(sound).max().copied()
    }

    /// If the run went back to the seed because there was no compared checkpoint: the generation from which on it begins anew.
    #[must_use]
    pub fn began_anew(&self) -> Option<Generation> {
        let last = self.rollbacks.last()?;
        (last.to == StateId::INITIAL).then_some(last.generation)
    }

    /// All holders agreed on a state that was put into the store.
    pub(crate) fn add_compared(&mut self, id: StateId) {
        if !self.compared.contains(&id) && !self.is_rolled_back(id) {
            self.compared.push(id);
            self.compared.sort_unstable();
        }
        let spare = self.compared.len().saturating_sub(COMPARED_MAX);
        self.compared.drain(..spare);
    }

    /// A worker was found with other bits than a majority.
    pub(crate) fn add_minority_holder(&mut self, odd: MinorityHolder) {
        if self.odd.iter().any(|o| o.worker == odd.worker) {
            return;
        }
        self.odd.push(odd);
        let spare = self.odd.len().saturating_sub(ODD_MAX);
        self.odd.drain(..spare);
    }

    /// The copy of this state in the store may no longer be the one that was compared.
    pub(crate) fn give_up_compared(&mut self, id: StateId) {
        self.compared.retain(|compared| *compared != id);
    }

    /// Notes that the run goes back.
    pub(crate) fn add_rollback(&mut self, rollback: Rollback) {
        self.compared.retain(|id| !rollback.gives_up(*id));
        self.rollbacks.push(rollback);
        let spare = self.rollbacks.len().saturating_sub(ROLLBACKS_MAX);
        self.rollbacks.drain(..spare);
    }
}

impl Inventory {
    /// Removes what is no longer valid since a rollback.
    pub(crate) fn forget_rolled_back(&mut self, trust: &ComparisonRecord) {
        if trust.rollbacks.is_empty() {
            return;
        }
        let leads_to_rolled_back = |run_gen: Generation, step: Step| {
            let id = StateId {
                run_gen,
                step: step.next(),
                ..StateId::INITIAL
            };
            trust.is_rolled_back(id)
        };
        self.units.retain(|_, id| !trust.is_rolled_back(*id));
        self.prepared
            .retain(|_, p| !leads_to_rolled_back(p.run_gen, p.step));
        self.ran = self.ran.filter(|r| !leads_to_rolled_back(r.generation, r.step));
        self.decision = self.decision.filter(|d| !trust.is_rolled_back(d.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Prepared, Ran};
    use varuna_plan::state::Chain;
    use varuna_plan::state::UnitNorm;
    use varuna_plan::{Decision, Unit};

    fn state(run_gen: u64, step: u64) -> StateId {
        StateId {
            run_gen: Generation(run_gen),
            step: Step(step),
            chain: Chain(9),
        }
    }

    fn rolled_back(to: StateId, generation: u64) -> ComparisonRecord {
        let mut trust = ComparisonRecord::default();
        let generation = Generation(generation);
        trust.add_rollback(Rollback { to, generation });
        trust
    }

    #[test]
    fn rollback_invalidates_states_between_target_and_generation() {
        let trust = rolled_back(state(2, 40), 4);
        for (id, expected) in [
            (state(2, 40), false),
            (state(1, 90), false),
            (state(2, 41), true),
            (state(3, 60), true),
            (state(4, 41), false),
        ] {
            assert_eq!(trust.is_rolled_back(id), expected, "{id}");
        }
    }

    #[test]
    fn rollback_target_is_the_newest_complete_compared_checkpoint() {
        let mut trust = ComparisonRecord::default();
        for step in [20, 40, 60] {
            trust.add_compared(state(1, step));
        }
        let complete = [state(1, 40), state(1, 50), state(1, 20)];
        assert_eq!(trust.newest_compared(&complete), Some(state(1, 40)));
        assert_eq!(trust.newest_compared(&[state(1, 50)]), None);
    }

    #[test]
    fn memory_is_bounded_and_what_was_given_up_is_not_gone_back_to() {
        let mut trust = ComparisonRecord::default();
        for step in 1..=20 {
            trust.add_compared(state(1, step));
        }
        assert_eq!(trust.compared.len(), COMPARED_MAX);
        let to = state(1, 15);
        for generation in 2..=30 {
            let generation = Generation(generation);
            trust.add_rollback(Rollback { to, generation });
        }
        assert_eq!(trust.compared.last(), Some(&to));
        assert_eq!(trust.rollbacks.len(), ROLLBACKS_MAX);
        trust.add_compared(state(2, 18));
        assert_eq!(trust.compared.last(), Some(&to));
    }

    #[test]
    fn what_counts_no_more_is_taken_out_of_an_answer() {
        let trust = rolled_back(state(2, 40), 4);
        let norm = UnitNorm {
            norm2: 1.0,
            overflow: false,
            before: varuna_plan::OptimizerProgress::START,
            loss: 0.0,
            eval_loss: None,
        };
        let prepared = |run_gen: u64, step: u64| Prepared {
            run_gen: Generation(run_gen),
            step: Step(step),
            norm,
        };
        let ran = |generation: u64, step: u64| Ran {
            generation: Generation(generation),
            step: Step(step),
            norm_put_in: true,
        };
        let mut inventory = Inventory {
            upto: Generation(5),
            units: [(Unit(0), state(2, 40)), (Unit(1), state(3, 50))].into(),
            // The step after the state to which the run went back leads to a state beyond it.
            prepared: [(Unit(0), prepared(2, 40)), (Unit(1), prepared(4, 40))].into(),
            ran: Some(ran(2, 40)),
            decision: Some(Decision::conclude(state(3, 50), Generation(3), &[norm], None)),
        };
        inventory.forget_rolled_back(&trust);
        assert_eq!(inventory.units, [(Unit(0), state(2, 40))].into());
        assert_eq!(inventory.prepared, [(Unit(1), prepared(4, 40))].into());
        assert_eq!((inventory.ran, inventory.decision), (None, None));
    }
}
