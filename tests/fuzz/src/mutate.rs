//! Makes inputs from other inputs: bytes, numbers, words and parts are changed, removed, repeated and exchanged.

mod json;
mod proto;

use crate::pool::Pool;
use crate::targets::sequence::{self, Item};
use crate::targets::{join, take_part};
use crate::{Form, Target};
use varuna_sim::Rng;

/// Maximum length of an input. Code that is quadratic in its input takes seconds for this many bytes.
const LENGTH_MAX: usize = 1 << 16;
/// Numbers at which code may behave differently: bounds of types, of steps and generations, and of counts.
const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    3,
    7,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    (1 << 24) + 1,
    i32::MAX as u64,
    1 << 31,
    u32::MAX as u64,
    1 << 32,
    1 << 48,
    (1 << 48) + 1,
    (1 << 62) + 1,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
/// Texts that may replace a number in a text.
const WRITTEN: [&str; 12] = [
    "-1",
    "-0",
    "0.5",
    "-9223372036854775808",
    "18446744073709551616",
    "1e308",
    "1e-320",
    "1e999",
    "NaN",
    "inf",
    "null",
    "\"\"",
];

/// One of these numbers, or one near it.
fn number(rng: &mut Rng) -> u64 {
    let number = rng.pick(&NUMBERS).unwrap_or(0);
    match rng.below(8) {
        0 => number.wrapping_add(1),
        1 => number.wrapping_sub(1),
        2 => rng.draw(),
        _ => number,
    }
}

/// How often something of this length may be repeated: up to 2^most times, within the maximum length of an input.
fn times(length: usize, most: u64, rng: &mut Rng) -> usize {
    (1usize << rng.below(most)).min(LENGTH_MAX / length.max(1))
}

fn index(rng: &mut Rng, length: usize) -> usize {
    usize::try_from(rng.below(length as u64)).unwrap_or(0)
}

/// An input that is made from one of the pool.
pub(crate) fn mutated(target: &Target, pool: &Pool, rng: &mut Rng) -> Vec<u8> {
    let mut input = pool.pick(rng).to_vec();
    for _ in 0..1 + rng.below(4) {
        let kept = match target.form {
            Form::Json if rng.chance(70) => json::mutate(&input, target.words, rng),
            Form::Proto if rng.chance(80) => proto::mutate(&input, rng),
            Form::Sequence if rng.chance(90) => Some(mutate_sequence(&input, rng)),
            Form::Safetensors if rng.chance(80) => mutate_safetensors(&input, target, pool, rng),
            Form::Parts(parts) if rng.chance(90) => Some(mutate_part(&input, parts, target, pool, rng)),
            _ => None,
        };
        input = kept.unwrap_or_else(|| mutate_bytes(input, target, pool, rng));
        input.truncate(LENGTH_MAX);
    }
    input
}

/// Changes the header, and adapts its length in front of it. None if there is no complete header.
fn mutate_safetensors(input: &[u8], target: &Target, pool: &Pool, rng: &mut Rng) -> Option<Vec<u8>> {
    let (length, rest) = input.split_at_checked(8)?;
    let length = u64::from_le_bytes(*length.as_array()?);
    let (header, data) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    let changed = match rng.below(10) {
        0..=6 => json::mutate(header, target.words, rng),
        _ => None,
    };
    let header = changed.unwrap_or_else(|| mutate_bytes(header.to_vec(), target, pool, rng));
    let length = (header.len() as u64).to_le_bytes();
    Some([&length, header.as_slice(), data].concat())
}

/// Changes one of several inputs in one, and adapts the lengths in front of them.
fn mutate_part(mut input: &[u8], parts: usize, target: &Target, pool: &Pool, rng: &mut Rng) -> Vec<u8> {
    let mut all: Vec<Vec<u8>> = (1..parts).map(|_| take_part(&mut input).to_vec()).collect();
    all.push(input.to_vec());
    let part = &mut all[index(rng, parts)];
    let kept = match rng.below(10) {
        0..=3 => json::mutate(part, target.words, rng),
        4..=7 => mutate_safetensors(part, target, pool, rng),
        _ => None,
    };
    *part = kept.unwrap_or_else(|| mutate_bytes(std::mem::take(part), target, pool, rng));
    let parts: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    join(&parts)
}

fn mutate_sequence(input: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut items = sequence::read(input);
    let at = index(rng, items.len().max(1));
    match rng.below(8) {
        0 if !items.is_empty() => drop(items.remove(at)),
        1 if !items.is_empty() => items.insert(at, items[index(rng, items.len())].clone()),
        2 if !items.is_empty() => {
            let other = index(rng, items.len());
            items.swap(at, other);
        }
        3 => {
            let [kind, argument, ..] = rng.draw().to_le_bytes();
            let payload = Vec::new();
            items.insert(
                at.min(items.len()),
                Item {
                    kind,
                    argument,
                    payload,
                },
            );
        }
        4 if !items.is_empty() => items[at].argument = u8::try_from(rng.below(6)).unwrap_or(0),
        _ => {
            if let Some(item) = items.get_mut(at) {
                let changed = proto::mutate(&item.payload, rng);
                item.payload = changed.unwrap_or_else(|| flipped(item.payload.clone(), rng));
            }
        }
    }
    sequence::write(&items)
}

fn flipped(mut input: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    let at = index(rng, input.len());
    if let Some(byte) = input.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
    input
}

fn mutate_bytes(mut input: Vec<u8>, target: &Target, pool: &Pool, rng: &mut Rng) -> Vec<u8> {
    let at = index(rng, input.len() + 1);
    let reach = 1 << rng.below(10);
    let end = (at + 1 + index(rng, reach)).min(input.len());
    match rng.below(14) {
        0 => return flipped(input, rng),
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = rng
                    .pick(&[0, 1, 0x7F, 0x80, 0xFF, b'\n', b'"', b'['])
                    .unwrap_or(0);
            }
        }
        2 => overwrite(&mut input, at, rng),
        3 => input.truncate(at),
        4 => drop(input.drain(at.min(end)..end)),
        5 => {
            let part = input[at.min(end)..end].to_vec();
            input.splice(at..at, part.repeat(times(part.len(), 12, rng)));
        }
        6 => {
            let other = pool.pick(rng);
            let from = index(rng, other.len() + 1);
            let until = (from + 1 + index(rng, other.len() + 1)).min(other.len());
            input.splice(at.min(end)..end, other[from.min(until)..until].iter().copied());
        }
        7 => {
            let deep = rng
                .pick(&["[", "{\"a\":", "- ", "&a [*a,", "(", "{a: "])
                .unwrap_or("[");
            input.splice(at..at, deep.repeat(times(deep.len(), 14, rng)).into_bytes());
        }
        8 | 9 => {
            if let Some(word) = rng.pick(target.words) {
                input.splice(at..at, word.bytes());
            }
        }
        10 => {
            let bytes = rng.draw().to_le_bytes();
            input.splice(at..at, bytes[..1 + index(rng, 8)].iter().copied());
        }
        _ => rewrite_number(&mut input, rng),
    }
    input
}

/// Overwrites the bytes at this position with a number, in one of the usual widths.
fn overwrite(input: &mut [u8], at: usize, rng: &mut Rng) {
    let width = rng.pick(&[2, 4, 8]).unwrap_or(8);
    // Lengths are often the length of the rest.
    let number = if rng.chance(20) {
        (input.len() as u64).wrapping_sub(at as u64 + rng.below(9))
    } else {
        number(rng)
    };
    let bytes = number.to_le_bytes();
    for (to, byte) in input.iter_mut().skip(at).zip(&bytes[..width]) {
        *to = *byte;
    }
}

/// Replaces a number that is written in digits.
fn rewrite_number(input: &mut Vec<u8>, rng: &mut Rng) {
    let begins = |i: &usize| input[*i].is_ascii_digit() && (*i == 0 || !input[*i - 1].is_ascii_digit());
    let starts: Vec<usize> = (0..input.len()).filter(begins).collect();
    let Some(start) = rng.pick(&starts) else { return };
    let length = input[start..].iter().take_while(|b| b.is_ascii_digit()).count();
    let written = if rng.chance(30) {
        rng.pick(&WRITTEN).unwrap_or("0").to_owned()
    } else {
        number(rng).to_string()
    };
    input.splice(start..start + length, written.into_bytes());
}
