//! How much a receiver takes of each kind of frame. What is longer is refused before memory is taken for it: a peer that has
//! proven itself may still be broken.

use crate::{FrameError, Kind, StateError, StateHeader};

/// Elements of one part of a state: 1 MiB, so that urgent frames wait for about a millisecond at most.
pub const PART_ELEMENTS: usize = 1 << 18;
/// Longest header of a state, bytes: numbers and names of states.
const STATE_HEADER: u32 = 1 << 10;
/// Longest digest, bytes.
const DIGEST: u32 = 32;
/// Bytes of an element.
const ELEMENT: u32 = 4;

/// How much a receiver takes. Limits that follow from the job are the receiver's to set; what it takes before, or where there is
/// no job, is the default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest tensor of a step, elements.
    pub tensor_elements: u32,
    /// Longest protocol message, bytes.
    pub message_bytes: u32,
    /// Elements of each unit's state, in order. None: of any number.
    pub state_elements: Option<Vec<u64>>,
}

impl Default for Limits {
    /// A boundary activation of 256 Mi elements; messages of 16 MiB, as from a coordinator; any state.
    fn default() -> Limits {
        Limits {
            tensor_elements: 1 << 28,
            message_bytes: 1 << 24,
            state_elements: None,
        }
    }
}

impl Limits {
    /// The length of a payload, if it is taken.
    pub(crate) fn payload(&self, kind: Kind, length: u32) -> Result<usize, FrameError> {
        let most = match kind {
            Kind::Activation | Kind::Gradient | Kind::Ring => self.tensor_elements.saturating_mul(ELEMENT),
            Kind::Message => self.message_bytes,
            Kind::State => STATE_HEADER,
            Kind::Part => PART_ELEMENTS as u32 * ELEMENT,
            Kind::End => DIGEST,
        };
        let long = FrameError::Long { kind, length, most };
        usize::try_from(length)
            .ok()
            .filter(|_| length <= most)
            .ok_or(long)
    }

    /// Whether a unit has a state of so many elements.
    pub(crate) fn state(&self, header: &StateHeader) -> Result<(), StateError> {
        let StateHeader { unit, elements, .. } = *header;
        let Some(known) = &self.state_elements else {
            return Ok(());
        };
        match known.get(unit.index()) {
            Some(expected) if *expected == elements => Ok(()),
            Some(expected) => Err(StateError::Size {
                unit,
                announced: elements,
                expected: *expected,
            }),
            None => Err(StateError::Unit {
                unit,
                units: known.len(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::{StateId, Unit};

    #[test]
    fn each_kind_has_its_own_limit() {
        let limits = Limits {
            tensor_elements: 10,
            message_bytes: 7,
            state_elements: None,
        };
        let mosts = [
            (Kind::Activation, 40),
            (Kind::Gradient, 40),
            (Kind::Ring, 40),
            (Kind::Message, 7),
            (Kind::State, 1024),
            (Kind::Part, 1 << 20),
            (Kind::End, 32),
        ];
        for (kind, most) in mosts {
            assert_eq!(limits.payload(kind, most), Ok(most as usize));
            let length = most + 1;
            assert_eq!(
                limits.payload(kind, length),
                Err(FrameError::Long { kind, length, most })
            );
        }
    }

    #[test]
    fn a_state_has_the_size_of_its_unit() {
        let header = |unit, elements| StateHeader {
            unit: Unit(unit),
            id: StateId::INITIAL,
            decision: None,
            adam_steps: 0,
            elements,
        };
        let limits = Limits {
            state_elements: Some(vec![3, 6]),
            ..Limits::default()
        };
        assert!(limits.state(&header(1, 6)).is_ok());
        let said = |unit, elements| limits.state(&header(unit, elements)).unwrap_err().to_string();
        assert!(
            said(1, u64::MAX).contains("its state has 6"),
            "{}",
            said(1, u64::MAX)
        );
        assert!(said(2, 6).contains("there are 2 units"), "{}", said(2, 6));
        assert!(Limits::default().state(&header(9, u64::MAX)).is_ok());
    }
}
