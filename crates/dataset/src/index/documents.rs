//! Where documents begin: read from the index when needed, since there may be hundreds of millions of them.

use super::{HEADER_LEN, Index};
use crate::error::DataError;
use crate::files::DataFile;
use std::path::PathBuf;

/// The documents of a dataset whose index was checked.
pub(crate) struct Documents {
    idx: DataFile,
    path: PathBuf,
    index: Index,
}

impl Documents {
    /// The documents of an open index.
    pub(crate) fn new(idx: DataFile, path: PathBuf, index: Index) -> Documents {
        Documents { idx, path, index }
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
        let (mut low, mut high) = (0, self.index.documents);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? > token {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
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
        let pointers = HEADER_LEN + 4 * sequences;
        let sequence = self.number(pointers + 8 * (sequences + document))?;
        if sequence >= sequences {
            return Ok(u64::MAX);
        }
        Ok(self.number(pointers + 8 * sequence)? / token_type.width() as u64)
    }

    fn number(&self, offset: u64) -> Result<u64, DataError> {
        let mut bytes = [0; 8];
        self.idx
            .read_exact_at(&mut bytes, offset)
            .map_err(DataError::io("read", &self.path))?;
        Ok(u64::from_le_bytes(bytes))
    }
}
