//! The data plane between workers as bytes: a handshake in which both sides prove their identity, then frames from the dialer to the
//! acceptor. All numbers are little-endian. Checksums detect accidental changes; the hello, and TLS if the job wants it, protect against
//! attackers.
//!
//! This crate owns the format, and what a receiver refuses. It must never open a connection, start a thread or know libtorch: it reads from
//! what it is given, and allocates memory for data that have arrived, never for an announced length.

mod digest;
mod error;
mod frame;
mod header;
mod hello;
mod incoming;
mod kind;
mod limits;
mod packet;
mod secret;
mod tls;
mod transfer_header;

pub use digest::{Digester, StateDigest};
pub use error::{FrameError, StateError};
pub use frame::Frame;
pub use hello::{
    Answer, HELLO_BYTES, Handshake, Hello, Nonce, Proof, Refusal, Side, VERSIONS, read_answer, read_proof,
    write_answer, write_proof,
};
pub use incoming::Incoming;
pub use kind::Kind;
pub use limits::{COMMUNICATOR_ID_ELEMENTS, Limits, PART_ELEMENTS};
pub use packet::{ElementFormat, Packet};
pub use secret::RunKey;
pub use tls::{Binding, Encrypted, Tls, TlsError};
pub use transfer_header::{GradientHeader, PreparedHeader, StateHeader, TransferHeader};

use varuna_plan::{Step, Unit};

/// The purpose of a message. Within a generation, (sender, receiver, tag) identifies one message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tag {
    /// Boundary activation, shape (micro-batch, sequence, hidden), from a stage to the next.
    Activation {
        /// The receiving stage: its index in the pipeline. Two workers may share several boundaries.
        stage: u32,
        /// The step being run.
        step: Step,
        /// Index within the pipeline's micro-batches. Those of an evaluation begin at a number of their own.
        micro_batch: u32,
    },
    /// Gradient of a boundary activation, from a stage to the one before.
    Gradient {
        /// The receiving stage: its index in the pipeline.
        stage: u32,
        /// The step being run.
        step: Step,
        /// Index within the pipeline's micro-batches.
        micro_batch: u32,
    },
    /// Part of a unit's gradient, sent around the ring of the workers that compute with the unit.
    Ring {
        /// The step being run.
        step: Step,
        /// The unit of the gradient, of the undivided layout.
        unit: Unit,
        /// Round of the ring: 0..D-1 reduce-scatter, all-gather from D-1 on.
        round: u32,
    },
    /// Part of a unit's parameters, from its owner, or from a source of the unit, to a worker that computes with them and does not hold them.
    Parameters {
        /// The step being run, which begins with it.
        step: Step,
        /// The unit.
        unit: Unit,
        /// Number of the piece; the greatest is that of the optimizer's counters, which a source sends before the pieces.
        piece: u32,
    },
    /// Messages that the ranks of one of the generation's communicators pass around their ring before they use it.
    CommunicatorId {
        /// Which, in the order of the plan.
        communicator: u32,
        /// 0: whether all ranks are able to; 1: the id under which they meet.
        round: u32,
    },
}
