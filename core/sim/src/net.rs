//! What travels, and on what: channels keep their order, delay, lose their tail when cut.

use std::collections::VecDeque;
use varuna_plan::{Decision, Generation, StateId, Step, Unit, WorkerId};
use varuna_protocol::{Order, PeerMessage, Report};

/// Milliseconds of the world.
pub(crate) type Ms = u64;

/// One direction of a connection. Peers' connections belong to a generation, streams have a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Channel {
    Peer(WorkerId, WorkerId, Generation),
    Up(WorkerId, usize, u64),
    Down(usize, WorkerId, u64),
}

/// A place in the network, for partitions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Node {
    Worker(WorkerId),
    Coordinator(usize),
    Store,
}

impl Channel {
    pub(crate) fn ends(self) -> (Node, Node) {
        match self {
            Channel::Peer(a, b, _) => (Node::Worker(a), Node::Worker(b)),
            Channel::Up(w, c, _) => (Node::Worker(w), Node::Coordinator(c)),
            Channel::Down(c, w, _) => (Node::Coordinator(c), Node::Worker(w)),
        }
    }
}

/// A worker's share of a unit's gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Contribution {
    /// Ghost: the generation that computed it.
    pub(crate) run_gen: Generation,
    /// Samples covered.
    pub(crate) samples: (u64, u64),
    /// For a tied unit: 1 = as the first segment's, 2 = as the last segment's.
    pub(crate) roles: u8,
    pub(crate) bits: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Load {
    Dial,
    Accepted,
    Closed,
    Message(PeerMessage),
    Forward {
        step: Step,
        bits: u64,
    },
    Backward {
        step: Step,
        bits: u64,
    },
    Reduce {
        step: Step,
        unit: Unit,
        part: Contribution,
    },
    StateBegins {
        unit: Unit,
    },
    State {
        unit: Unit,
        id: StateId,
        bits: u64,
        decision: Option<Decision>,
    },
    Report(Report),
    Order(u64, Order),
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Load>,
    pub(crate) last: Ms,
}
