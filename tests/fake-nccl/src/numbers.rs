//! The numbers that operations use, and their sums.

use half::{bf16, f16};
use std::ffi::c_int;

/// The values of `ncclDataType_t` that are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Element {
    Float16 = 6,
    Float32 = 7,
    BFloat16 = 9,
}

impl Element {
    pub(crate) fn of(number: c_int) -> Option<Element> {
        let all = [Element::Float16, Element::Float32, Element::BFloat16];
        all.into_iter().find(|e| *e as c_int == number)
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Element::Float32 => 4,
            Element::Float16 | Element::BFloat16 => 2,
        }
    }
}

fn each<const N: usize>(sum: &mut [u8], other: &[u8], add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (sum, other) = (sum.as_chunks_mut::<N>().0, other.as_chunks::<N>().0);
    for (a, b) in sum.iter_mut().zip(other) {
        *a = add(*a, *b);
    }
}

/// Adds the numbers of `other` to those of `sum`. Each sum is rounded to the element's precision.
pub(crate) fn add(element: Element, sum: &mut [u8], other: &[u8]) {
    match element {
        Element::Float32 => each(sum, other, |a, b| {
            (f32::from_ne_bytes(a) + f32::from_ne_bytes(b)).to_ne_bytes()
        }),
        Element::Float16 => each(sum, other, |a, b| {
            (f16::from_ne_bytes(a) + f16::from_ne_bytes(b)).to_ne_bytes()
        }),
        Element::BFloat16 => each(sum, other, |a, b| {
            (bf16::from_ne_bytes(a) + bf16::from_ne_bytes(b)).to_ne_bytes()
        }),
    }
}
