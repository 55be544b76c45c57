//! Where a generation's messages wait until the engine takes them: one box per worker and generation.

use super::{LinkError, Tag};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use varuna_plan::WorkerId;

/// Elements that may wait in one box: 1 GiB. A sender that runs further ahead waits in its connection.
const ELEMENTS_MAX: usize = 1 << 28;

#[derive(Default)]
struct State {
    messages: BTreeMap<(WorkerId, Tag), Vec<f32>>,
    elements: usize,
    closed: BTreeSet<WorkerId>,
    aborted: bool,
    poked: bool,
}

/// Messages by sender and tag, with waiting, abort and closed senders.
#[derive(Default)]
pub struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the maps whole: every change is one call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in; waits while the box is full. Returns false when the generation is over here.
    pub fn put(&self, from: WorkerId, tag: Tag, payload: Vec<f32>) -> bool {
        let mut state = self.lock();
        while state.elements > ELEMENTS_MAX && !state.aborted {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.aborted {
            return false;
        }
        state.elements += payload.len();
        state.messages.insert((from, tag), payload);
        self.changed.notify_all();
        true
    }

    /// The sender will send no more.
    pub fn close(&self, from: WorkerId) {
        self.lock().closed.insert(from);
        self.changed.notify_all();
    }

    /// The generation is over here: every waiting and later call ends.
    pub fn abort(&self) {
        let mut state = self.lock();
        state.aborted = true;
        state.messages.clear();
        state.elements = 0;
        self.changed.notify_all();
    }

    /// Whether [`Mailbox::abort`] was called.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.lock().aborted
    }

    /// Wakes a waiting [`Mailbox::take_any`].
    pub fn poke(&self) {
        self.lock().poked = true;
        self.changed.notify_all();
    }

    /// Takes a message, waiting for it.
    ///
    /// # Errors
    /// Aborted, the sender is closed, or nothing came until the deadline.
    pub fn take(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Vec<f32>, LinkError> {
        self.wait(&[(from, tag)], deadline, false)?.map(|(_, m)| m).ok_or(LinkError::Aborted)
    }

    /// Takes whichever comes first; `None` after a poke.
    ///
    /// # Errors
    /// As for [`Mailbox::take`].
    pub fn take_any(
        &self,
        wanted: &[(WorkerId, Tag)],
        deadline: Instant,
    ) -> Result<Option<(usize, Vec<f32>)>, LinkError> {
        self.wait(wanted, deadline, true)
    }

    fn wait(
        &self,
        wanted: &[(WorkerId, Tag)],
        deadline: Instant,
        pokable: bool,
    ) -> Result<Option<(usize, Vec<f32>)>, LinkError> {
        let mut state = self.lock();
        loop {
            if state.aborted {
                return Err(LinkError::Aborted);
            }
            let found = wanted.iter().enumerate().find_map(|(i, key)| state.messages.remove(key).map(|m| (i, m)));
            if let Some((i, message)) = found {
                state.elements -= message.len();
                self.changed.notify_all();
                return Ok(Some((i, message)));
            }
            if pokable && std::mem::take(&mut state.poked) {
                return Ok(None);
            }
            if let Some((from, _)) = wanted.iter().find(|(from, _)| state.closed.contains(from)) {
                return Err(LinkError::Closed(*from));
            }
            let now = Instant::now();
            if now >= deadline {
                return match wanted.first() {
                    Some((from, tag)) => Err(LinkError::Deadline { from: *from, tag: *tag }),
                    None => Ok(None),
                };
            }
            state = self
                .changed
                .wait_timeout(state, deadline - now)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}
