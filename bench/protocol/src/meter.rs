//! The meter of a real program: this thread's processor time, this process's memory, and messages as they are really encoded.

use crate::MEMORY;
use nix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;
use varuna_coordinator::record_format;
use varuna_frames::Frame;
use varuna_plan::state::mix;
use varuna_plan::{Plan, WorkerId};
use varuna_protocol::{Order, PeerMessage, Record, Report};
use varuna_sim::scale::Meter;
use varuna_wire::{Downward, EncodedPlans, Upward};

/// gRPC's prefix of each message: a flag and a length.
const GRPC_PREFIX: usize = 5;

#[derive(Default)]
pub(crate) struct RealMeter {
    /// As in the coordinator's driver: a plan is encoded once for all workers.
    plans: RefCell<EncodedPlans>,
    /// The newest plan, and the same with drawn ids.
    drawn: RefCell<Option<[Arc<Plan>; 2]>>,
    /// The longest record, as text.
    pub(crate) text_bytes: Cell<u64>,
}

/// Real workers draw their ids; the simulated ones count theirs up, which compresses far better.
fn with_drawn_ids(text: &str) -> String {
    let id = |quoted: &str| -> Option<String> {
        let id: WorkerId = quoted.parse().ok()?;
        (1..1 << 32)
            .contains(&id.0)
            .then(|| WorkerId(mix(id.0, 1)).to_string())
    };
    let parts = text.split('"');
    let drawn: Vec<_> = parts
        .map(|part| id(part).unwrap_or_else(|| part.to_owned()))
        .collect();
    drawn.join("\"")
}

impl RealMeter {
    /// The plan with ids as real workers draw them.
    fn drawn(&self, plan: &Arc<Plan>) -> Arc<Plan> {
        let known = self.drawn.borrow().clone();
        if let Some([_, drawn]) = known.filter(|[own, _]| Arc::ptr_eq(own, plan)) {
            return drawn;
        }
        let text = serde_json::to_string(plan).unwrap_or_default();
        let drawn = serde_json::from_str(&with_drawn_ids(&text));
        debug_assert!(drawn.is_ok(), "a plan is read as it was written");
        let drawn = Arc::new(drawn.unwrap_or_else(|_| Plan::clone(plan)));
        *self.drawn.borrow_mut() = Some([Arc::clone(plan), Arc::clone(&drawn)]);
        drawn
    }
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
            Order::Prepare(plan) => {
                let drawn = self.drawn(plan);
                with_prefix(&self.plans.borrow_mut().prepare(&drawn, term).0)
            }
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
        let text = serde_json::to_string(record).unwrap_or_default();
        self.text_bytes.set(self.text_bytes.get().max(text.len() as u64));
        let stored = serde_json::from_str(&with_drawn_ids(&text)).map(|drawn| record_format::encode(&drawn));
        debug_assert!(matches!(stored, Ok(Ok(_))), "a record can be written");
        stored.map_or(0, |stored| stored.map_or(0, |bytes| bytes.len() as u64))
    }

    fn allocated_bytes(&self) -> u64 {
        MEMORY.current_usage() as u64
    }
}
