//! Gathers what is read of a file into batches of bounded size, and hands them over.

use super::input::{Batch, Input, Part};
use crate::error::DataError;

/// Bytes of a batch, unless one document is longer: enough that handing it over costs nothing compared with tokenizing it.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum bytes of a document that is held as a whole: a line, a row, or a text whose tokens are not those of its pieces. Tokenizers need
/// some forty times as much.
pub(super) const DOCUMENT_BYTES_MAX: usize = 32 << 20;

/// Why reading ended before the end.
pub(super) enum Stop {
    /// No more batches are wanted.
    NotWanted,
    /// An input cannot be read.
    Failed(DataError),
}

impl From<DataError> for Stop {
    fn from(error: DataError) -> Stop {
        Stop::Failed(error)
    }
}

/// Takes batches. False: no more are wanted.
pub(super) type Take<'a> = dyn FnMut(Batch) -> bool + 'a;

/// Gathers the parts of one file.
pub(super) struct Batches<'a, 'b> {
    input: &'a Input,
    parts: Vec<Part>,
    bytes: usize,
    /// Bytes of the file that are read, and those that were handed over.
    read: u64,
    told: u64,
    take: &'a mut Take<'b>,
}

impl<'a, 'b> Batches<'a, 'b> {
    pub(super) fn new(input: &'a Input, take: &'a mut Take<'b>) -> Batches<'a, 'b> {
        Batches {
            input,
            parts: Vec::new(),
            bytes: 0,
            read: 0,
            told: 0,
            take,
        }
    }

    /// Adds a part. `read`: number of bytes of the file that are read up to it.
    pub(super) fn push(&mut self, part: Part, read: u64) -> Result<(), Stop> {
        self.bytes += part.content.len();
        self.parts.push(part);
        self.read = read;
        // Documents without text count too: they take memory.
        if self.bytes >= BATCH_BYTES || self.parts.len() >= BATCH_BYTES / 64 {
            self.hand_over()?;
        }
        Ok(())
    }

    /// Hands over what was gathered.
    pub(super) fn hand_over(&mut self) -> Result<(), Stop> {
        if self.parts.is_empty() {
            return Ok(());
        }
        let batch = Batch {
            path: self.input.path.clone(),
            parts: std::mem::take(&mut self.parts),
            input_bytes: self.read - self.told,
        };
        (self.bytes, self.told) = (0, self.read);
        if (self.take)(batch) {
            Ok(())
        } else {
            Err(Stop::NotWanted)
        }
    }
}
