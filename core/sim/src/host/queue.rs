//! The queue of events, in the order of time.

use std::collections::BTreeMap;

/// Events by time; those of the same time happen in the order in which they were scheduled.
pub(crate) struct Queue<T> {
    now: u64,
    /// Events scheduled so far.
    count: u64,
    events: BTreeMap<(u64, u64), T>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        Self {
            now: 0,
            count: 0,
            events: BTreeMap::new(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn at(&mut self, time: u64, event: T) {
        self.count += 1;
        self.events.insert((time, self.count), event);
    }

    pub(crate) fn after(&mut self, delay: u64, event: T) {
        self.at(self.now + delay, event);
    }

    /// When the next event happens.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.events.first_key_value().map(|((time, _), _)| *time)
    }

    /// Moves the clock to the next event and takes it, with its number.
    pub(crate) fn pop(&mut self) -> Option<(u64, T)> {
        let ((time, number), event) = self.events.pop_first()?;
        self.advance_to(time);
        Some((number, event))
    }

    /// Moves the clock; it never goes back.
    pub(crate) fn advance_to(&mut self, time: u64) {
        self.now = self.now.max(time);
    }
}
