//! Tracks bits that change by themselves, if holders compare their states: which workers have wrong bits, and where a run goes back to
//! because of them.
//!
//! Wrong bits are no broken invariant as long as nobody has noticed them. A rollback is allowed for no other reason, and if some holder had
//! the right bits of a unit, it must go to those.

use super::{Checker, Violation, broken};
use crate::engine::{Held, UnitState};
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Plan, StateId, Step, Unit, WorkerId};
use varuna_protocol::Rollback;

/// The effects of flipped bits.
#[derive(Default)]
pub(super) struct Flips {
    /// Copies that are wrong, with their workers.
    tainted: BTreeSet<(WorkerId, Unit)>,
    /// All wrong bits that were seen: they may come back from a checkpoint or a peer.
    wrong: BTreeMap<(StateId, Unit), BTreeSet<u64>>,
    /// Where bits changed, and at which step.
    changed: BTreeMap<(WorkerId, Unit), u64>,
    rollbacks: Vec<Rollback>,
    /// States of units that a holder under the plan had with the right bits. Copies that only follow, such as spare copies, are not
    /// compared, so nobody knows about them.
    right: BTreeSet<(StateId, Unit)>,
}

impl Flips {
    /// Whether the bits follow from wrong ones, which is noted.
    pub(super) fn follows(&mut self, of: (WorkerId, Unit), id: StateId, bits: u64, computed: bool) -> bool {
        let unit = of.1;
        let known = self.wrong.get(&(id, unit)).is_some_and(|w| w.contains(&bits));
        let follows = known || (computed && self.tainted.contains(&of));
        if follows {
            self.tainted.insert(of);
            self.wrong.entry((id, unit)).or_default().insert(bits);
        }
        follows
    }

    /// A holder has computed the state, and rightly.
    pub(super) fn note_right_holder(&mut self, id: StateId, unit: Unit) {
        self.right.insert((id, unit));
    }

    /// The copy is right.
    pub(super) fn end(&mut self, worker: WorkerId, unit: Unit) {
        self.tainted.remove(&(worker, unit));
        self.changed.remove(&(worker, unit));
    }

    /// Given up by a rollback.
    pub(super) fn is_rolled_back(&self, id: StateId) -> bool {
        let mut rollbacks = self.rollbacks.iter();
        rollbacks.any(|r| id > r.to && id.run_gen < r.generation)
    }
}

impl Checker {
    /// A worker's copy is another one from now on.
    pub(crate) fn flipped(&mut self, worker: WorkerId, unit: Unit, now: Held) {
        let of = (worker, unit);
        self.flips.tainted.insert(of);
        self.flips.changed.insert(of, now.id.step.0);
        let wrong = self.flips.wrong.entry((now.id, unit)).or_default();
        wrong.insert(now.state.bits);
    }

    /// The state was given up by a rollback.
    pub(crate) fn is_rolled_back(&self, id: StateId) -> bool {
        self.flips.is_rolled_back(id)
    }

    /// Whether the worker has wrong bits of any state.
    pub(crate) fn is_tainted(&self, worker: WorkerId) -> bool {
        self.flips.tainted.iter().any(|(w, _)| *w == worker)
    }

    /// Changed bits in the plan that others hold rightly; `late`: a comparison may not have come since that step. The holders of a plan
    /// compare nothing before its first step.
    pub(crate) fn unnoticed(&self, plan: &Plan, late: impl Fn(u64) -> bool) -> usize {
        let ran = (plan.generation, Step(0))..=(plan.generation, Step(u64::MAX));
        let Some(((_, first), _)) = self.at_step.range(ran).next() else {
            return 0;
        };
        let open = |(of, step): &(&(WorkerId, Unit), &u64)| {
            let holders = plan.holders(of.1);
            let right = |w: &WorkerId| !self.flips.tainted.contains(&(*w, of.1));
            holders.contains(&of.0) && holders.iter().any(right) && !late(first.0.max(**step))
        };
        self.flips.changed.iter().filter(open).count()
    }

    /// The run goes back.
    pub(crate) fn rolled_back(
        &mut self,
        rollback: Rollback,
        shards: &BTreeMap<(StateId, Unit), UnitState>,
    ) -> Result<(), Violation> {
        let Rollback { to, generation } = rollback;
        if self.flips.wrong.is_empty() {
            return broken(
                'c',
                format!("plan {generation} goes back to {to}, and no bits are wrong"),
            );
        }
        for ((id, unit), right) in self.bits.range((to, Unit(0))..=(to, Unit(u32::MAX))) {
            let saved = shards.get(&(*id, *unit));
            if self.flips.right.contains(&(*id, *unit)) && saved.is_some_and(|s| s.bits != *right) {
                return broken(
                    'b',
                    format!("plan {generation} goes back to wrong bits of {unit:?} at {to}"),
                );
            }
        }
        self.flips.rollbacks.push(rollback);
        let flips = &self.flips;
        self.had.retain(|_, id| !flips.is_rolled_back(*id));
        self.top = Some(to);
        self.given_up = true;
        Ok(())
    }
}
