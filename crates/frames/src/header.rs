//! The header of a frame, 32 bytes: kind u16, element format u16 (0 where the payload is no tensor of a step), unit or micro-batch u32,
//! round or stage u32, checksum of the payload u32, step u64, length of the payload in bytes u32, checksum of the 28 bytes before u32.
//! Checksums are CRC-32C.
//!
//! The header has a checksum of its own: otherwise the receiver would wait for a length that was changed on its way.

use crate::{ElementFormat, FrameError, Kind};
use varuna_plan::Step;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes of a header that its checksum covers.
const CHECKED: usize = 28;

/// Everything in a frame except its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    /// The format of the payload, if it is a tensor of a step.
    pub(crate) format: Option<ElementFormat>,
    /// Unit or micro-batch.
    pub(crate) first: u32,
    /// Round or stage.
    pub(crate) second: u32,
    pub(crate) step: Step,
    /// Length of the payload, bytes.
    pub(crate) length: u32,
    /// Checksum of the payload.
    pub(crate) checksum: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&self.format.map_or(0, |f| f as u16).to_le_bytes());
        bytes[4..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.second.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.step.0.to_le_bytes());
        bytes[24..CHECKED].copy_from_slice(&self.length.to_le_bytes());
        let own = crc32c::crc32c(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let short = |at: usize| u16::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (found, computed) = (number(CHECKED), crc32c::crc32c(&bytes[..CHECKED]));
        if found != computed {
            return Err(FrameError::Header { found, computed });
        }
        let (kind, format) = (short(0), short(2));
        let known = ElementFormat::of(format);
        if known.is_none() && format != 0 {
            return Err(FrameError::Format(format));
        }
        Ok(Header {
            kind: Kind::of(kind).ok_or(FrameError::Kind(kind))?,
            format: known,
            first: number(4),
            second: number(8),
            step: Step(u64::from_le_bytes(std::array::from_fn(|i| bytes[16 + i]))),
            length: number(24),
            checksum: number(12),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_header_are_these() {
        let header = Header {
            kind: Kind::Ring,
            format: Some(ElementFormat::Float32),
            first: 7,
            second: 5,
            step: Step(9),
            length: 68,
            checksum: 0x0403_0201,
        };
        let bytes = header.encode();
        let expected = [
            3, 0, 1, 0, 7, 0, 0, 0, 5, 0, 0, 0, 1, 2, 3, 4, 9, 0, 0, 0, 0, 0, 0, 0, 68, 0, 0, 0,
        ];
        assert_eq!(bytes[..CHECKED], expected);
        assert_eq!(Header::decode(&bytes), Ok(header));
        let plain = Header {
            kind: Kind::Message,
            format: None,
            ..header
        };
        assert_eq!(plain.encode()[..4], [4, 0, 0, 0]);
        assert_eq!(Header::decode(&plain.encode()), Ok(plain));
        // The checksum uses the Castagnoli polynomial: this is its check value, from the test vectors of RFC 3720.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn every_kind_has_a_number_and_no_other_number_has_one() {
        for number in 0..=Kind::LAST + 1 {
            let kind = Kind::of(number);
            assert_eq!(kind.is_some(), (1..=Kind::LAST).contains(&number), "{number}");
            assert!(kind.is_none_or(|kind| kind as u16 == number));
        }
    }
}
