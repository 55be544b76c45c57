//! A few entries of an index in memory, so that only a small part of the file is needed to find a document. An index may have gigabytes, and on
//! a store each block that a bisection of all of it touches is a request of its own.

use std::ops::Range;

/// One entry in so many is kept: 16 MB for a billion documents. What lies between two of them is an eighth of a block of a store.
const STRIDE: u64 = 1024;

/// Evenly spaced entries of an index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SparseIndex {
    stride: u64,
    /// Where each `stride`-th sequence begins, bytes.
    pointers: Vec<u64>,
    /// The first sequence of each `stride`-th document.
    documents: Vec<u64>,
}

impl Default for SparseIndex {
    fn default() -> SparseIndex {
        SparseIndex::every(STRIDE)
    }
}

impl SparseIndex {
    /// Keeps one entry in `stride`, which is at least 1.
    pub(super) fn every(stride: u64) -> SparseIndex {
        SparseIndex {
            stride: stride.max(1),
            pointers: Vec::new(),
            documents: Vec::new(),
        }
    }

    /// The next sequence, of this number, begins at this byte. They come in order, so nothing has to be divided for each of them.
    pub(super) fn note_pointer(&mut self, sequence: u64, byte: u64) {
        if sequence == self.pointers.len() as u64 * self.stride {
            self.pointers.push(byte);
        }
    }

    /// The next document, of this number, begins with this sequence. They come in order too.
    pub(super) fn note_document(&mut self, document: u64, sequence: u64) {
        if document == self.documents.len() as u64 * self.stride {
            self.documents.push(sequence);
        }
    }

    /// The byte at which a sequence begins at the earliest.
    fn at_least(&self, sequence: u64) -> u64 {
        self.pointer(sequence / self.stride)
    }

    /// The byte at which a sequence begins at the latest, as far as is known.
    fn at_most(&self, sequence: u64) -> u64 {
        self.pointer(sequence.div_ceil(self.stride))
    }

    fn pointer(&self, number: u64) -> u64 {
        let kept = usize::try_from(number).ok().and_then(|i| self.pointers.get(i));
        kept.copied().unwrap_or(u64::MAX)
    }

    /// Whether a sequence begins after this byte; none if only the file tells.
    pub(super) fn begins_after(&self, sequence: u64, byte: u64) -> Option<bool> {
        if self.at_least(sequence) > byte {
            return Some(true);
        }
        (self.at_most(sequence) <= byte).then_some(false)
    }

    /// The limits of the number of the first document that begins after this byte, both included. `all`: the number of documents.
    pub(super) fn first_after(&self, byte: u64, all: u64) -> Range<u64> {
        let before = self.documents.partition_point(|s| self.at_most(*s) <= byte);
        let not_after = self.documents.partition_point(|s| self.at_least(*s) <= byte);
        let low = match before as u64 {
            0 => 0,
            before => (before - 1) * self.stride + 1,
        };
        let high = match self.documents.get(not_after) {
            Some(_) => not_after as u64 * self.stride,
            None => all,
        };
        low.min(all)..high.min(all)
    }

    /// The sequences of which it takes the file to tell where they begin among the bytes from `first` to `last`. `all`: the number of sequences.
    pub(super) fn unknown(&self, first: u64, last: u64, all: u64) -> Range<u64> {
        let not_after = |byte: u64| self.pointers.partition_point(|at| *at <= byte) as u64;
        let from = not_after(first).saturating_sub(1) * self.stride;
        // With the first one that begins after all of these bytes.
        from..(not_after(last) * self.stride + 1).min(all)
    }
}
