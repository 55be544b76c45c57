//! Flat memory that tensors use as a whole, while parts of it are lent out one by one.

use super::FlatBuffer;
use super::memory::Memory;
use crate::{Device, Streams, TorchError};
use std::ops::Range;
use std::sync::{Arc, Weak};
use tch::Tensor;

/// Float memory whose parts are [`FlatBuffer`]s with leases and shares of their own. The whole is never lent out, and no element is in two
/// parts at once.
pub struct PartedBuffer {
    whole: FlatBuffer,
    /// Those that somebody has: a buffer, or a lease or share of it.
    parts: Vec<(Range<usize>, Weak<Memory>)>,
}

impl PartedBuffer {
    /// `len` zeros.
    ///
    /// # Errors
    /// libtorch refuses (out of memory).
    pub fn zeros(len: usize, device: Device, streams: Streams) -> Result<PartedBuffer, TorchError> {
        Ok(PartedBuffer {
            whole: FlatBuffer::zeros(len, device, streams)?,
            parts: Vec::new(),
        })
    }

    /// A flat tensor over all elements, on the device. It and its views keep the memory alive.
    ///
    /// # Errors
    /// libtorch refuses.
    pub fn tensor(&self) -> Result<Tensor, TorchError> {
        self.whole.tensor()
    }

    /// Some of the elements, which keep the whole memory alive; none where somebody has one of them already.
    ///
    /// # Errors
    /// There are no such elements.
    pub fn part(&mut self, range: Range<usize>) -> Result<Option<FlatBuffer>, TorchError> {
        let len = self.whole.len();
        if range.is_empty() || range.end > len {
            return Err(TorchError(format!("elements {range:?} of a buffer of {len}")));
        }
        self.forget_dropped();
        let overlaps = |other: &Range<usize>| other.start < range.end && range.start < other.end;
        if self.parts.iter().any(|(other, _)| overlaps(other)) {
            return Ok(None);
        }
        let (memory, apart) = match &self.whole.apart {
            // Only a lease would take memory of the host: its own then, not that of the whole.
            Some((_, streams)) => {
                let elements = self.whole.narrow(range.clone())?;
                (Memory::new(range.len()), Some((elements, *streams)))
            }
            None => (self.whole.memory.part(&range), None),
        };
        let memory = Arc::new(memory);
        self.parts.push((range, Arc::downgrade(&memory)));
        Ok(Some(FlatBuffer {
            memory,
            apart,
            is_part: true,
        }))
    }

    /// Whether this is one of the parts.
    #[must_use]
    pub fn has(&self, buffer: &FlatBuffer) -> bool {
        let memory = Arc::as_ptr(&buffer.memory);
        let is_it = |part: &Weak<Memory>| std::ptr::eq(part.as_ptr(), memory);
        self.parts.iter().any(|(_, part)| is_it(part))
    }

    /// How many parts somebody has.
    pub fn parts(&mut self) -> usize {
        self.forget_dropped();
        self.parts.len()
    }

    /// Whether the whole takes memory of the host.
    #[cfg(test)]
    pub(super) fn is_taken(&self) -> bool {
        self.whole.memory.is_taken()
    }

    fn forget_dropped(&mut self) {
        self.parts.retain(|(_, part)| part.strong_count() > 0);
    }
}
