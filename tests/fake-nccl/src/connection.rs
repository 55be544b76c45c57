//! The connections between the ranks of a communicator, and the kinds of operations that need them.

/// A connection, which must exist before the first operation that needs it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Connection {
    AllReduce,
    Reduce,
    Broadcast,
    Pair { from: usize, to: usize },
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Send(usize),
    Receive(usize),
    AllReduce,
    /// A reduction to this rank.
    Reduce(usize),
    /// A broadcast from this rank.
    Broadcast(usize),
}

impl Kind {
    /// Whether all ranks take part.
    pub(crate) fn is_collective(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::Reduce(_) | Kind::Broadcast(_))
    }

    /// The connection that the operation needs on this rank.
    pub(crate) fn connection(self, rank: usize) -> Connection {
        match self {
            Kind::AllReduce => Connection::AllReduce,
            Kind::Reduce(_) => Connection::Reduce,
            Kind::Broadcast(_) => Connection::Broadcast,
            Kind::Send(to) => Connection::Pair { from: rank, to },
            Kind::Receive(from) => Connection::Pair { from, to: rank },
        }
    }
}
