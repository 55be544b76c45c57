//! Streams and events. A stream is a thread that runs its work in order, with a delay.

use crate::faults;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

type Work = Box<dyn FnOnce() + Send>;

/// A queue and its thread. The thread ends when the stream is dropped and its work is done.
pub(crate) struct Stream(Mutex<Sender<Work>>);

static STREAMS: AtomicU64 = AtomicU64::new(0);

/// The next number of a pseudorandom sequence (SplitMix64, Steele et al. 2014).
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Stream {
    pub(crate) fn start() -> std::io::Result<Arc<Stream>> {
        let (sender, inbox) = channel::<Work>();
        let number = STREAMS.fetch_add(1, Ordering::Relaxed);
        let mut state = faults::number("VARUNA_FAKE_NCCL_SEED", 1).wrapping_add(number << 32);
        let most = faults::number("VARUNA_FAKE_NCCL_LATE_US", 300);
        std::thread::Builder::new()
            .name(format!("stream {number}"))
            .spawn(move || {
                for work in inbox {
                    // At least half of the maximum, so that code that forgets to wait fails every time.
                    let late = most / 2 + draw(&mut state) % (most / 2 + 1);
                    std::thread::sleep(Duration::from_micros(late));
                    work();
                }
            })?;
        Ok(Arc::new(Stream(Mutex::new(sender))))
    }

    pub(crate) fn push(&self, work: impl FnOnce() + Send + 'static) {
        // The thread runs as long as the sender exists.
        let _ = self.0.lock().send(Box::new(work));
    }
}

/// How often an event was recorded, and how many of these records its streams have reached.
#[derive(Default)]
pub(crate) struct Event {
    counts: Mutex<(u64, u64)>,
    /// When a stream last reached it.
    at: Mutex<Option<Instant>>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn record(self: &Arc<Event>, stream: &Stream) {
        let mut counts = self.counts.lock();
        counts.0 += 1;
        let (own, ticket) = (Arc::clone(self), counts.0);
        stream.push(move || {
            let mut counts = own.counts.lock();
            counts.1 = counts.1.max(ticket);
            *own.at.lock() = Some(Instant::now());
            own.changed.notify_all();
        });
    }

    /// Makes later work of the stream wait for all records so far.
    pub(crate) fn hold(self: &Arc<Event>, stream: &Stream) {
        let (own, ticket) = (Arc::clone(self), self.counts.lock().0);
        stream.push(move || {
            let mut counts = own.counts.lock();
            while counts.1 < ticket {
                own.changed.wait(&mut counts);
            }
        });
    }

    /// When it was last reached; none while a record is outstanding.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.is_done().then(|| *self.at.lock()).flatten()
    }

    pub(crate) fn is_done(&self) -> bool {
        let counts = self.counts.lock();
        counts.1 >= counts.0
    }
}
