//! State that peers asked for. To each of them one unit is on its way at a time: what waits costs no memory, and all peers
//! see bytes arrive.

use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Unit, WorkerId};

/// Units that peers asked for and do not have yet.
#[derive(Default)]
pub(super) struct Serving {
    asks: BTreeSet<(WorkerId, Unit)>,
    on_the_way: BTreeMap<WorkerId, Unit>,
}

impl Serving {
    /// A peer asks for a unit. One that is on its way there is not sent once more.
    pub(super) fn ask(&mut self, from: WorkerId, unit: Unit) {
        if self.on_the_way.get(&from) != Some(&unit) || bug!(ServeTwice) {
            self.asks.insert((from, unit));
        }
    }

    /// What waits, and what is on its way.
    pub(super) fn len(&self) -> usize {
        self.asks.len() + self.on_the_way.len()
    }

    /// What is to be sent now; `can` says which unit can be sent to whom.
    pub(super) fn next(&mut self, can: impl Fn(WorkerId, Unit) -> bool) -> Vec<(WorkerId, Unit)> {
        let mut next = Vec::new();
        for (to, unit) in &self.asks {
            let busy = self.on_the_way.contains_key(to) && !bug!(ServeAllAtOnce);
            if !busy && can(*to, *unit) {
                self.on_the_way.insert(*to, *unit);
                next.push((*to, *unit));
            }
        }
        for sent in &next {
            self.asks.remove(sent);
        }
        next
    }

    /// The unit was sent to the end.
    pub(super) fn sent(&mut self, to: WorkerId, unit: Unit) {
        if self.on_the_way.get(&to) == Some(&unit) {
            self.on_the_way.remove(&to);
        }
    }

    /// The connection to the peer is closed.
    pub(super) fn lose(&mut self, peer: WorkerId) {
        self.on_the_way.remove(&peer);
        self.asks.retain(|(from, _)| *from != peer);
    }

    /// These asks are answered otherwise.
    pub(super) fn forget(&mut self, answered: impl Fn(WorkerId, Unit) -> bool) {
        self.asks.retain(|(to, unit)| !answered(*to, *unit));
    }

    /// Nothing is sent any more; true where something was on its way.
    pub(super) fn stop(&mut self) -> bool {
        self.asks.clear();
        !std::mem::take(&mut self.on_the_way).is_empty()
    }
}
