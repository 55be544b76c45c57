//! A frame: a header of 32 bytes (kind u32, unit or micro-batch u32, round or stage u32, zero u32, step u64, payload length in
//! bytes u64), and its payload.

use crate::Tag;
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, Read, Write};
use varuna_plan::{Decision, StateId, Step, Unit};

/// Longest payload that is accepted, bytes: a boundary activation of 256 Mi elements.
const PAYLOAD_MAX: u64 = 1 << 30;
/// Longest protocol message or state header that is accepted, bytes.
const ENCODED_MAX: u64 = 1 << 24;
/// Memory is taken for this much of a payload before it arrives, bytes; for the rest of a longer one as it arrives. Most payloads
/// are shorter: they are read in one go.
const AHEAD: usize = 1 << 24;

/// Announces a unit's state. Its parts follow in order.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct StateHeader {
    /// The unit.
    pub unit: Unit,
    /// Its state.
    pub id: StateId,
    /// The sender's last decision.
    pub decision: Option<Decision>,
    /// Optimizer steps applied.
    pub adam_steps: u64,
    /// Number of elements that follow.
    pub elements: u64,
}

impl StateHeader {
    /// The payload of [`Frame::State`].
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(io::Error::other)
    }

    /// Reads the payload of [`Frame::State`].
    ///
    /// # Errors
    /// It is no header of a state.
    pub fn decode(payload: &[u8]) -> io::Result<StateHeader> {
        postcard::from_bytes(payload).map_err(io::Error::other)
    }
}

/// One message of a connection.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame {
    /// A tensor of the step being run.
    Tensor(Tag, Vec<f32>),
    /// An encoded protocol message.
    Message(Vec<u8>),
    /// The encoded header of a state that follows.
    State(Vec<u8>),
    /// A part of the announced state, with its unit and step.
    Part(Unit, Step, Vec<f32>),
}

impl Frame {
    /// Payload in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.payload().len()
    }

    fn payload(&self) -> &[u8] {
        match self {
            Frame::Tensor(_, values) | Frame::Part(_, _, values) => bytemuck::cast_slice(values),
            Frame::Message(bytes) | Frame::State(bytes) => bytes,
        }
    }

    /// Sends the frame.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (kind, first, second, step) = match self {
            Frame::Tensor(tag, _) => match tag {
                Tag::Activation {
                    stage,
                    step,
                    micro_batch,
                } => (1u32, *micro_batch, *stage, step.0),
                Tag::Gradient {
                    stage,
                    step,
                    micro_batch,
                } => (2, *micro_batch, *stage, step.0),
                Tag::Ring { step, unit, round } => (3, unit.0, *round, step.0),
            },
            Frame::Message(_) => (4, 0, 0, 0),
            Frame::State(_) => (5, 0, 0, 0),
            Frame::Part(unit, step, _) => (6, unit.0, 0, step.0),
        };
        let payload = self.payload();
        let mut header = [0u8; 32];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&first.to_le_bytes());
        header[8..12].copy_from_slice(&second.to_le_bytes());
        header[16..24].copy_from_slice(&step.to_le_bytes());
        header[24..32].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        write_both(out, &header, payload)
    }

    /// Receives a frame.
    ///
    /// # Errors
    /// The connection is broken or has ended, or the bytes are not a frame (`InvalidData`).
    pub fn read(input: &mut impl Read) -> io::Result<Frame> {
        let mut header = [0u8; 32];
        input.read_exact(&mut header)?;
        let small = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let large = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let (kind, first, second, step, length) = (small(0), small(4), small(8), Step(large(16)), large(24));
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        let most = if matches!(kind, 4 | 5) {
            ENCODED_MAX
        } else {
            PAYLOAD_MAX
        };
        if length > most {
            return Err(invalid(format!(
                "a payload of {length} bytes; at most {most} are allowed"
            )));
        }
        let length = usize::try_from(length).map_err(|_| invalid("no memory for the payload".into()))?;
        let tag = match kind {
            1 => Some(Tag::Activation {
                stage: second,
                step,
                micro_batch: first,
            }),
            2 => Some(Tag::Gradient {
                stage: second,
                step,
                micro_batch: first,
            }),
            3 => Some(Tag::Ring {
                step,
                unit: Unit(first),
                round: second,
            }),
            4..=6 => None,
            other => return Err(invalid(format!("frame kind {other}"))),
        };
        match (tag, kind) {
            (Some(tag), _) => Ok(Frame::Tensor(tag, floats(input, length)?)),
            (None, 6) => Ok(Frame::Part(Unit(first), step, floats(input, length)?)),
            (None, kind) => {
                let bytes = filled(length, AHEAD, |bytes| input.read_exact(bytes))?;
                Ok(if kind == 4 {
                    Frame::Message(bytes)
                } else {
                    Frame::State(bytes)
                })
            }
        }
    }
}

/// Writes header and payload in one call where possible: two calls would send two packets.
fn write_both(out: &mut impl Write, header: &[u8], payload: &[u8]) -> io::Result<()> {
    let mut written = 0;
    while written < header.len() {
        let parts = [IoSlice::new(&header[written..]), IoSlice::new(payload)];
        match out.write_vectored(&parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => written += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    out.write_all(&payload[written - header.len()..])
}

fn floats(input: &mut impl Read, bytes: usize) -> io::Result<Vec<f32>> {
    if !bytes.is_multiple_of(4) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{bytes} bytes are not a whole number of floats"),
        ));
    }
    filled(bytes / 4, AHEAD / 4, |values| {
        input.read_exact(bytemuck::cast_slice_mut(values))
    })
}

/// A vector of this length. `fill` fills its pieces in order; no more than `ahead`, or what is filled already, is taken at once.
fn filled<T: Clone + Default>(
    length: usize,
    ahead: usize,
    mut fill: impl FnMut(&mut [T]) -> io::Result<()>,
) -> io::Result<Vec<T>> {
    let mut values = vec![T::default(); length.min(ahead)];
    fill(&mut values)?;
    while values.len() < length {
        let start = values.len();
        values.resize(length.min(2 * start), T::default());
        fill(&mut values[start..])?;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_wire() {
        let frames = [
            Frame::Tensor(
                Tag::Activation {
                    stage: 3,
                    step: Step(9),
                    micro_batch: 3,
                },
                vec![1.5, -0.0, f32::MAX],
            ),
            Frame::Tensor(
                Tag::Gradient {
                    stage: 3,
                    step: Step(u64::MAX),
                    micro_batch: 0,
                },
                vec![],
            ),
            Frame::Tensor(
                Tag::Ring {
                    step: Step(1),
                    unit: Unit(7),
                    round: 5,
                },
                vec![0.25; 17],
            ),
            Frame::Message(vec![1, 2, 3]),
            Frame::State(vec![]),
            Frame::Part(Unit(2), Step(6), vec![2.0]),
        ];
        let mut wire = Vec::new();
        for frame in &frames {
            frame.write(&mut wire).unwrap();
        }
        let mut input = wire.as_slice();
        for frame in frames {
            assert_eq!(Frame::read(&mut input).unwrap(), frame);
        }
    }

    #[test]
    fn a_payload_is_put_together_from_its_pieces() {
        let input: Vec<u8> = (0..100).collect();
        for (length, ahead) in [(0, 4), (3, 4), (4, 4), (5, 4), (100, 1), (100, 7)] {
            let mut rest = input.as_slice();
            let mut most = 0;
            let read = filled(length, ahead, |piece: &mut [u8]| {
                most = most.max(piece.len());
                rest.read_exact(piece)
            });
            assert_eq!(read.unwrap(), input[..length], "{length} by {ahead}");
            assert!(most <= ahead.max(length / 2), "{most}");
        }
    }

    #[test]
    fn memory_is_taken_for_what_has_arrived_and_not_for_what_a_length_announces() {
        let mut asked = 0;
        let cut = filled(PAYLOAD_MAX as usize, AHEAD, |piece: &mut [u8]| {
            asked += piece.len();
            Err(io::ErrorKind::UnexpectedEof.into())
        });
        assert!(cut.is_err());
        assert_eq!(asked, AHEAD);
    }

    #[test]
    fn numbers_that_no_frame_has_are_refused() {
        let refused = |at: usize, bytes: &[u8], expected: &str| {
            let mut header = [0u8; 32];
            header[0] = 1;
            header[at..at + bytes.len()].copy_from_slice(bytes);
            let error = Frame::read(&mut header.as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains(expected), "{error}");
        };
        refused(24, &u64::MAX.to_le_bytes(), "at most 1073741824");
        refused(24, &3u64.to_le_bytes(), "whole number of floats");
        refused(0, &[7], "frame kind 7");
    }
}
