//! What the protocol costs with many workers: messages, simulated time, and the processor time of the shipped coordinator.
//!
//! An environment without faults and without randomness: every message takes a millisecond, a step a tenth of a second, a unit of
//! state two milliseconds. Then one worker is killed, and a tenth as many join. The caller gives the clock that the
//! coordinator's machine is timed with; nothing else depends on it.

mod network;
mod phases;

use crate::host::Process;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{CostPlanner, Generation, Plan};
use varuna_protocol::Record;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The planner that the coordinator asks.
    pub planner: CostPlanner,
    /// Workers at first.
    pub workers: u64,
    /// Samples in a step.
    pub global_batch_size: u64,
}

/// What one phase cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// On the simulated clock.
    pub simulated: Duration,
    /// Of the coordinator's machine, the planner included.
    pub coordinator: Duration,
    /// From workers to the coordinator.
    pub reports: u64,
    /// From the coordinator to workers.
    pub orders: u64,
    /// Between workers.
    pub peer_messages: u64,
    /// Connections between workers that were opened.
    pub connections: u64,
}

/// What all phases cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Costs {
    /// From the first worker's stream to the order to train.
    pub launch: Cost,
    /// One step, the mean of several.
    pub step: Cost,
    /// From a worker's death to the plan without it.
    pub decision: Cost,
    /// From a worker's death to the order to train.
    pub recovery: Cost,
    /// From the stream of the first of a tenth as many workers to the switch to a plan with them.
    pub growth: Cost,
    /// The largest record that was written, bytes of JSON.
    pub record_bytes: usize,
}

/// A phase that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{workers} workers: {phase} did not end within {within:?} of simulated time")]
pub struct Unfinished {
    /// Workers at first.
    pub workers: u64,
    /// Which phase.
    pub phase: &'static str,
    /// How long it was waited for.
    pub within: Duration,
}

/// The only coordinator.
const COORDINATOR: usize = 0;

/// What a worker has besides its member: nothing.
struct Nothing;

struct Scale<'a> {
    clock: &'a dyn Fn() -> Duration,
    /// Of the coordinator's machine.
    spent: Cell<Duration>,
    count: Cost,
    record: Record,
    record_bytes: usize,
    plans: BTreeMap<Generation, Arc<Plan>>,
    /// The newest plan that was written, that was told to go, and that was switched to.
    planned: Generation,
    running: Generation,
    switched: Generation,
    steps: u64,
}

/// Measures all phases with the shipped machines.
///
/// # Errors
/// A phase takes too long.
pub fn measure(setup: &Setup, clock: &dyn Fn() -> Duration) -> Result<Costs, Unfinished> {
    phases::measure(setup, clock)
}

impl Scale<'_> {
    /// What was counted so far.
    fn so_far(&self, now: u64) -> Cost {
        Cost {
            simulated: Duration::from_nanos(now),
            coordinator: self.spent.get(),
            ..self.count
        }
    }

    fn time(&self, process: Process, handle: impl FnOnce()) {
        if matches!(process, Process::Worker(_)) {
            return handle();
        }
        let before = (self.clock)();
        handle();
        let took = (self.clock)().saturating_sub(before);
        self.spent.set(self.spent.get() + took);
    }
}

impl Cost {
    /// What was counted after `earlier`.
    fn since(self, earlier: Cost) -> Cost {
        Cost {
            simulated: self.simulated.saturating_sub(earlier.simulated),
            coordinator: self.coordinator.saturating_sub(earlier.coordinator),
            reports: self.reports - earlier.reports,
            orders: self.orders - earlier.orders,
            peer_messages: self.peer_messages - earlier.peer_messages,
            connections: self.connections - earlier.connections,
        }
    }

    /// One of so many equal parts.
    fn part(self, parts: u32) -> Cost {
        let n = u64::from(parts);
        Cost {
            simulated: self.simulated / parts,
            coordinator: self.coordinator / parts,
            reports: self.reports / n,
            orders: self.orders / n,
            peer_messages: self.peer_messages / n,
            connections: self.connections / n,
        }
    }
}
