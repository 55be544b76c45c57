//! The errors of a job file, all of them at once.

use std::fmt;

/// One error: the field, the value found, and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{path}: {value} — {allowed}")]
pub struct JobError {
    /// The field, as a path from the top of the file (`spec.training.steps`).
    pub path: String,
    /// The value found, or `missing`.
    pub value: String,
    /// Values that are allowed for the field.
    pub allowed: String,
}

/// All errors of a job file, in the order in which they were found; never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobErrors(Vec<JobError>);

impl JobErrors {
    /// The errors.
    #[must_use]
    pub fn all(&self) -> &[JobError] {
        &self.0
    }

    /// The error that was found first.
    pub(crate) fn first(self) -> JobError {
        self.0.into_iter().next().unwrap_or_else(|| JobError {
            path: "job file".to_owned(),
            value: "unreadable".to_owned(),
            allowed: "a VarunaJob".to_owned(),
        })
    }
}

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for JobErrors {}

/// Collects errors, so that one run of the parser shows all of them.
#[derive(Default, Debug)]
pub(crate) struct Found(Vec<JobError>);

impl Found {
    /// Adds an error, unless something at or above the same field was already refused: a field of a wrong type is not
    /// also reported as missing.
    pub(crate) fn push(&mut self, path: &str, value: impl fmt::Display, allowed: impl Into<String>) {
        let above = |e: &JobError| path == e.path || path.starts_with(&format!("{}.", e.path));
        if !self.0.iter().any(above) {
            self.0.push(JobError {
                path: path.to_owned(),
                value: value.to_string(),
                allowed: allowed.into(),
            });
        }
    }

    /// Whether this field was refused: the value in its place is none of the user's.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.iter().any(|error| error.path == path)
    }

    /// The value, if there is one and nothing was refused.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, JobErrors> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(JobErrors(self.0)),
        }
    }
}
