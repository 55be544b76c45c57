//! State that peers asked for. Only one unit at a time is sent to each peer, unless the plan's first step begins meanwhile (ADR 43): waiting
//! requests cost no memory, and all peers see bytes arrive.

use std::collections::BTreeSet;
use varuna_plan::{Unit, WorkerId};

/// How many units are sent to a peer at once where the plan's first step may begin meanwhile. A connection takes some thousand.
const AT_ONCE: usize = 256;

/// Units that peers asked for and do not have yet.
#[derive(Default)]
pub(super) struct Serving {
    asks: BTreeSet<(WorkerId, Unit)>,
    on_the_way: BTreeSet<(WorkerId, Unit)>,
    /// What is on its way to peers, or was sent to them, in a plan whose first step may begin meanwhile.
    begun: BTreeSet<(WorkerId, Unit)>,
}

impl Serving {
    /// A peer asks for a unit. A unit that is already on its way to this peer is not sent again.
    pub(super) fn ask(&mut self, from: WorkerId, unit: Unit) {
        if !self.on_the_way.contains(&(from, unit)) || bug!(ServeTwice) {
            self.asks.insert((from, unit));
        }
    }

    /// The number of units that wait or are on their way, and of those that were sent where this is remembered.
    pub(super) fn len(&self) -> usize {
        self.asks.len() + self.on_the_way.len() + self.begun.len()
    }

    /// Whether the unit is on its way to the peer, or was sent.
    pub(super) fn has_begun(&self, to: WorkerId, unit: Unit) -> bool {
        self.begun.contains(&(to, unit))
    }

    /// The units to send now; `can` tells whether a unit can be sent to a peer. `many`: more than one to each peer, in their order. That is
    /// for plans whose first step may begin meanwhile.
    pub(super) fn next(&mut self, many: bool, can: impl Fn(WorkerId, Unit) -> bool) -> Vec<(WorkerId, Unit)> {
        let mut next = Vec::new();
        let most = if many { AT_ONCE } else { 1 };
        for (to, unit) in &self.asks {
            let is_busy = self.number_on_the_way(*to) >= most && !bug!(ServeAllAtOnce);
            if !is_busy && can(*to, *unit) {
                self.on_the_way.insert((*to, *unit));
                next.push((*to, *unit));
            }
        }
        for sent in &next {
            self.asks.remove(sent);
        }
        if many {
            self.begun.extend(&next);
        }
        next
    }

    fn number_on_the_way(&self, peer: WorkerId) -> usize {
        let of_peer = (peer, Unit(0))..=(peer, Unit(u32::MAX));
        self.on_the_way.range(of_peer).count()
    }

    /// The unit was sent completely.
    pub(super) fn sent(&mut self, to: WorkerId, unit: Unit) {
        self.on_the_way.remove(&(to, unit));
    }

    /// The connection to the peer is closed.
    pub(super) fn lose(&mut self, peer: WorkerId) {
        for requests in [&mut self.on_the_way, &mut self.begun, &mut self.asks] {
            requests.retain(|(to, _)| *to != peer);
        }
    }

    /// Drops requests that are answered in another way.
    pub(super) fn forget(&mut self, answered: impl Fn(WorkerId, Unit) -> bool) {
        self.asks.retain(|(to, unit)| !answered(*to, *unit));
    }

    /// Stops sending. True if a unit was on its way.
    pub(super) fn stop(&mut self) -> bool {
        self.asks.clear();
        self.begun.clear();
        !std::mem::take(&mut self.on_the_way).is_empty()
    }
}
