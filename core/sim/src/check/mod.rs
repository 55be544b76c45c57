//! The checker: it checks the invariants (a) to (p) of `docs/internals/protocol.md` after every event.
//!
//! It sees everything, including what no machine can know, and influences nothing.

mod flips;
mod lost;
mod memory;
mod plans;
mod restores;
mod samples;
mod state;
mod waits;
pub(crate) use state::Origin;

pub(crate) use memory::{coordinator_is_bounded, member_is_bounded};
pub(crate) use restores::Restore;
pub(crate) use waits::Decided;

use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_plan::{Base, Generation, OptimizerProgress, Plan, StateId, Step, Unit, WorkerId};

/// A broken invariant: its letter, and what was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// `a`..`p`.
    pub invariant: char,
    /// Description of the violation.
    pub seen: String,
}

pub(crate) fn broken(invariant: char, seen: String) -> Result<(), Violation> {
    Err(Violation { invariant, seen })
}

/// The checker's state.
#[derive(Default)]
pub(crate) struct Checker {
    bits: BTreeMap<(StateId, Unit), u64>,
    /// What the optimizer has counted, by state.
    progress: BTreeMap<StateId, OptimizerProgress>,
    at_step: BTreeMap<(Generation, Step), StateId>,
    pub(crate) parent: BTreeMap<StateId, StateId>,
    pub(crate) plans: BTreeMap<Generation, Arc<Plan>>,
    /// The greatest state that any worker ever had.
    top: Option<StateId>,
    /// Whether a persisted plan went back to before `top` because its holders had not answered.
    given_up: bool,
    /// Tracks bits that changed by themselves.
    flips: flips::Flips,
    /// What coordinators know of checkpoints.
    restores: restores::Restores,
    /// The states with which recoveries began.
    waits: waits::Waits,
    /// The record said that no worker trains any more in the generations from its plan's to its highest. For earlier generations another
    /// recovery asked all workers; one that it left out may still finish a step that others have finished.
    pub(crate) stopped: Option<(Generation, Generation)>,
    /// State that a worker had and did not give up according to the rules.
    had: BTreeMap<(WorkerId, Unit), StateId>,
}

impl Checker {
    /// The greatest state of a step that anybody ever had.
    pub(crate) fn newest_at(&self, step: Step) -> Option<StateId> {
        self.at_step.values().rev().find(|id| id.step == step).copied()
    }

    /// Whether a worker committed a step, or a persisted plan carries the decision to finish one.
    pub(crate) fn anything_committed(&self) -> bool {
        let initial = |p: &Arc<Plan>| match p.base {
            Base::Fixed { id, .. } => id == StateId::INITIAL,
            Base::AtSwitch { .. } => true,
        };
        self.top.is_some_and(|top| top != StateId::INITIAL) || !self.plans.values().all(initial)
    }

    /// The history of a state goes back to the first step, one step at a time (d).
    pub(crate) fn ancestry(&self, mut id: StateId) -> Result<(), Violation> {
        while id != StateId::INITIAL {
            let Some(parent) = self.parent.get(&id) else {
                return broken('d', format!("no parent of {id}"));
            };
            if parent.step.next() != id.step {
                return broken('d', format!("{parent} -> {id}"));
            }
            id = *parent;
        }
        Ok(())
    }
}
