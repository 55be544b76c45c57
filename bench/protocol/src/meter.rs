//! The meter of a real program: this thread's processor time, this process's memory, and messages as they are really encoded.

use crate::MEMORY;
use nix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::time::Duration;
use varuna_frames::Frame;
use varuna_protocol::{Order, PeerMessage, Record, Report};
use varuna_sim::scale::Meter;
use varuna_wire::{Downward, EncodedPlans, Upward};

/// gRPC's prefix of each message: a flag and a length.
const GRPC_PREFIX: usize = 5;

#[derive(Default)]
pub(crate) struct RealMeter {
    /// As in the coordinator's driver: a plan is encoded once for all workers.
    plans: RefCell<EncodedPlans>,
}

fn with_prefix(message: &impl prost::Message) -> u64 {
    (message.encoded_len() + GRPC_PREFIX) as u64
}

impl Meter for RealMeter {
    /// Other programs on the machine do not count.
    fn cpu_time(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
    }

    fn report_bytes(&self, report: &Report) -> u64 {
        with_prefix(&Upward::Report(report.clone()).to_wire())
    }

    fn order_bytes(&self, term: u64, order: &Order) -> u64 {
        match order {
            Order::Prepare(plan) => with_prefix(&self.plans.borrow_mut().prepare(plan, term).0),
            other => with_prefix(&Downward::Order(other.clone()).to_wire(term)),
        }
    }

    fn peer_bytes(&self, message: &PeerMessage) -> u64 {
        let frame = postcard::to_stdvec(message).map(Frame::Message);
        let mut sent = Vec::new();
        let written = frame.map(|frame| frame.write(&mut sent));
        debug_assert!(matches!(written, Ok(Ok(()))), "a message can be sent");
        sent.len() as u64
    }

    fn record_bytes(&self, record: &Record) -> u64 {
        serde_json::to_vec(record).map_or(0, |text| text.len() as u64)
    }

    fn allocated_bytes(&self) -> u64 {
        MEMORY.current_usage() as u64
    }
}
