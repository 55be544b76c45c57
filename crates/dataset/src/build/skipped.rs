//! Lines of inputs that are not JSON: counts those that may be skipped, and finds the one that ends the build.

use crate::error::DataError;

/// What was skipped in the inputs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Skipped {
    /// Lines that are no JSON.
    pub lines: u64,
    /// The first of them, and what is wrong with it.
    pub first: Option<String>,
}

/// Counts such lines, in the order of the documents.
pub(super) struct Skips {
    most: u64,
    skipped: Skipped,
}

impl Skips {
    /// At most `most` lines may be skipped.
    pub(super) fn new(most: u64) -> Skips {
        Skips {
            most,
            skipped: Skipped::default(),
        }
    }

    /// Counts those of a batch. The error is that of the first line that is one too many.
    pub(super) fn add(&mut self, malformed: Vec<DataError>) -> Result<(), DataError> {
        for error in malformed {
            if self.skipped.lines >= self.most {
                return Err(self.too_many(error));
            }
            self.skipped.lines += 1;
            self.skipped.first.get_or_insert_with(|| error.to_string());
        }
        Ok(())
    }

    pub(super) fn skipped(self) -> Skipped {
        self.skipped
    }

    /// The error of a line, with a hint how to let the build continue.
    fn too_many(&self, error: DataError) -> DataError {
        let more = match self.most {
            0 => "--skip-malformed N leaves out up to N lines that are no JSON".to_owned(),
            most => format!(
                "{most} lines that are no JSON were left out before, as many as --skip-malformed allows"
            ),
        };
        match error {
            DataError::Malformed {
                path,
                what,
                value,
                allowed,
            } => DataError::Malformed {
                path,
                what,
                value,
                allowed: format!("{allowed}; {more}"),
            },
            other => other,
        }
    }
}
