//! Why bytes are not a frame.

use crate::Kind;
use std::io;

/// Why bytes are not a frame. Whoever sent them, or the network between, cannot be trusted any further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The header was changed on its way.
    #[error("the checksum of a frame's header is {found:08x}; its bytes have {computed:08x}")]
    Header {
        /// What the header says.
        found: u32,
        /// What its bytes have.
        computed: u32,
    },
    /// The payload was changed on its way.
    #[error("the payload of {kind} has the checksum {computed:08x}; its header says {found:08x}")]
    Payload {
        /// Of the frame.
        kind: Kind,
        /// What the header says.
        found: u32,
        /// What the payload has.
        computed: u32,
    },
    /// A number that no kind has.
    #[error("frame kind {0}; kinds 1 to {last} are known", last = Kind::LAST)]
    Kind(u32),
    /// More than is allowed.
    #[error("{kind} with a payload of {length} bytes; at most {most} are allowed")]
    Long {
        /// Of the frame.
        kind: Kind,
        /// Announced, bytes.
        length: u32,
        /// Allowed, bytes.
        most: u32,
    },
    /// A length that is no multiple of four.
    #[error("{kind} with a payload of {length} bytes, which is not a whole number of floats")]
    Floats {
        /// Of the frame.
        kind: Kind,
        /// Announced, bytes.
        length: u32,
    },
}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}
