//! States on their way: what is sent part by part, and what is received.

use super::frame::StateHeader;
use crate::state::UnitSnapshot;
use std::io;
use varuna_plan::{Step, Unit};

/// A state that is read part by part while it is sent. It must not change meanwhile.
pub trait StateSource: Send {
    /// How many elements it has.
    fn elements(&self) -> usize;
    /// A copy of some of them.
    fn range(&self, start: usize, end: usize) -> Vec<f32>;
}

impl StateSource for Vec<f32> {
    fn elements(&self) -> usize {
        self.len()
    }
    fn range(&self, start: usize, end: usize) -> Vec<f32> {
        self[start..end].to_vec()
    }
}

impl StateSource for UnitSnapshot {
    fn elements(&self) -> usize {
        UnitSnapshot::elements(self)
    }
    fn range(&self, start: usize, end: usize) -> Vec<f32> {
        UnitSnapshot::range(self, start, end)
    }
}

/// A state that is being received.
pub(super) struct Incoming {
    pub(super) header: StateHeader,
    pub(super) data: Vec<f32>,
}

impl Incoming {
    pub(super) fn new(header: StateHeader) -> io::Result<Incoming> {
        let mut data = Vec::new();
        usize::try_from(header.elements)
            .ok()
            .and_then(|n| data.try_reserve_exact(n).ok())
            .ok_or_else(|| {
                io::Error::other(format!("no memory for a state of {} elements", header.elements))
            })?;
        Ok(Incoming { header, data })
    }

    /// Adds a part. It must belong to this state and fit.
    pub(super) fn extend(&mut self, unit: Unit, step: Step, part: &[f32]) -> io::Result<()> {
        let fits = self.data.len() as u64 + part.len() as u64 <= self.header.elements;
        if (unit, step) != (self.header.unit, self.header.id.step) || !fits {
            let StateHeader { unit: own, id, .. } = self.header;
            return Err(io::Error::other(format!(
                "a part of unit {unit} at step {step} within unit {own} at {id}"
            )));
        }
        self.data.extend_from_slice(part);
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.data.len() as u64 == self.header.elements
    }
}
