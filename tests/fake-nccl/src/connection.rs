//! What the ranks of a communicator connect for.

/// What ranks connect for, each before the first operation that needs it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Connection {
    AllReduce,
    Reduce,
    Broadcast,
    Pair { from: usize, to: usize },
}
