//! Why a reconciliation failed.

use crate::decide::JobPart;
use std::fmt::Display;
use std::time::Duration;

/// A reconciliation that takes longer has failed: an API server that does not answer must not hold a job for ever.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Why a reconciliation failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error("API server: {0}")]
    Api(#[from] kube::Error),
    /// This will be refused again unless something is changed.
    #[error("{part:?} refused: {message}")]
    Refused {
        /// What was refused.
        part: JobPart,
        /// The error's message.
        message: String,
    },
    /// It was decided on what is not so any more: a watch shows it soon.
    #[error("something has changed meanwhile")]
    Stale,
    /// It took too long.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Timeout,
}

impl Error {
    /// Tells what the API server refuses, however often it is asked, from what it cannot do now.
    pub(crate) fn refused(part: JobPart) -> impl Fn(kube::Error) -> Error {
        move |error| match error {
            kube::Error::Api(s) if s.is_forbidden() || s.is_invalid() || s.code == 400 => Error::Refused {
                part,
                message: s.message.clone(),
            },
            error => error.into(),
        }
    }

    /// The job's coordinator cannot be started.
    pub(crate) fn coordinator(why: impl Display) -> Error {
        Error::Refused {
            part: JobPart::Coordinator,
            message: why.to_string(),
        }
    }

    /// All kinds.
    pub const KINDS: [&str; 4] = ["api", "refused", "stale", "late"];

    /// The label `kind` of the metric `varuna_reconcile_errors`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Api(_) => "api",
            Error::Refused { .. } => "refused",
            Error::Stale => "stale",
            Error::Timeout => "late",
        }
    }
}
