//! Connections to the peers of one plan: from the start to the peers that the plan links this worker to, and later to those that it fetches
//! state from or that ask it for state.

use super::MemberEffect;
use std::collections::BTreeSet;
use varuna_plan::{Plan, WorkerId};

/// Peers that were dialled, and that have accepted.
#[derive(Default)]
pub(super) struct Connections {
    dialled: BTreeSet<WorkerId>,
    connected: BTreeSet<WorkerId>,
}

impl Connections {
    /// Dials those that the plan links the worker to.
    pub(super) fn dialling(me: WorkerId, plan: &Plan, effects: &mut Vec<MemberEffect>) -> Self {
        let mut connections = Self::default();
        for peer in plan.links(me) {
            connections.dial(*peer, plan, effects);
        }
        connections
    }

    /// Dials a peer, where that was not done yet.
    pub(super) fn dial(&mut self, peer: WorkerId, plan: &Plan, effects: &mut Vec<MemberEffect>) {
        let Some(address) = plan.addresses.get(&peer) else {
            return;
        };
        if self.dialled.insert(peer) {
            effects.push(MemberEffect::Connect {
                generation: plan.generation,
                peer,
                address: address.clone(),
            });
        }
    }

    /// A peer has accepted; true for the first time.
    pub(super) fn accepted(&mut self, peer: WorkerId) -> bool {
        self.connected.insert(peer)
    }

    /// The connection is closed; true where there was one.
    pub(super) fn lose(&mut self, peer: WorkerId) -> bool {
        self.connected.remove(&peer)
    }

    pub(super) fn has(&self, peer: WorkerId) -> bool {
        self.connected.contains(&peer)
    }

    /// Peers that were dialled or have accepted.
    pub(super) fn len(&self) -> usize {
        self.dialled.len().max(self.connected.len())
    }

    /// A member that the plan links this one to and that is not connected. A source without a stage is not waited for: if it cannot be
    /// reached, another source is asked for its state.
    pub(super) fn missing(&self, me: WorkerId, plan: &Plan) -> Option<WorkerId> {
        let missing = |peer: &WorkerId| plan.has(*peer) && !self.has(*peer);
        let mut links = plan.links(me).iter().copied().filter(|_| plan.has(me));
        links.find(missing)
    }
}
