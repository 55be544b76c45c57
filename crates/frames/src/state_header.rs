//! What announces a state.

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
