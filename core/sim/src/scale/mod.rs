//! Measures the cost of the protocol with many workers: messages, simulated time, and the processor time of the shipped coordinator.
//!
//! An environment without faults and without randomness: every message takes a millisecond, a step a tenth of a second, a unit of state two
//! milliseconds. Then one worker is killed, and a tenth as many join. The caller supplies the measuring instruments ([`Meter`]), because
//! this crate has no clock, no encoding of messages and no allocator. Nothing else depends on them.

mod network;
mod phases;

use crate::host::Process;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use varuna_plan::{CostPlanner, Generation, Plan};
use varuna_protocol::{Order, PeerMessage, Record, Report};

/// The measuring instruments.
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

/// The configuration of a measurement.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The planner that the coordinator asks.
    pub planner: CostPlanner,
    /// Workers at first.
    pub workers: u64,
    /// Samples in a step.
    pub global_batch_size: u64,
}

/// The cost of one phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Time on the simulated clock.
    pub simulated: Duration,
    /// Processor time of the coordinator's machine, including the planner.
    pub coordinator: Duration,
    /// Number of messages from workers to the coordinator.
    pub reports: u64,
    /// Number of messages from the coordinator to workers.
    pub orders: u64,
    /// Number of messages between workers.
    pub peer_messages: u64,
    /// Number of connections that were opened between workers.
    pub connections: u64,
    /// Size of all reports, bytes.
    pub report_bytes: u64,
    /// Size of all orders, bytes.
    pub order_bytes: u64,
    /// Size of all messages between workers, without tensors and state, bytes.
    pub peer_bytes: u64,
}

/// The costs of all phases.
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
    /// Size of the largest record that was written, bytes.
    pub record_bytes: u64,
    /// Memory of the coordinator's machine at the end, bytes. This includes plans that it shares with its record and its workers.
    pub coordinator_bytes: u64,
}

/// An error: a phase did not end in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{workers} workers: {phase} did not end within {within:?} of simulated time")]
pub struct Unfinished {
    /// Workers at first.
    pub workers: u64,
    /// Name of the phase.
    pub phase: &'static str,
    /// The time limit.
    pub within: Duration,
}

/// The only coordinator.
const COORDINATOR: usize = 0;

/// What a worker has besides its member: nothing.
struct Nothing;

struct Scale<'a> {
    meter: &'a dyn Meter,
    /// Processor time of the coordinator's machine.
    spent: Cell<Duration>,
    count: Cost,
    record: Record,
    record_bytes: u64,
    plans: BTreeMap<Generation, Arc<Plan>>,
    /// The generation of the newest plan that was written, that was told to go, and that was switched to.
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
    /// The cost so far.
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
    /// Combines two costs figure by figure.
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

    /// The cost since `earlier`.
    fn since(self, earlier: Cost) -> Cost {
        self.with(earlier, Duration::saturating_sub, |a, b| a - b)
    }

    fn and(self, more: Cost) -> Cost {
        self.with(more, |a, b| a + b, |a, b| a + b)
    }

    /// The cost divided into `parts` equal parts.
    fn part(self, parts: u32) -> Cost {
        self.with(self, |time, _| time / parts, |count, _| count / u64::from(parts))
    }
}
