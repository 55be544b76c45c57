//! What the protocol costs with many workers: messages, simulated time, and the processor time of the shipped coordinator.
//!
//! An environment without faults and without randomness: every message takes a millisecond, a step a tenth of a second, a unit of
//! state two milliseconds. Then one worker is killed, and a tenth as many join. The caller gives what is measured with
//! ([`Meter`]): this crate has no clock, no encoding of messages and no allocator. Nothing else depends on what it says.

mod network;
mod phases;

use crate::host::Process;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{CostPlanner, Generation, Plan};
use varuna_protocol::{Order, PeerMessage, Record, Report};

/// What costs are measured with.
pub trait Meter {
    /// Processor time of this thread.
    fn cpu_time(&self) -> Duration;
    /// A report as it is sent, bytes.
    fn report_bytes(&self, report: &Report) -> u64;
    /// An order of a coordinator's term as it is sent, bytes.
    fn order_bytes(&self, term: u64, order: &Order) -> u64;
    /// A message between workers as it is sent, bytes.
    fn peer_bytes(&self, message: &PeerMessage) -> u64;
    /// The record as it is stored, bytes.
    fn record_bytes(&self, record: &Record) -> u64;
    /// Memory that is allocated now, bytes.
    fn allocated_bytes(&self) -> u64;
}

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
    /// All reports.
    pub report_bytes: u64,
    /// All orders.
    pub order_bytes: u64,
    /// All messages between workers; tensors and state are not among them.
    pub peer_bytes: u64,
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
    /// The largest record that was written.
    pub record_bytes: u64,
    /// What the coordinator's machine holds at the end, bytes. Plans that it shares with its record and its workers are counted.
    pub coordinator_bytes: u64,
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
    meter: &'a dyn Meter,
    /// Of the coordinator's machine.
    spent: Cell<Duration>,
    count: Cost,
    record: Record,
    record_bytes: u64,
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
pub fn measure(setup: &Setup, meter: &dyn Meter) -> Result<Costs, Unfinished> {
    phases::measure(setup, meter)
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
        let before = self.meter.cpu_time();
        handle();
        let took = self.meter.cpu_time().saturating_sub(before);
        self.spent.set(self.spent.get() + took);
    }
}

impl Cost {
    /// Each figure from those of two costs.
    fn with(
        self,
        other: Cost,
        times: impl Fn(Duration, Duration) -> Duration,
        counts: impl Fn(u64, u64) -> u64,
    ) -> Cost {
        Cost {
            simulated: times(self.simulated, other.simulated),
            coordinator: times(self.coordinator, other.coordinator),
            reports: counts(self.reports, other.reports),
            orders: counts(self.orders, other.orders),
            peer_messages: counts(self.peer_messages, other.peer_messages),
            connections: counts(self.connections, other.connections),
            report_bytes: counts(self.report_bytes, other.report_bytes),
            order_bytes: counts(self.order_bytes, other.order_bytes),
            peer_bytes: counts(self.peer_bytes, other.peer_bytes),
        }
    }

    /// What was counted after `earlier`.
    fn since(self, earlier: Cost) -> Cost {
        self.with(earlier, Duration::saturating_sub, |a, b| a - b)
    }

    fn and(self, more: Cost) -> Cost {
        self.with(more, |a, b| a + b, |a, b| a + b)
    }

    /// One of so many equal parts.
    fn part(self, parts: u32) -> Cost {
        self.with(self, |time, _| time / parts, |count, _| count / u64::from(parts))
    }
}
