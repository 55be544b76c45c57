//! Why bytes are not a frame, and why frames are not a state.

use crate::{ElementFormat, Kind};
use std::io;
use varuna_plan::{Step, Unit};

/// Why bytes are not a frame. The sender, or the network in between, cannot be trusted any further.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The header was changed on its way.
    #[error("the checksum of a frame's header is {found:08x}; its bytes have {computed:08x}")]
    Header {
        /// The value in the header.
        found: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// The payload was changed on its way.
    #[error("the payload of {kind} has the checksum {computed:08x}; its header says {found:08x}")]
    Payload {
        /// Kind of the frame.
        kind: Kind,
        /// The value in the header.
        found: u32,
        /// The checksum of the payload.
        computed: u32,
    },
    /// A number that is no kind.
    #[error("frame kind {0}; kinds 1 to {last} are known", last = Kind::LAST)]
    Kind(u16),
    /// A number that is no element format.
    #[error(
        "element format {0}; known are 1 (float32), 2 (bfloat16), 3 (float16), and 0 for what is no tensor"
    )]
    Format(u16),
    /// A tensor in another format than the receiver computes with, or a format for a payload that is no tensor.
    #[error("{kind} in the element format {}; allowed is {expected}", found.map_or("none", ElementFormat::name))]
    OtherFormat {
        /// Kind of the frame.
        kind: Kind,
        /// Format in the header.
        found: Option<ElementFormat>,
        /// Formats that are allowed, in words.
        expected: &'static str,
    },
    /// More than is allowed.
    #[error("{kind} with a payload of {length} bytes; at most {most} are allowed")]
    Long {
        /// Kind of the frame.
        kind: Kind,
        /// Announced length, in bytes.
        length: u32,
        /// Maximum length, in bytes.
        most: u32,
    },
    /// A digest of another length.
    #[error("{kind} with a payload of {length} bytes, where a digest of 32 belongs")]
    Digest {
        /// Kind of the frame.
        kind: Kind,
        /// Announced length, in bytes.
        length: u32,
    },
    /// A length that is no multiple of an element's.
    #[error("{kind} with a payload of {length} bytes, which is no whole number of {format} elements")]
    Elements {
        /// Kind of the frame.
        kind: Kind,
        /// The format of its elements.
        format: ElementFormat,
        /// Announced length, in bytes.
        length: u32,
    },
}

/// Why frames do not make up the announced state or gradient.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StateError {
    /// A unit that the model does not have.
    #[error("a state or gradient of unit {unit}; there are {units} units")]
    Unit {
        /// Announced unit.
        unit: Unit,
        /// The number of units of the model.
        units: usize,
    },
    /// A state or a gradient of another size than the unit's.
    #[error("a state or gradient of unit {unit} with {announced} elements; it has {expected}")]
    Size {
        /// Announced unit.
        unit: Unit,
        /// Number of elements in the header.
        announced: u64,
        /// Number of elements by the model; 0 for a skipped step's gradient.
        expected: u64,
    },
    /// A part or an end without a header before it.
    #[error("a part or the end of unit {unit} at step {step}, and nothing is announced")]
    Unannounced {
        /// Unit of the frame.
        unit: Unit,
        /// Step of the frame.
        step: Step,
    },
    /// A part or an end of another state.
    #[error(
        "a part or the end of unit {unit} at step {step}, while unit {announced} at step {at} is being received"
    )]
    Other {
        /// Unit of the frame.
        unit: Unit,
        /// Step of the frame.
        step: Step,
        /// The announced unit.
        announced: Unit,
        /// The announced step.
        at: Step,
    },
    /// A part without elements: such parts could come for ever.
    #[error("unit {unit} at step {step}: an empty part after {arrived} of {announced} elements")]
    EmptyPart {
        /// The unit.
        unit: Unit,
        /// Step in the header.
        step: Step,
        /// Number of elements that were received before.
        arrived: u64,
        /// Number of elements in the header.
        announced: u64,
    },
    /// More elements than announced, or an end before the last one.
    #[error("unit {unit} at step {step}: {arrived} elements and then {part}; {announced} are announced")]
    Elements {
        /// The unit.
        unit: Unit,
        /// Step in the header.
        step: Step,
        /// Number of elements that were received before.
        arrived: u64,
        /// The elements of this part; 0 = the end.
        part: u64,
        /// Number of elements in the header.
        announced: u64,
    },
    /// There is no memory for the state or gradient.
    #[error("no memory for {announced} elements of unit {unit} at step {step}")]
    Memory {
        /// The unit.
        unit: Unit,
        /// Step in the header.
        step: Step,
        /// Number of elements in the header.
        announced: u64,
    },
    /// The received data differ from those sent, although each frame's checksum is right.
    #[error(
        "the state or gradient of unit {unit} at step {step} has another digest than its sender's: it was changed on its way, or in the memory of one side"
    )]
    Digest {
        /// The unit.
        unit: Unit,
        /// Step in the header.
        step: Step,
    },
}

impl From<StateError> for io::Error {
    fn from(error: StateError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}
