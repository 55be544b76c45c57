//! Workers that end within their first steps, come back and end again. Each time a whole generation is fenced for them, so they
//! are not planned with for a while, which doubles each time. Known by name: a worker that starts again has a new id.

use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// A worker that lived through so many steps is sound.
const SOUND_STEPS: u64 = 16;
/// The first end is no reason: nodes are taken away at any time.
const FORGIVEN: u32 = 1;
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(10 * 60);
/// Names that are remembered at most.
const NAMES_MAX: usize = 1_024;

#[derive(Default)]
pub(super) struct Quarantine {
    by_name: BTreeMap<String, Ends>,
}

/// The ends of one worker in a row, none of which came after [`SOUND_STEPS`].
#[derive(Clone, Copy, Default)]
struct Ends {
    count: u32,
    until: Time,
}

impl Quarantine {
    /// A member has ended after this many steps.
    pub(super) fn ended(&mut self, now: Time, name: &str, steps: u64) {
        if steps >= SOUND_STEPS {
            self.by_name.remove(name);
            return;
        }
        self.note(now, name, 1);
    }

    /// A worker was found with other bits than the rest: its machine may do so again. That is never forgiven.
    pub(super) fn had_wrong_bits(&mut self, now: Time, name: &str) {
        self.note(now, name, FORGIVEN + 1);
    }

    fn note(&mut self, now: Time, name: &str, more: u32) {
        if self.by_name.len() >= NAMES_MAX {
            self.by_name.retain(|_, ends| now < ends.until);
        }
        if self.by_name.len() >= NAMES_MAX || bug!(NoQuarantine) {
            return;
        }
        let ends = self.by_name.entry(name.to_owned()).or_default();
        ends.count = ends.count.saturating_add(more);
        if let Some(doublings) = ends.count.checked_sub(FORGIVEN + 1) {
            let pause = SHORTEST.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX));
            ends.until = now.after(pause.min(LONGEST));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether a worker of this name is not to be planned with.
    pub(super) fn has(&self, now: Time, name: &str) -> bool {
        self.by_name.get(name).is_some_and(|ends| now < ends.until)
    }
}
