//! The format of a connection: a hello, its answer and the answer's confirmation, then frames from the dialer to the acceptor.
//!
//! Without the confirmation an acceptor could not tell a lost connection from one that its dialer gave up.
//!
//! All numbers are little-endian. A frame is a header of 32 bytes (kind u32, unit or micro-batch u32, round or stage u32, zero u32,
//! step u64, payload length in bytes u64) and its payload.

use super::super::Tag;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::io::{self, IoSlice, Read, Write};
use varuna_plan::{Decision, Generation, StateId, Step, Unit, WorkerId};

/// First bytes of every connection.
const MAGIC: [u8; 4] = *b"VRNA";
/// Version of this format. Workers with another version are refused.
pub const VERSION: u32 = 1;
/// Longest payload that is accepted, bytes: a boundary activation of 256 Mi elements.
const PAYLOAD_MAX: u64 = 1 << 30;
/// Longest protocol message or state header that is accepted, bytes.
const ENCODED_MAX: u64 = 1 << 24;
/// The dialer sends this byte once it has been accepted.
const CONFIRMATION: u8 = 0xC5;
/// Bytes of a hello.
const HELLO_BYTES: usize = 4 + 4 + 8 + 8 + 8 + 32;

/// Why an acceptor refuses a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The generation is not known yet, or not any more. A later try may succeed.
    Generation,
    /// The proof is wrong, or the hello is for another worker.
    Secret,
    /// Another version of the format.
    Version,
}

/// The first message of a connection, from the dialer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The generation of the connection.
    pub generation: Generation,
    /// The dialer.
    pub from: WorkerId,
    /// The acceptor.
    pub to: WorkerId,
    /// See [`Hello::prove`].
    pub proof: [u8; 32],
}

impl Hello {
    /// HMAC-SHA256 of (generation, from, to) under the generation's secret: the secret itself is never sent.
    #[must_use]
    pub fn prove(secret: &str, generation: Generation, from: WorkerId, to: WorkerId) -> [u8; 32] {
        mac(secret, generation, from, to).finalize().into_bytes().into()
    }

    /// Whether the proof matches this secret, in constant time.
    #[must_use]
    pub fn proves(&self, secret: &str) -> bool {
        mac(secret, self.generation, self.from, self.to)
            .verify_slice(&self.proof)
            .is_ok()
    }

    /// Sends the hello.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        for number in [self.generation.0, self.from.0, self.to.0] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.proof);
        out.write_all(&bytes)
    }

    /// Receives a hello.
    ///
    /// # Errors
    /// The connection is broken, or the bytes are not a hello (`InvalidData`).
    pub fn read(input: &mut impl Read) -> io::Result<Result<Hello, Refusal>> {
        let mut bytes = [0u8; HELLO_BYTES];
        input.read_exact(&mut bytes)?;
        if bytes[..4] != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a Varuna worker"));
        }
        if bytes[4..8] != VERSION.to_le_bytes() {
            return Ok(Err(Refusal::Version));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let proof = std::array::from_fn(|i| bytes[32 + i]);
        let hello = Hello {
            generation: Generation(number(8)),
            from: WorkerId(number(16)),
            to: WorkerId(number(24)),
            proof,
        };
        Ok(Ok(hello))
    }
}

fn mac(secret: &str, generation: Generation, from: WorkerId, to: WorkerId) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    for number in [generation.0, from.0, to.0] {
        mac.update(&number.to_le_bytes());
    }
    mac
}

/// Sends the confirmation.
///
/// # Errors
/// The connection is broken.
pub fn write_confirmation(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[CONFIRMATION])
}

/// Waits for the confirmation.
///
/// # Errors
/// The connection is broken or was given up, or the byte is another one (`InvalidData`).
pub fn read_confirmation(input: &mut impl Read) -> io::Result<()> {
    let mut byte = [0u8];
    input.read_exact(&mut byte)?;
    if byte[0] == CONFIRMATION {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {} is not a confirmation", byte[0]),
        ))
    }
}

/// Sends the answer to a hello.
///
/// # Errors
/// The connection is broken.
pub fn write_answer(out: &mut impl Write, answer: Result<(), Refusal>) -> io::Result<()> {
    out.write_all(&[match answer {
        Ok(()) => 0,
        Err(Refusal::Generation) => 1,
        Err(Refusal::Secret) => 2,
        Err(Refusal::Version) => 3,
    }])
}

/// Receives the answer to a hello.
///
/// # Errors
/// The connection is broken, or the byte is not an answer (`InvalidData`).
pub fn read_answer(input: &mut impl Read) -> io::Result<Result<(), Refusal>> {
    let mut byte = [0u8];
    input.read_exact(&mut byte)?;
    match byte[0] {
        0 => Ok(Ok(())),
        1 => Ok(Err(Refusal::Generation)),
        2 => Ok(Err(Refusal::Secret)),
        3 => Ok(Err(Refusal::Version)),
        other => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("byte {other} is not an answer"),
        )),
    }
}

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
                let mut bytes = vec![0u8; length];
                input.read_exact(&mut bytes)?;
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
    let mut values = vec![0f32; bytes / 4];
    input.read_exact(bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_hellos_survive_the_wire() {
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
        let proof = Hello::prove("s", Generation(3), WorkerId(1), WorkerId(2));
        assert_ne!(proof, Hello::prove("t", Generation(3), WorkerId(1), WorkerId(2)));
        assert_ne!(proof, Hello::prove("s", Generation(4), WorkerId(1), WorkerId(2)));
        let hello = Hello {
            generation: Generation(3),
            from: WorkerId(1),
            to: WorkerId(2),
            proof,
        };
        let mut wire = Vec::new();
        hello.write(&mut wire).unwrap();
        assert_eq!(Hello::read(&mut wire.as_slice()).unwrap(), Ok(hello));
        wire[4] ^= 1;
        assert_eq!(Hello::read(&mut wire.as_slice()).unwrap(), Err(Refusal::Version));
    }

    #[test]
    fn rubbish_is_refused_without_taking_memory_for_it() {
        let mut header = [0u8; 32];
        header[0] = 1;
        header[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(
            Frame::read(&mut header.as_slice()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        header[24..32].copy_from_slice(&3u64.to_le_bytes());
        assert_eq!(
            Frame::read(&mut header.as_slice()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert!(Hello::read(&mut [7u8; 64].as_slice()).is_err());
    }
}
