//! Frames on their way out of one connection: urgent ones (tensors, messages) overtake bulk (state for peers).

use super::frame::Frame;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Bytes that may wait of each kind; a sender that runs further ahead waits.
const BYTES_MAX: usize = 64 << 20;

/// Why a frame was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueError {
    /// The connection is closed.
    Closed,
    /// The queue stayed full.
    Deadline,
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Frame>,
    bulk: VecDeque<Frame>,
    bytes: [usize; 2],
    closed: bool,
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a frame in, waiting while too much waits before it (until `deadline`; none = until it is closed).
    pub(super) fn push(&self, frame: Frame, urgent: bool, deadline: Option<Instant>) -> Result<(), QueueError> {
        let kind = usize::from(!urgent);
        let mut state = self.lock();
        while state.bytes[kind] > BYTES_MAX && !state.closed {
            let now = Instant::now();
            state = match deadline {
                Some(d) if now >= d => return Err(QueueError::Deadline),
                Some(d) => self.changed.wait_timeout(state, d - now).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        if state.closed {
            return Err(QueueError::Closed);
        }
        state.bytes[kind] += frame.bytes();
        if urgent { state.urgent.push_back(frame) } else { state.bulk.push_back(frame) }
        self.changed.notify_all();
        Ok(())
    }

    /// Puts a protocol message in without waiting: they are small, and the protocol bounds their number.
    pub(super) fn push_message(&self, bytes: Vec<u8>) {
        let mut state = self.lock();
        if !state.closed {
            state.bytes[0] += bytes.len();
            state.urgent.push_back(Frame::Message(bytes));
            self.changed.notify_all();
        }
    }

    /// The next frame; `None` once the connection is closed.
    pub(super) fn pop(&self) -> Option<Frame> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let next = state.urgent.pop_front().map(|f| (0, f));
            if let Some((kind, frame)) = next.or_else(|| state.bulk.pop_front().map(|f| (1, f))) {
                state.bytes[kind] -= frame.bytes();
                self.changed.notify_all();
                return Some(frame);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing more goes out.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.urgent.clear();
        state.bulk.clear();
        self.changed.notify_all();
    }
}
