//! The headers that announce a transfer: of a unit's state, or of its gradient, after or before the decision of its step.

use serde::{Deserialize, Serialize};
use std::io;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, Generation, OptimizerProgress, StateId, Step, Unit};

/// Announces a unit's state. Its parts follow in order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct StateHeader {
    /// The unit.
    pub unit: Unit,
    /// State of the unit.
    pub id: StateId,
    /// The sender's last decision.
    pub decision: Option<Decision>,
    /// The optimizer's counters.
    pub progress: OptimizerProgress,
    /// Number of elements that follow.
    pub elements: u64,
}

impl StateHeader {
    /// The payload of [`crate::Frame::State`].
    ///
    /// # Errors
    /// The header cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(io::Error::other)
    }

    /// Reads the payload of [`crate::Frame::State`].
    ///
    /// # Errors
    /// The payload is not the header of a state.
    pub fn decode(payload: &[u8]) -> io::Result<StateHeader> {
        postcard::from_bytes(payload).map_err(io::Error::other)
    }
}

/// Announces the reduced gradient of one step of a unit, for a worker that follows the unit. Its parts follow in order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct GradientHeader {
    /// The unit.
    pub unit: Unit,
    /// The decision of the step. Together with the gradient it is all that the optimizer needs.
    pub decision: Decision,
    /// Number of elements that follow: those of the unit's parameters, or 0 if the step is skipped.
    pub elements: u64,
}

impl GradientHeader {
    /// The payload of [`crate::Frame::UnitGradient`].
    ///
    /// # Errors
    /// The header cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(io::Error::other)
    }

    /// Reads the payload of [`crate::Frame::UnitGradient`].
    ///
    /// # Errors
    /// The payload is not the header of a gradient.
    pub fn decode(payload: &[u8]) -> io::Result<GradientHeader> {
        postcard::from_bytes(payload).map_err(io::Error::other)
    }
}

/// Announces the reduced gradient of a step that was run and is not decided yet, for the worker that keeps the unit's spare copy. Its parts
/// follow in order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct PreparedHeader {
    /// The unit.
    pub unit: Unit,
    /// The generation that ran the step.
    pub run_gen: Generation,
    /// The step that was run.
    pub step: Step,
    /// The unit's part of the norm exchange.
    pub norm: UnitNorm,
    /// Number of elements that follow: those of the unit's parameters, or 0 if its norm shows that the step will be skipped.
    pub elements: u64,
}

impl PreparedHeader {
    /// The payload of [`crate::Frame::PreparedGradient`].
    ///
    /// # Errors
    /// The header cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(io::Error::other)
    }

    /// Reads the payload of [`crate::Frame::PreparedGradient`].
    ///
    /// # Errors
    /// The payload is not the header of such a gradient.
    pub fn decode(payload: &[u8]) -> io::Result<PreparedHeader> {
        postcard::from_bytes(payload).map_err(io::Error::other)
    }
}

/// The header of a transfer, by its content.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum TransferHeader {
    /// The state of a unit.
    State(StateHeader),
    /// The gradient of a unit.
    Gradient(GradientHeader),
    /// The gradient of a unit, for its spare copy.
    Prepared(PreparedHeader),
}

impl TransferHeader {
    /// The payload of the frame that announces it.
    ///
    /// # Errors
    /// The header cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        match self {
            TransferHeader::State(state) => state.encode(),
            TransferHeader::Gradient(gradient) => gradient.encode(),
            TransferHeader::Prepared(gradient) => gradient.encode(),
        }
    }

    /// The same with another number of elements.
    #[must_use]
    pub fn with_elements(mut self, number: u64) -> TransferHeader {
        match &mut self {
            TransferHeader::State(StateHeader { elements, .. })
            | TransferHeader::Gradient(GradientHeader { elements, .. })
            | TransferHeader::Prepared(PreparedHeader { elements, .. }) => *elements = number,
        }
        self
    }

    /// The unit.
    #[must_use]
    pub fn unit(&self) -> Unit {
        match self {
            TransferHeader::State(state) => state.unit,
            TransferHeader::Gradient(gradient) => gradient.unit,
            TransferHeader::Prepared(gradient) => gradient.unit,
        }
    }

    /// The step of the state; for a gradient, the step that it leads to; for a gradient before the decision, the step that was run.
    #[must_use]
    pub fn step(&self) -> Step {
        match self {
            TransferHeader::State(state) => state.id.step,
            TransferHeader::Gradient(gradient) => gradient.decision.id.step,
            TransferHeader::Prepared(gradient) => gradient.step,
        }
    }

    /// Number of elements that follow.
    #[must_use]
    pub fn elements(&self) -> u64 {
        match self {
            TransferHeader::State(state) => state.elements,
            TransferHeader::Gradient(gradient) => gradient.elements,
            TransferHeader::Prepared(gradient) => gradient.elements,
        }
    }
}
