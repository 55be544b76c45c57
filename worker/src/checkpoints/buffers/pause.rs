//! When no state is begun because earlier ones had no memory.

use std::time::{Duration, Instant};

/// How long no state is begun after one that had no memory, since the optimizer waited for it in vain. The pause ends, because the store
/// may have been slow only once.
pub(super) const PAUSE: Duration = Duration::from_secs(60);
/// How often the pause doubles at most, with each such state in a row. If none ever has room, the optimizer loses 15 s in a quarter of an
/// hour.
const DOUBLINGS_MAX: u32 = 4;

/// The pause after states that had no memory.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// No state is begun until then, unless all of it has room.
    until: Option<Instant>,
    /// States in a row that had no memory.
    had_none: u32,
}

impl Pause {
    /// A state had no memory.
    pub(super) fn begin(&mut self, now: Instant) {
        self.until = Some(now + PAUSE * (1 << self.had_none.min(DOUBLINGS_MAX)));
        self.had_none = self.had_none.saturating_add(1);
    }

    pub(super) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// A whole state has room again.
    pub(super) fn end(&mut self) {
        self.until = None;
    }

    /// All units of a state had memory: the next pause is a short one.
    pub(super) fn was_enough(&mut self) {
        self.had_none = 0;
    }
}
