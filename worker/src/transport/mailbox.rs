//! Received messages that wait until the engine takes them: one mailbox for each worker and generation.

use super::{Address, LinkError, Packet, Tag};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use varuna_plan::WorkerId;

/// Bytes that may wait from one sender: 512 MiB. A sender that is further ahead is blocked. Each sender has its own limit,
/// so that a fast sender cannot block the one whose message is needed next.
pub const BYTES_MAX: usize = 1 << 29;

/// What a message counts beside its elements: its place here takes memory even if it has none.
const OVERHEAD: usize = 256;

/// Why a message was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutError {
    /// The generation has ended on this worker.
    Closed,
    /// The sender's limit was reached until the deadline.
    Full,
}

#[derive(Default)]
struct State {
    messages: BTreeMap<(WorkerId, Tag), Packet>,
    /// What the messages count, by sender.
    bytes: BTreeMap<WorkerId, usize>,
    closed: BTreeSet<WorkerId>,
    aborted: bool,
    poked: bool,
}

/// Messages by sender and tag.
pub struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
    bytes_max: usize,
}

impl Default for Mailbox {
    fn default() -> Self {
        Mailbox::bounded(BYTES_MAX)
    }
}

impl State {
    fn waiting_from(&self, from: WorkerId) -> usize {
        self.bytes.get(&from).copied().unwrap_or(0)
    }

    fn remove(&mut self, key: &(WorkerId, Tag)) -> Option<Packet> {
        let message = self.messages.remove(key)?;
        if let Some(bytes) = self.bytes.get_mut(&key.0) {
            *bytes -= message.bytes().len() + OVERHEAD;
        }
        Some(message)
    }

    /// The greatest of these messages that has come. Hundreds may be wanted where one has come, or the other way round: only the fewer
    /// are gone through.
    fn remove_any(&mut self, wanted: &BTreeSet<Address>) -> Option<(Address, Packet)> {
        let found = if self.messages.len() < wanted.len() {
            self.messages.keys().rev().find(|key| wanted.contains(key))
        } else {
            wanted.iter().rev().find(|key| self.messages.contains_key(key))
        };
        let key = *found?;
        self.remove(&key).map(|message| (key, message))
    }
}

impl Mailbox {
    /// A mailbox that accepts messages of a sender until more than `bytes_max` bytes of it wait; each message
    /// counts some more than it has.
    #[must_use]
    pub fn bounded(bytes_max: usize) -> Mailbox {
        Mailbox {
            state: Mutex::default(),
            changed: Condvar::new(),
            bytes_max,
        }
    }

    /// Adds a message. Waits while the sender's limit is reached, until `deadline` (None: until the generation ends). A second
    /// message with the same sender and tag replaces the first.
    ///
    /// # Errors
    /// See [`PutError`].
    pub fn put(
        &self,
        from: WorkerId,
        tag: Tag,
        packet: Packet,
        deadline: Option<Instant>,
    ) -> Result<(), PutError> {
        let mut state = self.state.lock();
        while state.waiting_from(from) > self.bytes_max && !state.aborted {
            match deadline {
                Some(d) if Instant::now() >= d => return Err(PutError::Full),
                Some(d) => {
                    self.changed.wait_until(&mut state, d);
                }
                None => self.changed.wait(&mut state),
            }
        }
        if state.aborted {
            return Err(PutError::Closed);
        }
        state.remove(&(from, tag));
        *state.bytes.entry(from).or_default() += packet.bytes().len() + OVERHEAD;
        state.messages.insert((from, tag), packet);
        self.changed.notify_all();
        Ok(())
    }

    /// The sender will send no more messages.
    pub fn close(&self, from: WorkerId) {
        self.state.lock().closed.insert(from);
        self.changed.notify_all();
    }

    /// Ends the generation on this worker: every waiting and every later call fails.
    pub fn abort(&self) {
        let mut state = self.state.lock();
        state.aborted = true;
        state.messages.clear();
        state.bytes.clear();
        self.changed.notify_all();
    }

    /// Whether [`Mailbox::abort`] was called.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.state.lock().aborted
    }

    /// Wakes a waiting [`Mailbox::take_any`].
    pub fn wake(&self) {
        self.state.lock().poked = true;
        self.changed.notify_all();
    }

    /// Waits for a message and takes it.
    ///
    /// # Errors
    /// Aborted, the sender is closed, or the message did not arrive before the deadline.
    pub fn take(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.wait(&BTreeSet::from([(from, tag)]), deadline, false)?
            .map(|(_, m)| m)
            .ok_or(LinkError::Aborted)
    }

    /// Waits for one of several messages; see [`super::Link::recv_any`].
    ///
    /// # Errors
    /// As for [`Mailbox::take`].
    pub fn take_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.wait(wanted, deadline, true)
    }

    fn wait(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
        pokable: bool,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        let mut state = self.state.lock();
        loop {
            if state.aborted {
                return Err(LinkError::Aborted);
            }
            if let Some(found) = state.remove_any(wanted) {
                self.changed.notify_all();
                return Ok(Some(found));
            }
            if pokable && std::mem::take(&mut state.poked) {
                return Ok(None);
            }
            if let Some((from, _)) = wanted.iter().find(|(from, _)| state.closed.contains(from)) {
                return Err(LinkError::Closed(*from));
            }
            if Instant::now() >= deadline {
                return match wanted.first() {
                    Some((from, tag)) => Err(LinkError::Deadline {
                        from: *from,
                        tag: *tag,
                    }),
                    None => Ok(None),
                };
            }
            self.changed.wait_until(&mut state, deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;
    use varuna_plan::Step;

    fn tag(micro_batch: u32) -> Tag {
        Tag::Activation {
            stage: 0,
            step: Step(0),
            micro_batch,
        }
    }

    fn packet(values: &[f32]) -> Packet {
        values.to_vec().into()
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn a_sender_at_its_limit_waits_and_does_not_block_another() {
        let (a, b) = (WorkerId(1), WorkerId(2));
        let mailbox = Arc::new(Mailbox::bounded(4));
        let put =
            |from, micro_batch| mailbox.put(from, tag(micro_batch), packet(&[0.0; 5]), Some(Instant::now()));
        assert_eq!(put(a, 0), Ok(()));
        assert_eq!(put(a, 1), Err(PutError::Full));
        assert_eq!(put(b, 1), Ok(()), "the other sender is below its limit");
        let own = Arc::clone(&mailbox);
        let waiter = std::thread::spawn(move || own.put(a, tag(1), packet(&[1.0; 5]), Some(later())));
        assert_eq!(mailbox.take(a, tag(0), later()), Ok(packet(&[0.0; 5])));
        assert_eq!(waiter.join().unwrap(), Ok(()), "the first message was taken");
        assert_eq!(mailbox.take(a, tag(1), later()), Ok(packet(&[1.0; 5])));
        assert_eq!(put(a, 2), Ok(()));
    }

    #[test]
    fn a_repeated_message_is_counted_once() {
        let (mailbox, a) = (Mailbox::bounded(16 + OVERHEAD), WorkerId(1));
        for _ in 0..3 {
            let repeated = mailbox.put(a, tag(0), packet(&[0.0; 4]), Some(Instant::now()));
            assert_eq!(repeated, Ok(()));
        }
    }

    #[test]
    fn messages_count_by_their_bytes_and_not_by_their_elements() {
        let taken = |message: Packet| {
            let mailbox = Mailbox::bounded(10 * OVERHEAD);
            let put = |i| mailbox.put(WorkerId(1), tag(i), message.clone(), Some(Instant::now()));
            (0..20).take_while(|i| put(*i) == Ok(())).count()
        };
        // With the overhead, a message of the first kind takes three times OVERHEAD, and one of the second kind two times.
        assert_eq!(taken(Packet::Float32(vec![0.0; OVERHEAD / 2])), 4);
        assert_eq!(taken(Packet::BFloat16(vec![0; OVERHEAD / 2])), 6);
    }

    #[test]
    fn messages_without_elements_are_bounded_too() {
        let (mailbox, a) = (Mailbox::bounded(3 * OVERHEAD), WorkerId(1));
        let put = |micro_batch| mailbox.put(a, tag(micro_batch), packet(&[]), Some(Instant::now()));
        let taken = (0..10).take_while(|i| put(*i) == Ok(())).count();
        assert_eq!(taken, 4, "until more than three wait");
    }

    #[test]
    fn a_fence_ends_the_wait_at_the_limit() {
        let (mailbox, a) = (Arc::new(Mailbox::bounded(0)), WorkerId(1));
        mailbox.put(a, tag(0), packet(&[0.0]), None).unwrap();
        let own = Arc::clone(&mailbox);
        let waiter = std::thread::spawn(move || own.put(a, tag(1), packet(&[0.0]), None));
        mailbox.abort();
        assert_eq!(waiter.join().unwrap(), Err(PutError::Closed));
    }

    #[test]
    fn messages_that_arrived_before_the_close_can_be_taken() {
        let (mailbox, a) = (Mailbox::default(), WorkerId(1));
        mailbox.put(a, tag(0), packet(&[2.0]), None).unwrap();
        mailbox.close(a);
        assert_eq!(mailbox.take(a, tag(0), later()), Ok(packet(&[2.0])));
        assert_eq!(mailbox.take(a, tag(1), later()), Err(LinkError::Closed(a)));
    }

    #[test]
    fn one_of_several_wanted_messages_is_taken() {
        let a = WorkerId(1);
        let wanted = |tags: std::ops::Range<u32>| tags.map(|t| (a, tag(t))).collect::<BTreeSet<_>>();
        for wanted in [wanted(2..5), wanted(2..90)] {
            let mailbox = Mailbox::default();
            for t in [0, 1, 3, 4, 95, 96, 97] {
                mailbox.put(a, tag(t), packet(&[t as f32]), None).unwrap();
            }
            for t in [4, 3] {
                let taken = mailbox.take_any(&wanted, later());
                assert_eq!(taken, Ok(Some(((a, tag(t)), packet(&[t as f32])))));
            }
            mailbox.wake();
            assert_eq!(
                mailbox.take_any(&wanted, later()),
                Ok(None),
                "the others are not wanted"
            );
            mailbox.close(a);
            assert_eq!(mailbox.take_any(&wanted, later()), Err(LinkError::Closed(a)));
        }
    }

    #[test]
    fn a_wake_ends_a_wait_without_a_message() {
        let mailbox = Arc::new(Mailbox::default());
        let own = Arc::clone(&mailbox);
        let waiter = std::thread::spawn(move || own.take_any(&BTreeSet::new(), later()));
        mailbox.wake();
        assert_eq!(waiter.join().unwrap(), Ok(None));
    }
}
