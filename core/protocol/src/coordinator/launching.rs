//! How long a generation may take to start.
//!
//! Its members fetch state meanwhile. A time that says nothing of how much would give up each plan that moves more than it allows, and choose
//! it again.

use super::catching_up::longest_move;
use super::config::Timing;
use std::time::Duration;
use varuna_plan::{Generation, Plan};

/// A move may take so many times what is predicted: links are shared, and what they carry is an estimate.
const TIMES_PREDICTED: u32 = 3;
/// After launches that took too long the time doubles so often at most: nothing is predicted of state that comes from the store.
const DOUBLINGS: u32 = 4;

/// Launches in a row that took too long: the next one has more time.
#[derive(Default)]
pub(super) struct LateLaunches {
    count: u32,
    /// The last one that was counted.
    last: Generation,
}

impl LateLaunches {
    /// The generation did not start in time. A recovery whose plan could not be written may find that again.
    pub(super) fn note(&mut self, generation: Generation) {
        if self.last != generation {
            self.last = generation;
            self.count = self.count.saturating_add(1);
        }
    }

    /// A generation has started.
    pub(super) fn end(&mut self) {
        self.count = 0;
    }

    /// How long the plan may take from when its members can load its state until Go, the deadline of a step not counted.
    pub(super) fn allowed(&self, plan: &Plan, timing: &Timing) -> Duration {
        if bug!(SameTimeForEveryLaunch) {
            return timing.launch;
        }
        let before = self.count.saturating_sub(u32::from(self.last == plan.generation));
        (timing.launch + longest_move(plan) * TIMES_PREDICTED) * (1 << before.min(DOUBLINGS))
    }
}
