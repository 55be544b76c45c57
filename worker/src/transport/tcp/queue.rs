//! Outgoing frames of one connection. Urgent frames (tensors, messages) overtake the parts of transfers, which are states, and gradients
//! for followers of a unit. Transfers are sent one after another in their order, since the receiver assembles one at a time.

use super::states::StateSource;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Instant;
use varuna_frames::{Digester, Frame, PART_ELEMENTS as PART, TransferHeader};
use varuna_plan::Unit;
use varuna_torch::TorchError;

/// Bytes of urgent frames that may wait; above this, senders wait.
const BYTES_MAX: usize = 64 << 20;
/// Transfers that may wait. The protocol bounds them: one state is on its way to each peer, or up to 256 in a plan whose first step begins with
/// parameters, and four gradients of each unit that the peer follows.
const TRANSFERS_MAX: usize = 4096;

/// Why a frame was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueError {
    /// The connection is closed.
    Closed,
    /// The queue was full until the deadline.
    Deadline,
}

/// What was sent to the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// The state of a unit.
    State(Unit),
    /// A gradient of a unit.
    Gradient(Unit),
}

/// One unit's state or gradient that is being sent.
struct Transfer {
    header: TransferHeader,
    encoded: Vec<u8>,
    /// Whether the encoded header was sent.
    is_announced: bool,
    source: Box<dyn StateSource>,
    /// Elements sent so far, after the header.
    sent: usize,
    /// Digest of what is sent so far.
    digester: Digester,
}

impl Transfer {
    /// What its last frame ends.
    fn ends(&self) -> Sent {
        match &self.header {
            TransferHeader::State(state) => Sent::State(state.unit),
            TransferHeader::Gradient(gradient) => Sent::Gradient(gradient.unit),
            TransferHeader::Prepared(gradient) => Sent::Gradient(gradient.unit),
        }
    }

    /// The frame with its header.
    fn announcement(&self) -> Frame {
        let encoded = self.encoded.clone();
        match self.header {
            TransferHeader::State(_) => Frame::State(encoded),
            TransferHeader::Gradient(_) => Frame::UnitGradient(encoded),
            TransferHeader::Prepared(_) => Frame::PreparedGradient(encoded),
        }
    }

    /// The next frame, and whether it is the last one.
    fn next_frame(&mut self) -> Result<(Frame, bool), TorchError> {
        let (unit, step) = (self.header.unit(), self.header.step());
        if !self.is_announced {
            self.is_announced = true;
            return Ok((self.announcement(), false));
        }
        let end = self.source.elements().min(self.sent + PART);
        if self.sent == end {
            return Ok((Frame::End(unit, step, self.digester.digest()), true));
        }
        let part = self.source.range(self.sent, end)?;
        self.digester.add(&part);
        self.sent = end;
        Ok((Frame::Part(unit, step, part), false))
    }
}

/// The transfer whose next frame is being made, without the lock: a device is read for it, and a digest computed.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum InWork {
    /// No frame is being made.
    #[default]
    None,
    /// The transfer is still wanted, and comes before all others.
    Wanted,
    /// The transfer was dropped meanwhile.
    Dropped,
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Frame>,
    urgent_bytes: usize,
    /// Transfers in order, without the one in work.
    transfers: VecDeque<Transfer>,
    in_work: InWork,
    /// The announcement of a transfer that was dropped after it. The receiver has parts of it in memory, and forgets them when another one is announced.
    /// If none follows, this one is announced again.
    stopped: Option<Frame>,
    closed: bool,
}

impl State {
    /// Takes the first transfer, to make its next frame; [`State::put_back`] follows.
    fn take_first(&mut self) -> Option<Transfer> {
        let first = self.transfers.pop_front()?;
        self.in_work = InWork::Wanted;
        // Its own announcement is the next.
        self.stopped = None;
        Some(first)
    }

    /// Puts it back, unless all of it is sent; false if it was dropped meanwhile.
    fn put_back(&mut self, transfer: Transfer, all_sent: bool) -> bool {
        let wanted = std::mem::take(&mut self.in_work) == InWork::Wanted;
        match wanted {
            true if !all_sent => self.transfers.push_front(transfer),
            true => {}
            false => self.stopped = Some(transfer.announcement()),
        }
        wanted
    }

    fn waiting_transfers(&self) -> usize {
        self.transfers.len() + usize::from(self.in_work == InWork::Wanted)
    }

    fn drop_transfers(&mut self) {
        let begun = self.transfers.front().filter(|first| first.is_announced);
        if let Some(begun) = begun {
            self.stopped = Some(begun.announcement());
        }
        self.transfers.clear();
        if self.in_work == InWork::Wanted {
            self.in_work = InWork::Dropped;
        }
    }

    fn close(&mut self) {
        self.closed = true;
        self.urgent.clear();
        self.drop_transfers();
    }
}

/// Many threads add frames, one takes them.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    /// Adds a tensor. Waits while the queue is full, until `deadline`.
    pub(super) fn push(&self, frame: Frame, deadline: Instant) -> Result<(), QueueError> {
        let mut state = self.state.lock();
        while state.urgent_bytes > BYTES_MAX && !state.closed {
            if Instant::now() >= deadline {
                return Err(QueueError::Deadline);
            }
            self.changed.wait_until(&mut state, deadline);
        }
        if state.closed {
            return Err(QueueError::Closed);
        }
        state.urgent_bytes += frame.bytes();
        state.urgent.push_back(frame);
        self.changed.notify_all();
        Ok(())
    }

    /// Adds a protocol message without waiting: messages are small, and the protocol limits their number.
    pub(super) fn push_message(&self, bytes: Vec<u8>) {
        let mut state = self.state.lock();
        if !state.closed {
            state.urgent_bytes += bytes.len();
            state.urgent.push_back(Frame::Message(bytes));
            self.changed.notify_all();
        }
    }

    /// Adds a transfer after those that wait. False: there are too many.
    pub(super) fn push_transfer(
        &self,
        encoded: Vec<u8>,
        header: TransferHeader,
        source: Box<dyn StateSource>,
    ) -> bool {
        let mut own = self.state.lock();
        if own.closed {
            // Like a message it is dropped: the receiver learns that the connection is closed.
            return true;
        }
        if own.waiting_transfers() >= TRANSFERS_MAX {
            return false;
        }
        own.transfers.push_back(Transfer {
            header,
            digester: Digester::new(&encoded),
            encoded,
            is_announced: false,
            source,
            sent: 0,
        });
        self.changed.notify_all();
        true
    }

    /// Drops the states and gradients that are not sent to the end. The receiver drops what it has of them with the next announcement, which is
    /// repeated for that if no other follows.
    pub(super) fn drop_states(&self) {
        self.state.lock().drop_transfers();
    }

    /// The next frame, with what it ends if it is the last one of a transfer; `None` once the connection is closed. Called by one thread.
    pub(super) fn pop(&self) -> Option<(Frame, Option<Sent>)> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(frame) = state.urgent.pop_front() {
                state.urgent_bytes -= frame.bytes();
                self.changed.notify_all();
                return Some((frame, None));
            }
            let Some(mut transfer) = state.take_first() else {
                if let Some(again) = state.stopped.take() {
                    return Some((again, None));
                }
                self.changed.wait(&mut state);
                continue;
            };
            // Who adds a message or a tensor does not wait for a device.
            let made = MutexGuard::unlocked(&mut state, || transfer.next_frame());
            let ends = transfer.ends();
            if !state.put_back(transfer, matches!(made, Ok((_, true)))) {
                continue;
            }
            match made {
                Ok((frame, last)) => return Some((frame, last.then_some(ends))),
                Err(error) => {
                    // The receiver learns that the connection is closed.
                    tracing::error!(%error, "what is sent to a peer cannot be read");
                    state.close();
                    self.changed.notify_all();
                    return None;
                }
            }
        }
    }

    /// Drops all frames; nothing more is sent.
    pub(super) fn close(&self) {
        self.state.lock().close();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
