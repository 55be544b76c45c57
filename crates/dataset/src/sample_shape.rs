//! The shape of a sample: a window of a text, or a record.

use crate::error::DataError;
use crate::index::{Documents, Index};
use std::path::Path;

/// Number of records of a dataset whose beginnings are checked when it is opened, evenly spaced: there may be hundreds of millions.
const CHECKED_RECORDS: u64 = 4096;

/// What is read of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SampleData {
    /// Its tokens.
    Tokens,
    /// The positions of its tokens within their documents.
    Positions,
}

/// The shape of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleShape {
    /// Number of tokens of a sample, without the token after it.
    pub length: u32,
    /// Whether each document is one sample of exactly `length` tokens, and the token after it is always 0. Otherwise samples are windows of
    /// the concatenated documents.
    pub records: bool,
}

impl SampleShape {
    /// Windows of `length` tokens.
    #[must_use]
    pub fn windows(length: u32) -> SampleShape {
        SampleShape {
            length,
            records: false,
        }
    }

    /// The number of samples in a dataset of `tokens` tokens.
    pub(crate) fn count(self, tokens: u64) -> u64 {
        // The token after the last window must be there.
        let beyond = u64::from(!self.records);
        tokens.saturating_sub(beyond) / u64::from(self.length.max(1))
    }
}

/// Refuses a dataset whose documents are not all of one length.
pub(crate) fn check_records(
    documents: &Documents,
    path: &Path,
    index: Index,
    length: u32,
) -> Result<(), DataError> {
    let length = u64::from(length.max(1));
    let wrong = |document: u64, begins: String| DataError::Record {
        path: path.to_owned(),
        document,
        begins,
        length,
    };
    let count = index.documents;
    if count.checked_mul(length) != Some(index.tokens) {
        return Err(wrong(count, index.tokens.to_string()));
    }
    let checked = count.min(CHECKED_RECORDS);
    for i in 0..checked {
        let evenly = u128::from(i) * u128::from(count) / u128::from(checked);
        let document = u64::try_from(evenly).unwrap_or(u64::MAX);
        let begins = documents.start(document)?;
        if begins != document * length {
            return Err(wrong(document, begins.to_string()));
        }
    }
    Ok(())
}
