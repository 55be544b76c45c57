//! Mutations of a protobuf message (<https://protobuf.dev/programming-guides/encoding/>) that keep its framing valid. Without knowing the
//! message type, a field is changed, removed, repeated, or exchanged with another one.

use super::{flipped, index, number, times};
use varuna_sim::Rng;

/// Maximum depth of nested messages that are changed.
const DEPTH: u32 = 12;

enum Content {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Vec<u8>),
}

struct Field {
    number: u64,
    content: Content,
}

/// Changes one field of the message or of a nested one; none if it is no message.
pub(super) fn mutate(input: &[u8], rng: &mut Rng) -> Option<Vec<u8>> {
    let mut fields = read(input)?;
    change(&mut fields, rng, DEPTH);
    Some(write(&fields))
}

fn change(fields: &mut Vec<Field>, rng: &mut Rng, depth: u32) {
    let at = index(rng, fields.len());
    let how = rng.below(12);
    let count = fields.len();
    let Some(field) = fields.get_mut(at) else {
        let (number, content) = (1 + rng.below(12), Content::Varint(number(rng)));
        return fields.push(Field { number, content });
    };
    match &mut field.content {
        _ if how == 0 => drop(fields.remove(at)),
        _ if how == 1 => {
            let again = write(&fields[at..=at]);
            let copies = read(&again.repeat(times(again.len(), 6, rng)));
            fields.extend(copies.unwrap_or_default());
        }
        _ if how == 2 => fields.swap(at, index(rng, count)),
        _ if how == 3 => field.number = 1 + rng.below(14),
        Content::Bytes(bytes) => {
            let inner = read(bytes).filter(|f| !f.is_empty() && depth > 0);
            match inner {
                Some(mut inner) if how < 11 => {
                    change(&mut inner, rng, depth - 1);
                    *bytes = write(&inner);
                }
                _ if how == 4 => bytes.clear(),
                _ if how == 5 => *bytes = bytes.repeat(times(bytes.len(), 10, rng)),
                _ => *bytes = flipped(std::mem::take(bytes), rng),
            }
        }
        Content::Varint(value) => *value = number(rng),
        Content::Fixed64(bits) => {
            let numbers = [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX, 5e-324];
            *bits = rng.pick(&numbers).unwrap_or(0.0).to_bits();
        }
        Content::Fixed32(bits) => *bits = u32::try_from(number(rng) & 0xFFFF_FFFF).unwrap_or(0),
    }
}

fn read(mut input: &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !input.is_empty() {
        let key = varint(&mut input)?;
        let content = match key & 7 {
            0 => Content::Varint(varint(&mut input)?),
            1 => Content::Fixed64(u64::from_le_bytes(*input.split_off(..8)?.as_array()?)),
            2 => {
                let length = usize::try_from(varint(&mut input)?).ok()?;
                Content::Bytes(input.split_off(..length)?.to_vec())
            }
            5 => Content::Fixed32(u32::from_le_bytes(*input.split_off(..4)?.as_array()?)),
            _ => return None,
        };
        let number = key >> 3;
        fields.push(Field { number, content });
    }
    Some(fields)
}

fn varint(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *input.split_off_first()?;
        value |= u64::from(byte & 0x7F).wrapping_shl(shift);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = Vec::new();
    for Field { number, content } in fields {
        let wire_type = match content {
            Content::Varint(_) => 0,
            Content::Fixed64(_) => 1,
            Content::Bytes(_) => 2,
            Content::Fixed32(_) => 5,
        };
        write_varint(number << 3 | wire_type, &mut out);
        match content {
            Content::Varint(value) => write_varint(*value, &mut out),
            Content::Fixed64(bits) => out.extend(bits.to_le_bytes()),
            Content::Fixed32(bits) => out.extend(bits.to_le_bytes()),
            Content::Bytes(bytes) => {
                write_varint(bytes.len() as u64, &mut out);
                out.extend(bytes);
            }
        }
    }
    out
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7F).unwrap_or(0) | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_again() {
        // Field 1: 150; field 2: a message with field 1 = 1; field 3: a double; field 4: 32 bits.
        let message = [
            8, 0x96, 1, 0x12, 2, 8, 1, 0x19, 0, 0, 0, 0, 0, 0, 0xF0, 0x3F, 0x25, 1, 2, 3, 4,
        ];
        assert_eq!(write(&read(&message).unwrap()), message);
        assert!(read(&message[..5]).is_none());
        let changed = (0..40).filter_map(|seed| mutate(&message, &mut Rng(seed)));
        assert!(changed.filter(|m| read(m).is_some() && *m != message).count() > 20);
    }
}
