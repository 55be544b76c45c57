//! What announces a transfer: a unit's state, or its gradient.

use serde::{Deserialize, Serialize};
use std::io;
use varuna_plan::{Decision, OptimizerProgress, StateId, Unit};

/// Announces a unit's state. Its parts follow in order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct StateHeader {
    /// The unit.
    pub unit: Unit,
    /// Its state.
    pub id: StateId,
    /// The sender's last decision.
    pub decision: Option<Decision>,
    /// What the optimizer has counted.
    pub progress: OptimizerProgress,
    /// Number of elements that follow.
    pub elements: u64,
}

impl StateHeader {
    /// The payload of [`crate::Frame::State`].
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(io::Error::other)
    }

    /// Reads the payload of [`crate::Frame::State`].
    ///
    /// # Errors
    /// It is no header of a state.
    pub fn decode(payload: &[u8]) -> io::Result<StateHeader> {
        postcard::from_bytes(payload).map_err(io::Error::other)
    }
}

/// Announces the reduced gradient of one step of a unit, for who follows the unit. Its parts follow in order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct GradientHeader {
    /// The unit.
    pub unit: Unit,
    /// The decision of the step: with the gradient all that the optimizer needs.
    pub decision: Decision,
    /// Number of elements that follow: those of the unit's parameters, or none where the step is skipped.
    pub elements: u64,
}

impl GradientHeader {
    /// The payload of [`crate::Frame::UnitGradient`].
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(io::Error::other)
    }

    /// Reads the payload of [`crate::Frame::UnitGradient`].
    ///
    /// # Errors
    /// It is no header of a gradient.
    pub fn decode(payload: &[u8]) -> io::Result<GradientHeader> {
        postcard::from_bytes(payload).map_err(io::Error::other)
    }
}

/// What a transfer carries.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum TransferHeader {
    /// The state of a unit.
    State(StateHeader),
    /// The gradient of a unit.
    Gradient(GradientHeader),
}

impl TransferHeader {
    /// Whose.
    #[must_use]
    pub fn unit(&self) -> Unit {
        match self {
            TransferHeader::State(state) => state.unit,
            TransferHeader::Gradient(gradient) => gradient.unit,
        }
    }

    /// The state; of a gradient the one that it leads to.
    #[must_use]
    pub fn id(&self) -> StateId {
        match self {
            TransferHeader::State(state) => state.id,
            TransferHeader::Gradient(gradient) => gradient.decision.id,
        }
    }

    /// Number of elements that follow.
    #[must_use]
    pub fn elements(&self) -> u64 {
        match self {
            TransferHeader::State(state) => state.elements,
            TransferHeader::Gradient(gradient) => gradient.elements,
        }
    }
}
