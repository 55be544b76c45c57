//! A state that is being received, part by part.

use crate::StateHeader;
use std::io;
use varuna_plan::{Step, Unit};

/// Elements that memory is taken for before they have arrived; beyond that it grows with what has arrived. 64 MiB: most units are
/// smaller, and are moved at no time.
const AHEAD: usize = 1 << 24;

/// A state that is being received.
pub struct Incoming {
    /// What was announced.
    pub header: StateHeader,
    /// The elements that have arrived.
    pub data: Vec<f32>,
}

impl Incoming {
    /// Nothing of the announced state has arrived.
    #[must_use]
    pub fn new(header: StateHeader) -> Incoming {
        let data = Vec::new();
        Incoming { header, data }
    }

    /// Adds a part. It must belong to this state and fit.
    ///
    /// # Errors
    /// It does not, or there is no memory for it.
    pub fn extend(&mut self, unit: Unit, step: Step, part: &[f32]) -> io::Result<()> {
        let StateHeader { elements, id, .. } = self.header;
        let missing = elements.saturating_sub(self.data.len() as u64);
        if (unit, step) != (self.header.unit, id.step) || part.len() as u64 > missing {
            return Err(io::Error::other(format!(
                "a part of {} elements of unit {unit} at step {step}; {missing} of unit {} at {id} are missing",
                part.len(),
                self.header.unit
            )));
        }
        if self.data.capacity() - self.data.len() < part.len() {
            // What is announced may never come.
            let ahead = self.data.len().max(AHEAD).max(part.len());
            let ahead = usize::try_from(missing).unwrap_or(usize::MAX).min(ahead);
            let grown = self.data.try_reserve_exact(ahead);
            grown.map_err(|_| io::Error::other(format!("no memory for a state of {elements} elements")))?;
        }
        self.data.extend_from_slice(part);
        Ok(())
    }

    /// Whether all of it has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.data.len() as u64 == self.header.elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::StateId;

    fn incoming(elements: u64) -> Incoming {
        Incoming::new(StateHeader {
            unit: Unit(1),
            id: StateId::INITIAL,
            decision: None,
            adam_steps: 0,
            elements,
        })
    }

    #[test]
    fn parts_make_up_the_announced_state_and_nothing_beyond_it() {
        let mut state = incoming(3);
        state.extend(Unit(1), Step(0), &[1.0, 2.0]).unwrap();
        assert!(!state.is_complete());
        for (unit, step, part) in [(2, 0, 1), (1, 1, 1), (1, 0, 2)] {
            assert!(state.extend(Unit(unit), Step(step), &vec![0.0; part]).is_err());
        }
        state.extend(Unit(1), Step(0), &[3.0]).unwrap();
        assert!(state.is_complete());
        assert_eq!(state.data, [1.0, 2.0, 3.0]);
        assert!(incoming(0).is_complete());
    }

    #[test]
    fn no_memory_is_taken_for_a_state_that_is_only_announced() {
        let mut state = incoming(u64::MAX);
        assert_eq!(state.data.capacity(), 0);
        state.extend(Unit(1), Step(0), &[1.0]).unwrap();
        assert!(state.data.capacity() <= AHEAD);
        assert_eq!(state.data, [1.0]);
    }
}
