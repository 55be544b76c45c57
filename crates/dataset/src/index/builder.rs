//! Writes an index, as Megatron writes it: a document is one sequence.

use super::{MAGIC, TokenType, VERSION};
use std::io::{self, BufWriter, Write};

impl TokenType {
    /// Appends a token. It must be below the vocabulary for which the type was chosen.
    pub(crate) fn encode(self, token: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(&i64::from(token).to_le_bytes()[..self.width()]);
    }
}

/// The parts of an index that is being written: four bytes for a document, as there may be hundreds of millions.
#[derive(Default, Debug)]
pub(crate) struct IndexBuilder {
    sizes: Vec<i32>,
    documents: u64,
    /// The documents that are not one sequence, with their number of sequences.
    others: Vec<(u64, u64)>,
}

impl IndexBuilder {
    /// Adds a document: one sequence, or none if it has no tokens. A document with more tokens than a size can express continues in another
    /// sequence.
    pub(crate) fn push_document(&mut self, tokens: u64) {
        let (mut left, before) = (tokens, self.sizes.len());
        while left > 0 {
            let size = i32::try_from(left).unwrap_or(i32::MAX);
            self.sizes.push(size);
            left -= u64::from(size.cast_unsigned());
        }
        let sequences = (self.sizes.len() - before) as u64;
        if sequences != 1 {
            self.others.push((self.documents, sequences));
        }
        self.documents += 1;
    }

    /// Tokens and documents.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let tokens = self.sizes.iter().map(|s| u64::from(s.cast_unsigned())).sum();
        (tokens, self.documents)
    }

    /// Writes the file's bytes.
    pub(crate) fn write(&self, to: impl Write, token_type: TokenType) -> io::Result<()> {
        let mut to = BufWriter::new(to);
        to.write_all(MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&[token_type.code()])?;
        to.write_all(&(self.sizes.len() as u64).to_le_bytes())?;
        to.write_all(&(self.documents + 1).to_le_bytes())?;
        for size in &self.sizes {
            to.write_all(&size.to_le_bytes())?;
        }
        let mut pointer = 0_u64;
        for size in &self.sizes {
            to.write_all(&pointer.to_le_bytes())?;
            pointer += u64::from(size.cast_unsigned()) * token_type.width() as u64;
        }
        let (mut sequences, mut others) = (0_u64, self.others.iter().peekable());
        to.write_all(&sequences.to_le_bytes())?;
        for document in 0..self.documents {
            let other = others.next_if(|(number, _)| *number == document);
            sequences += other.map_or(1, |(_, sequences)| *sequences);
            to.write_all(&sequences.to_le_bytes())?;
        }
        to.flush()
    }
}
