//! Outgoing frames of one connection. Urgent frames (tensors, messages) overtake the parts of state transfers. Transfers are
//! sent one after another, since the receiver assembles one state at a time.

use super::states::StateSource;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::Instant;
use varuna_frames::{Digester, Frame, PART_ELEMENTS as PART, StateHeader};
use varuna_plan::Unit;

/// Bytes of urgent frames that may wait; above this, senders wait.
const BYTES_MAX: usize = 64 << 20;
/// Transfers that may wait: the protocol has one on its way to each peer; those of a closed generation may overlap.
const TRANSFERS_MAX: usize = 64;

/// Why a frame was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueError {
    /// The connection is closed.
    Closed,
    /// The queue was full until the deadline.
    Deadline,
}

/// One unit's state that is being sent.
struct Transfer {
    header: StateHeader,
    /// The encoded header, until that is sent.
    encoded: Option<Vec<u8>>,
    state: Box<dyn StateSource>,
    /// Elements sent so far, after the header.
    sent: usize,
    /// Of what is sent so far.
    digester: Digester,
}

impl Transfer {
    /// The next frame, and whether it is the last one.
    fn next_frame(&mut self) -> (Frame, bool) {
        let StateHeader { unit, id, .. } = self.header;
        if let Some(encoded) = self.encoded.take() {
            return (Frame::State(encoded), false);
        }
        let end = self.state.elements().min(self.sent + PART);
        if self.sent == end {
            return (Frame::End(unit, id.step, self.digester.digest()), true);
        }
        let part = self.state.range(self.sent, end);
        self.digester.add(&part);
        self.sent = end;
        (Frame::Part(unit, id.step, part), false)
    }
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Frame>,
    urgent_bytes: usize,
    /// Transfers in order.
    transfers: VecDeque<Transfer>,
    closed: bool,
}

impl State {
    /// The next frame of the first transfer; with its unit, if it is the last one.
    fn next_part(&mut self) -> Option<(Frame, Option<Unit>)> {
        let transfer = self.transfers.front_mut()?;
        let unit = transfer.header.unit;
        let (frame, last) = transfer.next_frame();
        if last {
            self.transfers.pop_front();
        }
        Some((frame, last.then_some(unit)))
    }
}

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
    pub(super) fn push_state(
        &self,
        encoded: Vec<u8>,
        header: StateHeader,
        state: Box<dyn StateSource>,
    ) -> bool {
        let mut own = self.state.lock();
        if own.closed {
            // Like a message it is dropped: the receiver learns that the connection is closed.
            return true;
        }
        if own.transfers.len() >= TRANSFERS_MAX {
            return false;
        }
        own.transfers.push_back(Transfer {
            header,
            digester: Digester::new(&encoded),
            encoded: Some(encoded),
            state,
            sent: 0,
        });
        self.changed.notify_all();
        true
    }

    /// Drops the states that are not sent to the end.
    pub(super) fn drop_states(&self) {
        self.state.lock().transfers.clear();
    }

    /// The next frame, with the unit if it is the last one of a state; `None` once the connection is closed.
    pub(super) fn pop(&self) -> Option<(Frame, Option<Unit>)> {
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
            if let Some(part) = state.next_part() {
                return Some(part);
            }
            self.changed.wait(&mut state);
        }
    }

    /// Drops all frames; nothing more is sent.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.urgent.clear();
        state.transfers.clear();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use varuna_plan::{StateId, Step, Unit};

    fn frame(queue: &Queue) -> Option<Frame> {
        queue.pop().map(|(frame, _)| frame)
    }

    fn transfer(queue: &Queue, unit: u32, elements: usize) {
        let (id, data) = (StateId::INITIAL, vec![unit as f32; elements]);
        let header = StateHeader {
            unit: Unit(unit),
            id,
            decision: None,
            progress: varuna_plan::OptimizerProgress::START,
            elements: elements as u64,
        };
        assert!(queue.push_state(vec![u8::try_from(unit).unwrap()], header, Box::new(data)));
    }

    #[test]
    fn tensors_overtake_transfers_and_transfers_never_mix() {
        let queue = Queue::default();
        transfer(&queue, 1, PART + 1);
        transfer(&queue, 2, 0);
        transfer(&queue, 3, 1);
        assert_eq!(frame(&queue), Some(Frame::State(vec![1])));
        queue.push_message(vec![9]);
        assert_eq!(frame(&queue), Some(Frame::Message(vec![9])));
        assert_eq!(
            frame(&queue),
            Some(Frame::Part(Unit(1), Step(0), vec![1.0; PART]))
        );
        assert_eq!(frame(&queue), Some(Frame::Part(Unit(1), Step(0), vec![1.0])));
        let end = |unit: u32, elements: usize| {
            let mut digester = Digester::new(&[u8::try_from(unit).unwrap()]);
            digester.add(&vec![unit as f32; elements]);
            Some((
                Frame::End(Unit(unit), Step(0), digester.digest()),
                Some(Unit(unit)),
            ))
        };
        assert_eq!(queue.pop(), end(1, PART + 1));
        assert_eq!(frame(&queue), Some(Frame::State(vec![2])));
        assert_eq!(queue.pop(), end(2, 0));
        assert_eq!(frame(&queue), Some(Frame::State(vec![3])));
        assert_eq!(frame(&queue), Some(Frame::Part(Unit(3), Step(0), vec![3.0])));
        assert_eq!(queue.pop(), end(3, 1));
    }

    #[test]
    fn a_full_queue_is_waited_for_until_the_deadline_and_a_transfer_does_not_fill_it() {
        let queue = Queue::default();
        let tensor = || Frame::Part(Unit(0), Step(0), vec![0.0; BYTES_MAX / 4 + 1]);
        let soon = || Instant::now() + Duration::from_millis(5);
        transfer(&queue, 1, BYTES_MAX / 2);
        assert_eq!(queue.push(tensor(), soon()), Ok(()));
        assert_eq!(queue.push(tensor(), soon()), Err(QueueError::Deadline));
        assert!(frame(&queue).is_some());
        assert_eq!(queue.push(tensor(), soon()), Ok(()));
        queue.close();
        assert_eq!(queue.push(tensor(), soon()), Err(QueueError::Closed));
        assert_eq!(frame(&queue), None);
    }
}
