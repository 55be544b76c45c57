//! Why a reconciliation failed.

use crate::decide::JobPart;
use std::fmt::Display;
use std::time::Duration;

/// What takes longer has failed: an API server that does not answer must not hold a job for ever.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// What calls give within the deadline.
///
/// # Errors
/// They fail, or do not end before the deadline.
pub(crate) async fn within<T>(calls: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let result = tokio::time::timeout(DEADLINE, calls).await;
    result.unwrap_or(Err(Error::Timeout))
}

/// Why a reconciliation failed; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error("API server: {0}")]
    Api(#[from] kube::Error),
    /// The API server refused an object, and will refuse it again unless something is changed.
    #[error("{part:?} refused: {message}")]
    Refused {
        /// The part of the job that was refused.
        part: JobPart,
        /// The error's message.
        message: String,
    },
    /// It was decided on what is not so any more: a watch shows it soon.
    #[error("something has changed meanwhile")]
    Stale,
    /// A call took too long.
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Timeout,
}

impl Error {
    /// Whatever the API server answers with is a refusal: also that a webhook or its store does not answer, or that others use a quota up at the
    /// same moment. It may stay so for long, and the job says it.
    pub(crate) fn refused(part: JobPart) -> impl Fn(kube::Error) -> Error {
        move |error| match error {
            kube::Error::Api(status) => Error::Refused {
                part,
                message: status.message.clone(),
            },
            error => error.into(),
        }
    }

    /// The same for an object that existed: if it is gone or has another version, it has changed in the meantime.
    pub(crate) fn changed_or_refused(part: JobPart) -> impl Fn(kube::Error) -> Error {
        let refused = Error::refused(part);
        move |error| match error {
            kube::Error::Api(status) if status.is_conflict() || status.is_not_found() => Error::Stale,
            error => refused(error),
        }
    }

    /// What has failed and why, if it is retried after a growing pause and shown in the job's status; none if a watch will soon show what has
    /// to be done.
    pub(crate) fn failure(&self) -> Option<(JobPart, String)> {
        match self {
            Error::Refused { part, message } => Some((*part, message.clone())),
            Error::Api(kube::Error::Api(status)) => Some((JobPart::Server, status.message.clone())),
            Error::Api(error) => Some((JobPart::Server, error.to_string())),
            Error::Timeout => Some((JobPart::Server, self.to_string())),
            Error::Stale => None,
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

    fn answer(code: u16) -> kube::Error {
        let mut answer = kube::core::Status::failure("in its words", "");
        answer.code = code;
        if code == 409 {
            answer.reason = "Conflict".into();
        }
        kube::Error::Api(Box::new(answer))
    }

    #[test]
    fn whatever_the_api_server_answers_with_is_reported_and_waits() {
        for code in [400, 403, 404, 409, 422, 429, 500, 504] {
            let error = Error::refused(JobPart::Pods)(answer(code));
            let failure = error.failure();
            assert_eq!(failure, Some((JobPart::Pods, "in its words".into())), "{code}");
            let unexpected = Error::from(answer(code)).failure();
            assert_eq!(
                unexpected,
                Some((JobPart::Server, "in its words".into())),
                "{code}"
            );
        }
    }

    #[test]
    fn no_answer_is_reported_as_the_servers_failure() {
        let reset = || std::io::Error::other("connection reset");
        let error = Error::refused(JobPart::Pods)(kube::Error::Service(Box::new(reset())));
        let (part, why) = error.failure().unwrap();
        assert_eq!((part, error.kind()), (JobPart::Server, "api"));
        assert!(why.contains("connection reset"), "{why}");
        let (part, why) = Error::Timeout.failure().unwrap();
        assert_eq!(part, JobPart::Server);
        assert!(why.contains("30 s"), "{why}");
    }

    #[test]
    fn changed_object_is_reconciled_again_without_a_report() {
        let error = |code| Error::changed_or_refused(JobPart::Coordinator)(answer(code));
        assert!(matches!(error(409), Error::Stale) && error(409).failure().is_none());
        assert!(matches!(error(500), Error::Refused { .. }));
    }
}
