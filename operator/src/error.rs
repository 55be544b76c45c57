//! Why a reconciliation failed.

use crate::decide::JobPart;
use kube::core::Status;
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
    /// Tells what the API server answers with a refusal from what has changed meanwhile and from no answer. A webhook or a store of the API
    /// server that does not answer is a refusal too: it may stay so for long, and the job says it.
    pub(crate) fn refused(part: JobPart) -> impl Fn(kube::Error) -> Error {
        let refuses =
            |s: &Status| s.is_forbidden() || s.is_invalid() || matches!(s.code, 400 | 429) || s.code >= 500;
        move |error| match error {
            kube::Error::Api(s) if refuses(&s) => Error::Refused {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_answers_with_is_a_refusal_unless_something_has_changed() {
        for (code, is_refusal) in [
            (400, true),
            (403, true),
            (404, false),
            (409, false),
            (422, true),
            (429, true),
            (500, true),
            (504, true),
        ] {
            let mut answer = Status::failure("in its words", "");
            answer.code = code;
            if code == 403 {
                answer.reason = "Forbidden".into();
            }
            if code == 422 {
                answer.reason = "Invalid".into();
            }
            let error = Error::refused(JobPart::Pods)(kube::Error::Api(Box::new(answer)));
            let found = matches!(&error, Error::Refused { message, .. } if message == "in its words");
            assert_eq!(found, is_refusal, "{code}: {error}");
        }
    }
}
