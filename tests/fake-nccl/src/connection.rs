//! The connections between the ranks of a communicator.

/// A connection, which must exist before the first operation that needs it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Connection {
    AllReduce,
    Reduce,
    Broadcast,
    Pair { from: usize, to: usize },
}
