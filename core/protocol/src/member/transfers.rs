//! State that was asked for: of whom, and when.

use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::{Unit, WorkerId};

/// A fetch under way.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fetch {
    from: WorkerId,
    asked_at: Time,
}

/// Fetches from peers and from the store.
pub(super) struct Transfers {
    fetches: BTreeMap<Unit, Fetch>,
    shards_asked: BTreeMap<Unit, Time>,
    /// Sources take turns.
    turn: usize,
}

impl Transfers {
    pub(super) fn beginning_with(turn: usize) -> Self {
        Self {
            fetches: BTreeMap::new(),
            shards_asked: BTreeMap::new(),
            turn,
        }
    }

    /// Whether the store is to be asked for the unit now.
    pub(super) fn ask_store(&mut self, now: Time, retry: Duration, unit: Unit) -> bool {
        let asked = self.shards_asked.get(&unit);
        let due = asked.is_none_or(|at| now >= at.after(retry));
        if due {
            self.shards_asked.insert(unit, now);
        }
        due
    }

    /// Which of the sources is to be asked for the unit now, if any.
    pub(super) fn ask_peer(
        &mut self,
        now: Time,
        retry: Duration,
        unit: Unit,
        sources: &[WorkerId],
        based: bool,
    ) -> Option<WorkerId> {
        let present = self.fetches.get(&unit).copied();
        if present.is_some_and(|f| now < f.asked_at.after(retry)) {
            return None;
        }
        let from = match present {
            // before the switch nobody can answer; asking others too would bring the unit several times
            Some(fetch) if !based && sources.contains(&fetch.from) => fetch.from,
            _ if sources.is_empty() => return None,
            _ => {
                self.turn += 1;
                sources[self.turn % sources.len()]
            }
        };
        self.fetches.insert(unit, Fetch { from, asked_at: now });
        Some(from)
    }

    pub(super) fn asked_peer(&self, unit: Unit) -> Option<WorkerId> {
        self.fetches.get(&unit).map(|f| f.from)
    }

    pub(super) fn asked_store(&self, unit: Unit) -> bool {
        self.shards_asked.contains_key(&unit)
    }

    /// Bytes arrive. The other units asked of the same worker queue behind them on one connection: they are on their way too,
    /// and must not be asked for again meanwhile.
    pub(super) fn progress(&mut self, now: Time, from: WorkerId) {
        for fetch in self.fetches.values_mut().filter(|f| f.from == from) {
            fetch.asked_at = now;
        }
    }

    /// The unit is here, or is to be asked for anew.
    pub(super) fn forget(&mut self, unit: Unit) {
        self.fetches.remove(&unit);
    }
}
