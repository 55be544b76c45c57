//! Where documents begin: read from the index when needed, since there may be hundreds of millions of them. A few entries in memory say in
//! which part of the index.

use super::{HEADER_LEN, Index, SparseIndex};
use crate::error::DataError;
use crate::files::DataFile;
use std::ops::Range;
use std::path::PathBuf;

/// The documents of a dataset whose index was checked.
pub(crate) struct Documents {
    idx: DataFile,
    path: PathBuf,
    index: Index,
    sparse: SparseIndex,
}

impl Documents {
    /// The documents of an open index.
    pub(crate) fn new((idx, path): (DataFile, PathBuf), index: Index, sparse: SparseIndex) -> Documents {
        Documents {
            idx,
            path,
            index,
            sparse,
        }
    }

    /// Announces that the positions of `count` tokens from number `first` on will be read soon ([`DataFile::prefetch`]).
    pub(crate) fn prefetch(&self, first: u64, count: u64) {
        let [first, last] = [first, first.saturating_add(count)].map(|token| self.byte_of(token));
        let Index {
            sequences, documents, ..
        } = self.index;
        let from = self.sparse.first_after(first, documents).start;
        let to = self.sparse.first_after(last, documents).end;
        let announce = |table: u64, entries: Range<u64>| {
            self.idx
                .prefetch(table + 8 * entries.start..table + 8 * entries.end);
        };
        announce(self.document_entries(), from..to + 1);
        announce(self.pointers(), self.sparse.unknown(first, last, sequences));
    }

    /// For each token from number `first` on: how many of the tokens before it, from `first` on, belong to its document. It is 0 at the
    /// first token of each document, and at `first`.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(crate) fn positions(&self, first: u64, positions: &mut [i64]) -> Result<(), DataError> {
        let mut rest = positions;
        let (mut begin, mut document) = (first, self.first_after(first)?);
        while !rest.is_empty() {
            let next = self.start(document)?.saturating_sub(begin);
            let own = usize::try_from(next).unwrap_or(usize::MAX).min(rest.len());
            let (of_document, others) = rest.split_at_mut(own);
            for (position, place) in (0..).zip(of_document) {
                *place = position;
            }
            (rest, begin, document) = (others, begin + own as u64, document + 1);
        }
        Ok(())
    }

    /// The first document that begins after a token: by bisection, as they begin one after the other.
    fn first_after(&self, token: u64) -> Result<u64, DataError> {
        let byte = self.byte_of(token);
        let Range {
            start: mut low,
            end: mut high,
        } = self.sparse.first_after(byte, self.index.documents);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.begins_after(middle, byte)? {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    /// Whether a document begins after this byte of the tokens.
    fn begins_after(&self, document: u64, byte: u64) -> Result<bool, DataError> {
        let sequence = self.first_sequence(document)?;
        if sequence >= self.index.sequences {
            return Ok(true);
        }
        match self.sparse.begins_after(sequence, byte) {
            Some(known) => Ok(known),
            None => Ok(self.number(self.pointers() + 8 * sequence)? > byte),
        }
    }

    /// The number of a document's first token. A document without tokens begins where the next one does; for the number after the last
    /// document, the number of all tokens.
    pub(crate) fn start(&self, document: u64) -> Result<u64, DataError> {
        let Index {
            sequences,
            documents,
            token_type,
            ..
        } = self.index;
        if document >= documents {
            return Ok(u64::MAX);
        }
        let sequence = self.first_sequence(document)?;
        if sequence >= sequences {
            return Ok(u64::MAX);
        }
        Ok(self.number(self.pointers() + 8 * sequence)? / token_type.width() as u64)
    }

    /// The number of a document's first sequence; of all sequences, for a document at the end that has none.
    fn first_sequence(&self, document: u64) -> Result<u64, DataError> {
        self.number(self.document_entries() + 8 * document)
    }

    /// Where the index has the pointers of the sequences.
    fn pointers(&self) -> u64 {
        HEADER_LEN + 4 * self.index.sequences
    }

    /// Where the index has the entries of the documents.
    fn document_entries(&self) -> u64 {
        self.pointers() + 8 * self.index.sequences
    }

    /// Where a token begins.
    fn byte_of(&self, token: u64) -> u64 {
        token.saturating_mul(self.index.token_type.width() as u64)
    }

    fn number(&self, offset: u64) -> Result<u64, DataError> {
        let mut bytes = [0; 8];
        self.idx
            .read_exact_at(&mut bytes, offset)
            .map_err(DataError::io("read", &self.path))?;
        Ok(u64::from_le_bytes(bytes))
    }
}
