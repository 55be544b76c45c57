//! Workers that are excluded from plans for a while, which doubles each time: those that end within their first steps, come back and end
//! again, and those that cannot read the job's data while others can. Each such fault costs a fence of the whole generation. Workers are
//! identified by name, since a restarted worker has a new id.

use super::data_errors::DataErrors;
use super::exhausted::Exhausted;
use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// A worker that has run this many steps is sound.
const SOUND_STEPS: u64 = 16;
/// Number of ends that are ignored: nodes may be taken away at any time.
const FORGIVEN: u32 = 1;
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(10 * 60);
/// Maximum number of names that are remembered for each cause.
const NAMES_MAX: usize = 1_024;

#[derive(Default)]
pub(super) struct Quarantine {
    /// Reports of workers that cannot read their data or their model's code, before anything follows from them.
    pub(super) data_errors: DataErrors,
    /// Workers that ran out of memory: they are used, with less.
    pub(super) exhausted: Exhausted,
    unsound: Names,
    cannot_read: Names,
}

/// Workers that are left out for the same cause.
#[derive(Default)]
struct Names(BTreeMap<String, Faults>);

/// Consecutive faults of one worker. An end counts only if it came before [`SOUND_STEPS`].
#[derive(Clone, Copy, Default)]
struct Faults {
    count: u32,
    until: Time,
}

impl Names {
    fn note(&mut self, now: Time, name: &str, more: u32) {
        if self.0.len() >= NAMES_MAX {
            self.0.retain(|_, faults| now < faults.until);
        }
        if self.0.len() >= NAMES_MAX || bug!(NoQuarantine) {
            return;
        }
        let faults = self.0.entry(name.to_owned()).or_default();
        faults.count = faults.count.saturating_add(more);
        if let Some(doublings) = faults.count.checked_sub(FORGIVEN + 1) {
            let pause = SHORTEST.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX));
            faults.until = now.after(pause.min(LONGEST));
        }
    }

    fn has(&self, now: Time, name: &str) -> bool {
        self.0.get(name).is_some_and(|faults| now < faults.until)
    }
}

impl Quarantine {
    /// A member has ended after this many steps.
    pub(super) fn ended(&mut self, now: Time, name: &str, steps: u64) {
        if steps >= SOUND_STEPS {
            self.unsound.0.remove(name);
            return;
        }
        self.unsound.note(now, name, 1);
    }

    /// A worker's bits differed from those of the others: its machine may do so again. This is never forgiven.
    pub(super) fn note_corruption(&mut self, now: Time, name: &str) {
        self.unsound.note(now, name, FORGIVEN + 1);
    }

    /// A worker could not read its data or its model's code, several times in a row, while others could read theirs.
    pub(super) fn could_not_read(&mut self, now: Time, name: &str) {
        let known = self.cannot_read.0.contains_key(name);
        self.cannot_read
            .note(now, name, if known { 1 } else { FORGIVEN + 1 });
    }

    /// Nobody can read: the store is unavailable, and no worker is to blame.
    pub(super) fn readmit_readers(&mut self) {
        self.cannot_read.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.unsound.0.len() + self.cannot_read.0.len()
    }

    /// Whether a worker of this name is not to be planned with.
    pub(super) fn has(&self, now: Time, name: &str) -> bool {
        self.is_unsound(now, name) || self.cannot_read(now, name)
    }

    /// Whether it is excluded for another cause than that it cannot read.
    pub(super) fn is_unsound(&self, now: Time, name: &str) -> bool {
        self.unsound.has(now, name)
    }

    /// Whether it is left out since it cannot read its data or its model's code.
    pub(super) fn cannot_read(&self, now: Time, name: &str) -> bool {
        self.cannot_read.has(now, name)
    }
}
