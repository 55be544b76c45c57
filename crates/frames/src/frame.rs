//! A frame: a header and its payload, each with a checksum.

use crate::header::{HEADER_BYTES, Header};
use crate::{ElementFormat, FrameError, Kind, Limits, Packet, StateDigest, Tag};
use bytemuck::Pod;
use std::io::{self, IoSlice, Read, Write};
use varuna_plan::{Step, Unit};

/// Memory for up to this many bytes of a payload is allocated before they arrive, and for the rest of a longer one as it arrives. Most
/// payloads are shorter and are read in one go.
const AHEAD: usize = 1 << 24;
/// Number of bytes that are received before their checksum is computed: they are then still in the processor's cache.
const CHUNK: usize = 1 << 17;

/// One message of a connection.
#[derive(Clone, PartialEq, Debug)]
pub enum Frame {
    /// A tensor of the step being run.
    Tensor(Tag, Packet),
    /// An encoded protocol message.
    Message(Vec<u8>),
    /// The encoded header of a state that follows.
    State(Vec<u8>),
    /// The encoded header of a unit's gradient that follows.
    UnitGradient(Vec<u8>),
    /// The encoded header of a gradient for a unit's spare copy that follows.
    PreparedGradient(Vec<u8>),
    /// A part of the announced state or gradient, with its unit and step.
    Part(Unit, Step, Vec<f32>),
    /// The end of the announced state or gradient, with its unit, its step and its digest.
    End(Unit, Step, StateDigest),
}

impl Frame {
    /// Payload in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.payload().len()
    }

    fn payload(&self) -> &[u8] {
        match self {
            Frame::Tensor(_, packet) => packet.bytes(),
            Frame::Part(_, _, values) => bytemuck::cast_slice(values),
            Frame::Message(bytes)
            | Frame::State(bytes)
            | Frame::UnitGradient(bytes)
            | Frame::PreparedGradient(bytes) => bytes,
            Frame::End(_, _, digest) => digest,
        }
    }

    /// The identifying header fields: kind, unit or micro-batch, round or stage, step.
    fn names(&self) -> (Kind, u32, u32, Step) {
        match self {
            Frame::Tensor(tag, _) => match *tag {
                Tag::Activation {
                    stage,
                    step,
                    micro_batch,
                } => (Kind::Activation, micro_batch, stage, step),
                Tag::Gradient {
                    stage,
                    step,
                    micro_batch,
                } => (Kind::Gradient, micro_batch, stage, step),
                Tag::Ring { step, unit, round } => (Kind::Ring, unit.0, round, step),
                Tag::Parameters { step, unit, piece } => (Kind::Parameters, unit.0, piece, step),
                Tag::CommunicatorId { communicator, round } => {
                    (Kind::CommunicatorId, communicator, round, Step(0))
                }
            },
            Frame::Message(_) => (Kind::Message, 0, 0, Step(0)),
            Frame::State(_) => (Kind::State, 0, 0, Step(0)),
            Frame::UnitGradient(_) => (Kind::UnitGradient, 0, 0, Step(0)),
            Frame::PreparedGradient(_) => (Kind::PreparedGradient, 0, 0, Step(0)),
            Frame::Part(unit, step, _) => (Kind::Part, unit.0, 0, *step),
            Frame::End(unit, step, _) => (Kind::End, unit.0, 0, *step),
        }
    }

    fn format(&self) -> Option<ElementFormat> {
        match self {
            Frame::Tensor(_, packet) => Some(packet.format()),
            _ => None,
        }
    }

    /// Sends the frame.
    ///
    /// # Errors
    /// The connection is broken, or the payload is longer than any receiver accepts.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (kind, first, second, step) = self.names();
        let payload = self.payload();
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let header = Header {
            kind,
            format: self.format(),
            first,
            second,
            step,
            length,
            checksum: crc32c::crc32c(payload),
        };
        write_both(out, &header.encode(), payload)
    }

    /// Receives a frame.
    ///
    /// # Errors
    /// The connection is broken or has ended, or the bytes are not a frame within the limits (`InvalidData`, with a
    /// [`FrameError`]).
    pub fn read(input: &mut impl Read, limits: &Limits) -> io::Result<Frame> {
        let mut bytes = [0u8; HEADER_BYTES];
        input.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes)?;
        let Header {
            kind,
            first,
            second,
            step,
            ..
        } = header;
        let unit = Unit(first);
        let length = limits.payload(&header)?;
        let tag = match kind {
            Kind::Activation => Tag::Activation {
                stage: second,
                step,
                micro_batch: first,
            },
            Kind::Gradient => Tag::Gradient {
                stage: second,
                step,
                micro_batch: first,
            },
            Kind::Ring => Tag::Ring {
                step,
                unit,
                round: second,
            },
            Kind::Parameters => Tag::Parameters {
                step,
                unit,
                piece: second,
            },
            Kind::CommunicatorId => Tag::CommunicatorId {
                communicator: first,
                round: second,
            },
            Kind::Message => return Ok(Frame::Message(bytes_of(input, &header, length)?)),
            Kind::State => return Ok(Frame::State(bytes_of(input, &header, length)?)),
            Kind::UnitGradient => return Ok(Frame::UnitGradient(bytes_of(input, &header, length)?)),
            Kind::PreparedGradient => {
                return Ok(Frame::PreparedGradient(bytes_of(input, &header, length)?));
            }
            Kind::Part => {
                let format = ElementFormat::Float32;
                return Ok(Frame::Part(unit, step, elements_of(input, &header, format)?));
            }
            Kind::End => return Ok(Frame::End(unit, step, digest_of(input, &header)?)),
        };
        let format = limits.tensor_format(&header)?;
        Ok(Frame::Tensor(tag, packet_of(input, &header, format)?))
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

fn bytes_of(input: &mut impl Read, header: &Header, length: usize) -> io::Result<Vec<u8>> {
    checked(header, |sum| {
        filled(length, AHEAD, |bytes| receive(input, bytes, sum))
    })
}

fn digest_of(input: &mut impl Read, header: &Header) -> io::Result<StateDigest> {
    let Header { kind, length, .. } = *header;
    let mut digest = StateDigest::default();
    if length as usize != digest.len() {
        return Err(FrameError::Digest { kind, length }.into());
    }
    checked(header, |sum| receive(input, &mut digest, sum))?;
    Ok(digest)
}

fn packet_of(input: &mut impl Read, header: &Header, format: ElementFormat) -> io::Result<Packet> {
    Ok(match format {
        ElementFormat::Float32 => Packet::Float32(elements_of(input, header, format)?),
        ElementFormat::BFloat16 => Packet::BFloat16(elements_of(input, header, format)?),
        ElementFormat::Float16 => Packet::Float16(elements_of(input, header, format)?),
    })
}

/// Receives elements of this format directly into their final memory.
fn elements_of<T: Pod + Default>(
    input: &mut impl Read,
    header: &Header,
    format: ElementFormat,
) -> io::Result<Vec<T>> {
    let Header { kind, length, .. } = *header;
    if !length.is_multiple_of(format.bytes()) {
        let whole = FrameError::Elements { kind, format, length };
        return Err(whole.into());
    }
    let elements = (length / format.bytes()) as usize;
    checked(header, |sum| {
        filled(elements, AHEAD / size_of::<T>(), |values| {
            receive(input, bytemuck::cast_slice_mut(values), sum)
        })
    })
}

/// Receives bytes, and adds them to a checksum.
fn receive(input: &mut impl Read, bytes: &mut [u8], sum: &mut u32) -> io::Result<()> {
    for chunk in bytes.chunks_mut(CHUNK) {
        input.read_exact(chunk)?;
        *sum = crc32c::crc32c_append(*sum, chunk);
    }
    Ok(())
}

/// Receives a payload, and compares its checksum with the header's.
fn checked<T>(header: &Header, payload: impl FnOnce(&mut u32) -> io::Result<T>) -> io::Result<T> {
    let mut computed = 0;
    let payload = payload(&mut computed)?;
    if computed == header.checksum {
        return Ok(payload);
    }
    let Header { kind, checksum, .. } = *header;
    let wrong = FrameError::Payload {
        kind,
        found: checksum,
        computed,
    };
    Err(wrong.into())
}

/// A vector of this length. `fill` fills its pieces in order. At most `ahead` elements, or as many as are already filled, are allocated at
/// once.
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
mod tests;
