//! The state that this worker has requested: from whom, and when.

use crate::message::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use varuna_plan::{Unit, WorkerId};

/// A fetch under way.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Fetch {
    from: WorkerId,
    asked_at: Time,
    /// The peer was not connected yet; it is asked once it is.
    dialled: bool,
}

/// What to do next for a unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum TransferAction {
    /// Connect to this source; then it can be asked.
    Dial(WorkerId),
    /// Ask this source.
    Fetch(WorkerId),
}

/// Fetches from peers and from the store.
#[derive(Default)]
pub(super) struct Transfers {
    fetches: BTreeMap<Unit, Fetch>,
    shards_asked: BTreeMap<Unit, Time>,
    /// How many sources were tried.
    tried: BTreeMap<Unit, usize>,
    /// How many states of each source arrived damaged.
    damaged: BTreeMap<WorkerId, u32>,
}

/// A source is not asked any more once this many of its states have arrived damaged. A single one may be chance: memory and wires flip bits
/// now and then.
const DAMAGED_MAX: u32 = 3;

impl Transfers {
    /// The number of requests, to peers and to the store.
    pub(super) fn len(&self) -> usize {
        self.fetches.len() + self.shards_asked.len()
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

    /// Which source, if any, to ask for the unit now, or to dial. Sources take turns in their order. `based`: the base is known; `retry`:
    /// time without progress before the next source is tried.
    pub(super) fn ask_peer(
        &mut self,
        now: Time,
        retry: Duration,
        unit: Unit,
        sources: &[WorkerId],
        based: bool,
        is_connected: impl Fn(WorkerId) -> bool,
    ) -> Option<TransferAction> {
        let present = self.fetches.get_mut(&unit);
        if let Some(fetch) = present {
            let connected = is_connected(fetch.from);
            let late = now >= fetch.asked_at.after(retry);
            // before the switch nobody can answer; asking other sources too would transfer the unit several times
            let again = late && !based && sources.contains(&fetch.from);
            if connected && (fetch.dialled || again) {
                (fetch.dialled, fetch.asked_at) = (false, now);
                return Some(TransferAction::Fetch(fetch.from));
            }
            if !late {
                return None;
            }
        }
        // the next source that is connected; if there is none, the next source
        let tried = self.tried.entry(unit).or_default();
        let next = |at: usize| sources.get(at % sources.len().max(1)).copied();
        let mut turn = *tried..*tried + sources.len();
        let at = turn
            .find(|at| next(*at).is_some_and(&is_connected))
            .unwrap_or(*tried);
        let from = next(at)?;
        *tried = at + 1;
        let dialled = !is_connected(from);
        self.note_asked(now, unit, from, dialled);
        Some(if dialled {
            TransferAction::Dial(from)
        } else {
            TransferAction::Fetch(from)
        })
    }

    pub(super) fn asked_peer(&self, unit: Unit) -> Option<WorkerId> {
        self.fetches.get(&unit).map(|f| f.from)
    }

    pub(super) fn asked_store(&self, unit: Unit) -> bool {
        self.shards_asked.contains_key(&unit)
    }

    /// Nothing was awaited until now.
    pub(super) fn restart(&mut self, now: Time) {
        for fetch in self.fetches.values_mut() {
            fetch.asked_at = now;
        }
    }

    /// Bytes arrive. Other units requested from the same worker are queued behind them on the same connection: they are on their way too
    /// and must not be requested again meanwhile.
    pub(super) fn progress(&mut self, now: Time, from: WorkerId) {
        for fetch in self.fetches.values_mut().filter(|f| f.from == from) {
            fetch.asked_at = now;
        }
    }

    /// A state from this source differed from the digest that its sender made of it.
    pub(super) fn note_damaged(&mut self, from: WorkerId) {
        let count = self.damaged.entry(from).or_default();
        *count = count.saturating_add(1);
    }

    /// Whether the source repeatedly sends damaged states.
    pub(super) fn sends_damaged(&self, source: WorkerId) -> bool {
        let count = self.damaged.get(&source).copied().unwrap_or(0);
        count >= DAMAGED_MAX && !bug!(AskDamagedForEver)
    }

    /// The unit is followed from this source.
    pub(super) fn keep(&mut self, now: Time, from: WorkerId, unit: Unit) {
        self.note_asked(now, unit, from, false);
    }

    fn note_asked(&mut self, asked_at: Time, unit: Unit, from: WorkerId, dialled: bool) {
        self.fetches.insert(
            unit,
            Fetch {
                from,
                asked_at,
                dialled,
            },
        );
    }

    /// The unit has arrived, or has to be requested again.
    pub(super) fn forget(&mut self, unit: Unit) {
        self.fetches.remove(&unit);
    }
}
