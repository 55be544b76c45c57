//! How long a generation may take to start.
//!
//! Its members fetch state meanwhile. A fixed time would give up each plan that moves more state than it allows for, and then choose the
//! same plan again.

use super::catching_up::longest_move;
use super::config::Timing;
use std::time::Duration;
use varuna_plan::{Generation, Plan};

/// A move may take this multiple of its predicted time: links are shared, and their bandwidth is an estimate.
const TIMES_PREDICTED: u32 = 3;
/// Maximum number of times that the time is doubled after late launches: there is no prediction for state that comes from the store.
const DOUBLINGS: u32 = 4;

/// Launches in a row that took too long. Each gives the next one more time.
#[derive(Default)]
pub(super) struct LateLaunches {
    count: u32,
    /// The last one that was counted.
    last: Generation,
}

impl LateLaunches {
    /// The generation did not start in time. This may be reported twice if the recovery's plan could not be written.
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

    /// How long the plan may take from the time at which its members can load its state until Go, not counting the deadline of a step.
    pub(super) fn allowed(&self, plan: &Plan, timing: &Timing) -> Duration {
        if bug!(SameTimeForEveryLaunch) {
            return timing.launch;
        }
        let before = self.count.saturating_sub(u32::from(self.last == plan.generation));
        (timing.launch + longest_move(plan) * TIMES_PREDICTED) * (1 << before.min(DOUBLINGS))
    }
}
