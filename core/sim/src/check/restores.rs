//! Invariant (l): a restore does not go back behind a checkpoint that the store has shown.

use super::{Checker, Violation, broken};
use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Generation, StateId};

/// What coordinators know of checkpoints, by coordinator.
#[derive(Default)]
pub(super) struct Restores {
    /// The last list that the store confirmed: when, and what it showed.
    shown: BTreeMap<usize, (u64, BTreeSet<StateId>)>,
    /// When its present recovery began.
    began: BTreeMap<usize, u64>,
    /// Plans that were checked: a repeated write contains the earlier decision.
    decided: BTreeSet<(usize, Generation)>,
}

/// A plan that goes back to a checkpoint.
pub(crate) struct Restore {
    /// The coordinator that decides on it.
    pub(crate) by: usize,
    pub(crate) generation: Generation,
    pub(crate) base: StateId,
    pub(crate) at: u64,
    /// A list that the store has not confirmed is trusted after this time, milliseconds.
    pub(crate) unconfirmed_after: u64,
}

impl Checker {
    /// A listing reaches a coordinator. One that is not fresh removes the damaged checkpoints, and shows nothing new.
    pub(crate) fn listed(
        &mut self,
        c: usize,
        at: u64,
        complete: Option<&[StateId]>,
        damaged: &BTreeSet<StateId>,
    ) {
        let shown = self.restores.shown.entry(c).or_default();
        if let Some(complete) = complete {
            *shown = (at, complete.iter().copied().collect());
        }
        shown.1.retain(|id| !damaged.contains(id));
    }

    /// A coordinator begins a recovery.
    pub(crate) fn recovery_begins(&mut self, c: usize, at: u64) {
        self.restores.began.insert(c, at);
    }

    /// `complete`: the checkpoints that the store has now.
    pub(crate) fn restores(
        &mut self,
        restore: &Restore,
        complete: &BTreeSet<StateId>,
    ) -> Result<(), Violation> {
        let Restore { by, base, at, .. } = *restore;
        let known = self.plans.contains_key(&restore.generation);
        if known || !self.restores.decided.insert((by, restore.generation)) {
            return Ok(());
        }
        let newer = complete.iter().rev().take_while(|id| **id > base);
        let newer: Vec<StateId> = newer
            .filter(|id| !self.flips.is_rolled_back(**id))
            .copied()
            .collect();
        let Some(newest) = newer.first() else {
            return Ok(());
        };
        let (shown_at, shown) = self.restores.shown.get(&by).cloned().unwrap_or_default();
        let began = self.restores.began.get(&by).copied().unwrap_or(0);
        let says = |what: &str| {
            let plan = restore.generation;
            broken(
                'l',
                format!("plan {plan} goes back to {base}, and {newest} {what}"),
            )
        };
        if newer.iter().any(|id| shown.contains(id)) {
            return says("was shown");
        }
        // The store was not asked since the recovery began, and that was not long ago.
        if shown_at < began && at < began + restore.unconfirmed_after {
            return says("was complete: the store was not asked");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::Step;

    fn state(step: u64) -> StateId {
        StateId {
            run_gen: Generation(1),
            step: Step(step),
            ..StateId::INITIAL
        }
    }

    /// The violation by a restore to step 2 at 500 ms, in a recovery that began at 100 ms. There are checkpoints of steps 2 and 4, and the
    /// store listed those in `shows` at `listed_at`.
    fn verdict(listed_at: u64, shows: &[u64], damaged: &[u64]) -> Option<char> {
        let mut checker = Checker::default();
        checker.recovery_begins(0, 100);
        let shown: Vec<StateId> = shows.iter().copied().map(state).collect();
        checker.listed(0, listed_at, Some(&shown), &BTreeSet::new());
        checker.listed(0, 450, None, &damaged.iter().copied().map(state).collect());
        let restore = Restore {
            by: 0,
            generation: Generation(2),
            base: state(2),
            at: 500,
            unconfirmed_after: 600,
        };
        let complete = BTreeSet::from([StateId::INITIAL, state(2), state(4)]);
        checker.restores(&restore, &complete).err().map(|v| v.invariant)
    }

    #[test]
    fn restore_is_not_older_than_the_shown_progress() {
        assert_eq!(verdict(200, &[2, 4], &[]), Some('l'));
        assert_eq!(verdict(200, &[2], &[]), None, "it was completed later");
        assert_eq!(verdict(200, &[2, 4], &[4]), None, "it was found damaged");
        assert_eq!(verdict(50, &[2], &[]), Some('l'), "before the recovery");
    }
}
