//! The data plane of one generation: tensors between workers.
//!
//! [`Link`] is all that the engine and the gradient reduction know of a network. Implementations: [`local`] (threads of
//! one process, for tests) and [`tcp`].

pub mod local;
pub mod mailbox;
pub mod ring;
pub mod tcp;

use std::time::Instant;
use varuna_plan::{Step, Unit, WorkerId};

/// What a message is for. Within a generation (sender, receiver, tag) names one message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tag {
    /// Boundary activation, shape (micro-batch, sequence, hidden), from a stage to the next.
    Activation {
        /// Index in its pipeline of the stage that it goes to: two workers may meet at several boundaries.
        stage: u32,
        /// The step being run.
        step: Step,
        /// Index within the pipeline's share; evaluation uses indices from `EVALUATION` on.
        micro_batch: u32,
    },
    /// Gradient of a boundary activation, from a stage to the one before.
    Gradient {
        /// Index in its pipeline of the stage that it goes to.
        stage: u32,
        /// The step being run.
        step: Step,
        /// Index within the pipeline's share.
        micro_batch: u32,
    },
    /// A chunk of a unit's gradient on its way round the ring of the unit's holders.
    Ring {
        /// The step being run.
        step: Step,
        /// Whose gradient.
        unit: Unit,
        /// Round of the ring: 0..D-1 reduce-scatter, D-1..2(D-1) all-gather.
        round: u32,
    },
}

/// Micro-batch indices of evaluation start here, so that they never meet those of training.
pub const EVALUATION: u32 = 1 << 31;

/// Why a message did not go or come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// `abort` was called: the generation is over here.
    #[error("the generation was fenced")]
    Aborted,
    /// The peer's connection is closed.
    #[error("the connection to worker {0} is closed")]
    Closed(WorkerId),
    /// Nothing came in time.
    #[error("nothing came from worker {from} for {tag:?} within its deadline")]
    Deadline {
        /// Who was waited for.
        from: WorkerId,
        /// What was waited for.
        tag: Tag,
    },
    /// The peer is not part of this generation.
    #[error("worker {0} is not connected in this generation")]
    Unknown(WorkerId),
}

/// Messages of one generation between this worker and its peers. Every wait ends: by the message, by `abort`, by the
/// peer's connection closing, or by the deadline.
pub trait Link: Send + Sync {
    /// Queues a message. Waits while the peer's bounded queue is full.
    ///
    /// # Errors
    /// Aborted, closed, unknown peer, or the queue stayed full until `deadline`.
    fn send(&self, to: WorkerId, tag: Tag, payload: Vec<f32>, deadline: Instant) -> Result<(), LinkError>;

    /// Takes a message, waiting for it.
    ///
    /// # Errors
    /// See [`LinkError`].
    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Vec<f32>, LinkError>;

    /// Takes whichever of these messages comes first; returns its index in `wanted`. Returns `None` when [`Link::poke`] was
    /// called since the last return, so that the caller may want something else.
    ///
    /// # Errors
    /// See [`LinkError`]; a closed connection counts only while its peer is waited for.
    fn recv_any(
        &self,
        wanted: &[(WorkerId, Tag)],
        deadline: Instant,
    ) -> Result<Option<(usize, Vec<f32>)>, LinkError>;

    /// Wakes the thread that waits in [`Link::recv_any`].
    fn poke(&self);

    /// Ends the generation here: every waiting and every later call returns [`LinkError::Aborted`].
    fn abort(&self);
}
