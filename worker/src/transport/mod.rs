//! The data plane of one generation: tensors between workers.
//!
//! [`Link`] is the only interface to the network for the engine and the gradient reduction. Implementations: [`local`] (threads of
//! one process, for tests) and [`tcp`]. Between GPUs a link may have communicators of NCCL beside it: [`nccl`].

pub mod data_plane;
pub mod local;
pub mod mailbox;
pub mod nccl;
pub mod ring;
pub mod tcp;

use nccl::Communicators;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use varuna_cuda::NcclError;
pub use varuna_frames::{ElementFormat, Packet, Tag};
use varuna_plan::{Plan, Unit, WorkerId};

/// First micro-batch index of evaluation; those of training are below it.
pub const EVALUATION: u32 = 1 << 31;

/// A message's sender, and what it is.
pub type Address = (WorkerId, Tag);

/// Why a message was not sent or received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// [`Link::abort`] was called: the generation has ended on this worker.
    #[error("the generation was fenced")]
    Aborted,
    /// The peer's connection is closed.
    #[error("the connection to worker {0} is closed")]
    Closed(WorkerId),
    /// The message did not arrive, or could not be queued, in time.
    #[error("no {tag:?} from worker {from} before the deadline")]
    Deadline {
        /// The peer.
        from: WorkerId,
        /// The message.
        tag: Tag,
    },
    /// A peer of another build, or with another model: what it sends cannot be computed with.
    #[error("{tag:?} from worker {from} has {elements} elements in {format}; {expected} in {own} are needed")]
    Unfit {
        /// The peer.
        from: WorkerId,
        /// The message.
        tag: Tag,
        /// Number of elements in the message.
        elements: usize,
        /// Format of the message.
        format: ElementFormat,
        /// Elements that are computed with.
        expected: usize,
        /// What they are computed in.
        own: ElementFormat,
    },
    /// What a peer says of the optimizer before a step cannot be: it is of another build, or at another state.
    #[error("worker {from} says of the optimizer's counters at the state of unit {unit}: {why}")]
    Progress {
        /// The peer.
        from: WorkerId,
        /// The unit whose parameters it sends.
        unit: Unit,
        /// What cannot be, and what is allowed.
        why: String,
    },
    /// NCCL failed; the communicator is of no more use.
    #[error(transparent)]
    Nccl(NcclError),
    /// The peer is not part of this generation.
    #[error("worker {0} is not connected in this generation")]
    Unknown(WorkerId),
}

impl LinkError {
    /// A message that is not of this many elements in this format.
    #[must_use]
    pub fn unfit(
        packet: &Packet,
        (from, tag): (WorkerId, Tag),
        (expected, own): (usize, ElementFormat),
    ) -> LinkError {
        LinkError::Unfit {
            from,
            tag,
            elements: packet.elements(),
            format: packet.format(),
            expected,
            own,
        }
    }
}

/// Messages of one generation between this worker and its peers. Every wait ends: by the message, by `abort`, by the
/// peer's connection closing, or by the deadline.
pub trait Link: Send + Sync {
    /// Queues a message. Waits while the peer's bounded queue is full.
    ///
    /// # Errors
    /// Aborted, closed, unknown peer, or the queue stayed full until `deadline`.
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError>;

    /// Waits for a message and takes it.
    ///
    /// # Errors
    /// See [`LinkError`].
    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError>;

    /// Waits for one of several messages; returns its sender and tag, and its packet. Where several have come, it is the one of the
    /// greatest sender and tag: the units whose gradients are finished first have the greatest numbers. Returns `None` if [`Link::wake`]
    /// was called since the last return, so that the caller can change `wanted`.
    ///
    /// # Errors
    /// See [`LinkError`]; a closed connection counts only while its peer is waited for.
    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError>;

    /// Wakes a thread that waits in [`Link::recv_any`].
    fn wake(&self);

    /// Ends the generation on this worker: every waiting and every later call returns [`LinkError::Aborted`].
    fn abort(&self);

    /// Whether [`Link::abort`] was called, for code that computes for long without calling the other functions.
    fn is_aborted(&self) -> bool;

    /// The communicators of the plan's generation between devices, made with all its members when first asked for; none where this link has
    /// none.
    ///
    /// # Errors
    /// See [`LinkError`].
    fn communicators(
        &self,
        _plan: &Plan,
        _deadline: Instant,
    ) -> Result<Option<Arc<Communicators>>, LinkError> {
        Ok(None)
    }
}
