//! The losses of members that the run has seen: how often, and how many members at once.

use super::churn::Churn;
use crate::message::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varuna_plan::state_losses::LossSizes;
use varuna_plan::{Generation, WorkerId};

/// Changes by which a plan lost members. Neither growth counts, nor a departure after a notice that was long enough to plan around it.
pub(super) struct Losses {
    churn: Churn,
    /// The members of the plan of this generation that were lost. A recovery whose plan could not be written is repeated.
    counted: (Generation, BTreeSet<WorkerId>),
    sizes: LossSizes,
}

impl Losses {
    /// No loss yet, with an estimate of the time until the first one.
    pub(super) fn expecting(horizon: Duration) -> Self {
        Self {
            churn: Churn::expecting(horizon),
            counted: (Generation(0), BTreeSet::new()),
            sizes: BTreeMap::new(),
        }
    }

    /// A generation has started.
    pub(super) fn begin_generation(&mut self, now: Time, prior: Duration) {
        self.churn.begin_generation(now, prior);
    }

    /// Time that the clock did not show.
    pub(super) fn skip(&mut self, time: Duration) {
        self.churn.skip(time);
    }

    /// A recovery is planned without these members of the plan of this generation. Each of them is a loss once. Before the first generation of
    /// this coordinator none is: where a run is continued, the members of its last plan have gone with the run, and nobody observed for how long.
    pub(super) fn note(&mut self, generation: Generation, lost: BTreeSet<WorkerId>, now: Time) {
        if !self.churn.has_begun() {
            return;
        }
        if self.counted.0 != generation {
            self.counted = (generation, BTreeSet::new());
        }
        let known = self.counted.1.len();
        self.counted.1.extend(lost);
        let all = self.counted.1.len();
        if all > known {
            self.churn.observe(now);
            // The same loss, of more members than was known.
            if let Some(times) = self.sizes.get_mut(&known) {
                *times = times.saturating_sub(1);
            }
            self.sizes.retain(|_, times| *times > 0);
            let times = self.sizes.entry(all).or_default();
            *times = times.saturating_add(1);
        }
    }

    /// The expected time to the next loss.
    pub(super) fn expected(&self, now: Time, prior: Duration) -> Duration {
        self.churn.expected(now, prior)
    }

    /// The time in which the losses were seen, and `prior`, which keeps a young run from jumping to conclusions.
    pub(super) fn seen_for(&self, now: Time, prior: Duration) -> Duration {
        self.churn.passed(now, prior)
    }

    /// How many members were lost at once.
    pub(super) fn sizes(&self) -> &LossSizes {
        &self.sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_plan_are_lost_together() {
        let mut losses = Losses::expecting(Duration::ZERO);
        let workers = |ids: &[u64]| ids.iter().copied().map(WorkerId).collect();
        losses.begin_generation(Time(0), Duration::ZERO);
        let mut note = |generation, ids: &[u64]| {
            losses.note(
                Generation(generation),
                workers(ids),
                Time(generation * 2_000_000_000),
            );
            losses.sizes().clone()
        };
        assert_eq!(note(1, &[]), [].into());
        assert_eq!(note(1, &[1]), [(1, 1)].into());
        assert_eq!(note(1, &[1]), [(1, 1)].into(), "the recovery was repeated");
        assert_eq!(note(1, &[2, 3]), [(3, 1)].into(), "two more went with it");
        assert_eq!(note(2, &[4, 5, 6]), [(3, 2)].into());
        assert_eq!(note(3, &[7]), [(1, 1), (3, 2)].into());
    }

    #[test]
    fn members_that_ended_with_an_earlier_run_are_no_loss() {
        let mut losses = Losses::expecting(Duration::ZERO);
        losses.note(Generation(1), [WorkerId(1), WorkerId(2)].into(), Time(1));
        losses.begin_generation(Time(2), Duration::ZERO);
        assert!(losses.sizes().is_empty());
        losses.note(Generation(2), [WorkerId(3)].into(), Time(3));
        assert_eq!(losses.sizes(), &LossSizes::from([(1, 1)]));
    }
}
