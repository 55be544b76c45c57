//! State that peers asked for. Only one unit at a time is sent to each peer: waiting requests cost no memory, and all peers see bytes
//! arrive.

use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Unit, WorkerId};

/// Units that peers asked for and do not have yet.
#[derive(Default)]
pub(super) struct Serving {
    asks: BTreeSet<(WorkerId, Unit)>,
    on_the_way: BTreeMap<WorkerId, Unit>,
}

impl Serving {
    /// A peer asks for a unit. A unit that is already on its way to this peer is not sent again.
    pub(super) fn ask(&mut self, from: WorkerId, unit: Unit) {
        if self.on_the_way.get(&from) != Some(&unit) || bug!(ServeTwice) {
            self.asks.insert((from, unit));
        }
    }

    /// The number of units that wait or are on their way.
    pub(super) fn len(&self) -> usize {
        self.asks.len() + self.on_the_way.len()
    }

    /// The units to send now; `can` tells whether a unit can be sent to a peer.
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

    /// The unit was sent completely.
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

    /// Drops requests that are answered in another way.
    pub(super) fn forget(&mut self, answered: impl Fn(WorkerId, Unit) -> bool) {
        self.asks.retain(|(to, unit)| !answered(*to, *unit));
    }

    /// Stops sending. True if a unit was on its way.
    pub(super) fn stop(&mut self) -> bool {
        self.asks.clear();
        !std::mem::take(&mut self.on_the_way).is_empty()
    }
}
