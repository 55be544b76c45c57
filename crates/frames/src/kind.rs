//! The kinds of frames, as numbers on the wire and in words.

use std::fmt;

/// Kind of a frame, by its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A boundary activation.
    Activation = 1,
    /// The gradient of one.
    Gradient = 2,
    /// Part of a unit's gradient.
    Ring = 3,
    /// A protocol message.
    Message = 4,
    /// The header of a state.
    State = 5,
    /// Part of a state, or of a unit's gradient.
    Part = 6,
    /// The end of a state, or of a unit's gradient, with its digest.
    End = 7,
    /// Messages between the ranks of a communicator before they use it.
    CommunicatorId = 8,
    /// The header of a unit's reduced gradient, for a worker that follows the unit.
    UnitGradient = 9,
    /// The header of a unit's reduced gradient before its step is decided, for the worker that keeps the unit's spare copy.
    PreparedGradient = 10,
    /// Part of a unit's parameters, for a worker that computes with them.
    Parameters = 11,
}

impl Kind {
    /// The greatest number of a kind.
    pub(crate) const LAST: u16 = Kind::Parameters as u16;

    /// The kind with this number.
    pub(crate) fn of(number: u16) -> Option<Kind> {
        Some(match number {
            1 => Kind::Activation,
            2 => Kind::Gradient,
            3 => Kind::Ring,
            4 => Kind::Message,
            5 => Kind::State,
            6 => Kind::Part,
            7 => Kind::End,
            8 => Kind::CommunicatorId,
            9 => Kind::UnitGradient,
            10 => Kind::PreparedGradient,
            11 => Kind::Parameters,
            _ => return None,
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Activation => "an activation",
            Kind::Gradient => "a gradient of an activation",
            Kind::Ring => "a part of a reduction",
            Kind::Message => "a protocol message",
            Kind::State => "a header of a state",
            Kind::Part => "a part of a state",
            Kind::End => "the end of a state",
            Kind::CommunicatorId => "the id of a communicator",
            Kind::UnitGradient => "a header of a unit's gradient",
            Kind::PreparedGradient => "a header of a unit's gradient for its spare copy",
            Kind::Parameters => "a part of a unit's parameters",
        })
    }
}
