//! A state or a gradient that is being received, part by part.

use crate::{
    Digester, GradientHeader, Limits, PreparedHeader, StateDigest, StateError, StateHeader, TransferHeader,
};
use std::io;
use varuna_plan::{Step, Unit};

/// Number of elements for which memory is allocated before they arrive; beyond that, memory grows with what has arrived. 64 MiB: most units
/// are smaller and are never moved.
const AHEAD: usize = 1 << 24;

/// A state or a gradient that is being received.
pub struct Incoming {
    header: TransferHeader,
    data: Vec<f32>,
    digester: Digester,
}

impl Incoming {
    /// Begins the reception of an announced state. `encoded` is the payload of [`crate::Frame::State`].
    ///
    /// # Errors
    /// `encoded` is not the header of a state, or no unit has such a state.
    pub fn announced(encoded: &[u8], limits: &Limits) -> io::Result<Incoming> {
        Incoming::of(
            TransferHeader::State(StateHeader::decode(encoded)?),
            encoded,
            limits,
        )
    }

    /// Begins the reception of an announced gradient. `encoded` is the payload of [`crate::Frame::UnitGradient`].
    ///
    /// # Errors
    /// `encoded` is not the header of a gradient, or no unit has such a gradient.
    pub fn gradient_announced(encoded: &[u8], limits: &Limits) -> io::Result<Incoming> {
        let header = TransferHeader::Gradient(GradientHeader::decode(encoded)?);
        Incoming::of(header, encoded, limits)
    }

    /// Begins the reception of an announced gradient for a spare copy. `encoded` is the payload of [`crate::Frame::PreparedGradient`].
    ///
    /// # Errors
    /// As [`Incoming::gradient_announced`].
    pub fn prepared_announced(encoded: &[u8], limits: &Limits) -> io::Result<Incoming> {
        let header = TransferHeader::Prepared(PreparedHeader::decode(encoded)?);
        Incoming::of(header, encoded, limits)
    }

    fn of(header: TransferHeader, encoded: &[u8], limits: &Limits) -> io::Result<Incoming> {
        limits.transfer(&header)?;
        Ok(Incoming {
            header,
            data: Vec::new(),
            digester: Digester::new(encoded),
        })
    }

    /// Adds a part. It must belong to the announced state or gradient, have elements, and fit.
    ///
    /// # Errors
    /// It does not, or there is no memory for it.
    pub fn extend(&mut self, unit: Unit, step: Step, part: &[f32]) -> Result<(), StateError> {
        self.is_of(unit, step)?;
        let elements = self.header.elements();
        let start = self.data.len();
        let missing = elements.saturating_sub(start as u64);
        if part.is_empty() {
            return Err(StateError::EmptyPart {
                unit,
                step,
                arrived: start as u64,
                announced: elements,
            });
        }
        if part.len() as u64 > missing {
            return Err(self.elements(part.len()));
        }
        if self.data.capacity() - start < part.len() {
            // Announced data may never arrive.
            let ahead = start.max(AHEAD).max(part.len());
            let ahead = usize::try_from(missing).unwrap_or(usize::MAX).min(ahead);
            let grown = self.data.try_reserve_exact(ahead);
            let announced = elements;
            grown.map_err(|_| StateError::Memory {
                unit,
                step,
                announced,
            })?;
        }
        self.data.extend_from_slice(part);
        // The digest covers what is in memory now, not what was received.
        self.digester.add(&self.data[start..]);
        Ok(())
    }

    /// The announced state or gradient, if all of it has arrived unchanged.
    ///
    /// # Errors
    /// It has not, or the end belongs to another transfer.
    pub fn finish(
        self,
        unit: Unit,
        step: Step,
        digest: &StateDigest,
    ) -> Result<(TransferHeader, Vec<f32>), StateError> {
        self.is_of(unit, step)?;
        if self.data.len() as u64 != self.header.elements() {
            return Err(self.elements(0));
        }
        if self.digester.digest() != *digest {
            return Err(StateError::Digest { unit, step });
        }
        Ok((self.header, self.data))
    }

    fn is_of(&self, unit: Unit, step: Step) -> Result<(), StateError> {
        let (announced, at) = (self.header.unit(), self.header.step());
        if (unit, step) == (announced, at) {
            return Ok(());
        }
        Err(StateError::Other {
            unit,
            step,
            announced,
            at,
        })
    }

    fn elements(&self, part: usize) -> StateError {
        StateError::Elements {
            unit: self.header.unit(),
            step: self.header.step(),
            arrived: self.data.len() as u64,
            part: part as u64,
            announced: self.header.elements(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::StateId;

    /// An announced state, and the digester of its sender.
    fn incoming(elements: u64) -> (Incoming, Digester) {
        let header = StateHeader {
            unit: Unit(1),
            id: StateId::INITIAL,
            decision: None,
            progress: varuna_plan::OptimizerProgress::START,
            elements,
        };
        let encoded = header.encode().unwrap();
        (
            Incoming::announced(&encoded, &Limits::default()).unwrap(),
            Digester::new(&encoded),
        )
    }

    #[test]
    fn parts_make_up_the_announced_state_and_nothing_beyond_it() {
        let (mut state, mut digester) = incoming(3);
        digester.add(&[1.0, 2.0, 3.0]);
        state.extend(Unit(1), Step(0), &[1.0, 2.0]).unwrap();
        for (unit, step, part) in [(2, 0, 1), (1, 1, 1), (1, 0, 2), (1, 0, 0)] {
            assert!(state.extend(Unit(unit), Step(step), &vec![0.0; part]).is_err());
        }
        let empty = state.extend(Unit(1), Step(0), &[]).unwrap_err().to_string();
        assert!(empty.contains("an empty part after 2 of 3 elements"), "{empty}");
        state.extend(Unit(1), Step(0), &[3.0]).unwrap();
        let (header, data) = state.finish(Unit(1), Step(0), &digester.digest()).unwrap();
        assert_eq!((header.unit(), data), (Unit(1), vec![1.0, 2.0, 3.0]));
        let (empty, digester) = incoming(0);
        assert!(empty.finish(Unit(1), Step(0), &digester.digest()).is_ok());
    }

    #[test]
    fn a_state_ends_when_all_of_it_has_come_as_it_was_sent() {
        let ended = |part: &[f32], unit, change: fn(&mut StateDigest)| {
            let (mut state, mut digester) = incoming(2);
            digester.add(&[1.0, 2.0]);
            state.extend(Unit(1), Step(0), part).unwrap();
            let mut digest = digester.digest();
            change(&mut digest);
            state.finish(Unit(unit), Step(0), &digest)
        };
        assert!(ended(&[1.0, 2.0], 1, |_| {}).is_ok());
        let said = |outcome: Result<_, StateError>| outcome.unwrap_err().to_string();
        assert!(said(ended(&[2.0, 1.0], 1, |_| {})).contains("another digest than its sender's"));
        assert!(said(ended(&[1.0, 2.0], 1, |d| d[31] ^= 1)).contains("another digest"));
        assert!(said(ended(&[1.0], 1, |_| {})).contains("1 elements and then 0; 2 are announced"));
        assert!(said(ended(&[1.0, 2.0], 2, |_| {})).contains("while unit 1"));
    }

    #[test]
    fn gradient_for_a_spare_copy_round_trips_with_its_step() {
        let header = PreparedHeader {
            unit: Unit(1),
            run_gen: varuna_plan::Generation(3),
            step: Step(6),
            norm: varuna_plan::state::UnitNorm {
                norm2: 2.5,
                overflow: false,
                before: varuna_plan::OptimizerProgress::START,
                loss: 1.5,
                eval_loss: None,
            },
            elements: 2,
        };
        let limits = Limits {
            unit_parameters: Some(vec![1, 2]),
            ..Limits::default()
        };
        let encoded = header.encode().unwrap();
        let mut digester = Digester::new(&encoded);
        digester.add(&[1.0, 2.0]);
        let announced = || Incoming::prepared_announced(&encoded, &limits).unwrap();
        let mut gradient = announced();
        assert!(gradient.extend(Unit(1), Step(7), &[1.0]).is_err());
        gradient.extend(Unit(1), Step(6), &[1.0, 2.0]).unwrap();
        let arrived = gradient.finish(Unit(1), Step(6), &digester.digest()).unwrap();
        assert_eq!(arrived, (TransferHeader::Prepared(header), vec![1.0, 2.0]));
        let longer = PreparedHeader {
            elements: u64::MAX,
            ..header
        };
        assert!(Incoming::prepared_announced(&longer.encode().unwrap(), &limits).is_err());
        assert!(Incoming::prepared_announced(&encoded[..3], &limits).is_err());
    }

    #[test]
    fn the_header_is_part_of_the_digest() {
        let (_, digester) = incoming(0);
        let (mut other, _) = incoming(1);
        other.header = incoming(0).0.header;
        assert!(other.finish(Unit(1), Step(0), &digester.digest()).is_err());
    }

    #[test]
    fn no_memory_is_taken_for_a_state_that_is_only_announced() {
        let (mut state, _) = incoming(u64::MAX);
        assert_eq!(state.data.capacity(), 0);
        state.extend(Unit(1), Step(0), &[1.0]).unwrap();
        assert!(state.data.capacity() <= AHEAD);
        assert_eq!(state.data, [1.0]);
    }
}
