//! The elements of a tensor in transit between workers, in the number format in which they are computed or summed.

use std::fmt;

/// How a tensor's elements are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ElementFormat {
    /// IEEE 754 binary32.
    Float32 = 1,
    /// The upper half of binary32.
    BFloat16 = 2,
    /// IEEE 754 binary16.
    Float16 = 3,
}

impl ElementFormat {
    /// All of them, in the order of their numbers on the wire.
    pub const ALL: [ElementFormat; 3] = [
        ElementFormat::Float32,
        ElementFormat::BFloat16,
        ElementFormat::Float16,
    ];

    /// The format with this number on the wire.
    pub(crate) fn of(number: u16) -> Option<ElementFormat> {
        Self::ALL.into_iter().find(|f| *f as u16 == number)
    }

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> u32 {
        match self {
            ElementFormat::Float32 => 4,
            ElementFormat::BFloat16 | ElementFormat::Float16 => 2,
        }
    }

    /// Name of the kind of packet in error messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ElementFormat::Float32 => "float32",
            ElementFormat::BFloat16 => "bfloat16",
            ElementFormat::Float16 => "float16",
        }
    }
}

impl fmt::Display for ElementFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The elements of a tensor. Each format is stored in numbers of its own width, so that the memory can be used for computing directly: a
/// vector of bytes is not aligned for that.
#[derive(Clone, PartialEq, Debug)]
pub enum Packet {
    /// The numbers.
    Float32(Vec<f32>),
    /// The bits of each number.
    BFloat16(Vec<u16>),
    /// The bits of each number.
    Float16(Vec<u16>),
}

impl Packet {
    /// How the elements are written.
    #[must_use]
    pub fn format(&self) -> ElementFormat {
        match self {
            Packet::Float32(_) => ElementFormat::Float32,
            Packet::BFloat16(_) => ElementFormat::BFloat16,
            Packet::Float16(_) => ElementFormat::Float16,
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        match self {
            Packet::Float32(values) => values.len(),
            Packet::BFloat16(bits) | Packet::Float16(bits) => bits.len(),
        }
    }

    /// The elements as bytes on the wire.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Packet::Float32(values) => bytemuck::cast_slice(values),
            Packet::BFloat16(bits) | Packet::Float16(bits) => bytemuck::cast_slice(bits),
        }
    }
}

impl From<Vec<f32>> for Packet {
    fn from(values: Vec<f32>) -> Packet {
        Packet::Float32(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_number_and_no_other_number_has_one() {
        for number in 0..=4 {
            let format = ElementFormat::of(number);
            assert_eq!(format.is_some(), (1..=3).contains(&number), "{number}");
            assert!(format.is_none_or(|format| format as u16 == number));
        }
    }

    #[test]
    fn elements_take_the_bytes_of_their_format() {
        let packets = [
            Packet::Float32(vec![1.0; 3]),
            Packet::BFloat16(vec![0x3f80; 3]),
            Packet::Float16(vec![0x3c00; 3]),
        ];
        assert_eq!(packets[1].bytes(), [0x80, 0x3f].repeat(3));
        for (packet, format) in packets.iter().zip(ElementFormat::ALL) {
            assert_eq!((packet.format(), packet.elements()), (format, 3));
            assert_eq!(packet.bytes().len(), 3 * format.bytes() as usize);
        }
    }
}
