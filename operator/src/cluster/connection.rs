//! How the API server is reached, and how long calls wait for it. Every call ends, whatever happens to the server and to the network.

use kube::Config;
use std::time::Duration;

/// A connection on which nothing has come for this time is dead. The server ends watches sooner (`watches.rs`), and answers all else within a minute.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The same configuration, whose calls end.
#[must_use]
pub fn bounded(mut config: Config) -> Config {
    config.read_timeout = Some(SILENCE_MAX);
    // A connection that was idle has that time for its next answer as well.
    config.reset_reader_on_write = true;
    // Callers try again themselves. kube would try fifteen times in silence, with pauses of minutes in the end.
    config.default_retry = false;
    config
}

/// What a call gives within a deadline.
///
/// # Errors
/// It fails, or takes longer.
pub async fn within<T>(deadline: Duration, call: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let answer = tokio::time::timeout(deadline, call).await;
    answer.unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches;

    #[test]
    fn a_connection_that_says_nothing_ends_and_no_watch_is_cut_by_that() {
        let config = bounded(Config::new("https://cluster.example:6443".parse().unwrap()));
        let silence = config.read_timeout.expect("a bound");
        let watch = u64::from(watches::config().timeout.expect("a bound"));
        // kube itself takes a watch for dead five seconds after its end.
        assert!(silence > Duration::from_secs(watch + 5), "{silence:?}, {watch} s");
        assert!(
            config.reset_reader_on_write,
            "what was idle is not cut when it is used"
        );
        assert!(!config.default_retry, "each caller has a backoff of its own");
    }

    #[tokio::test]
    async fn a_call_that_is_not_answered_fails() {
        let never = std::future::pending::<kube::Result<()>>();
        let late = within(Duration::from_millis(1), never).await;
        assert!(matches!(late, Err(kube::Error::Service(_))), "{late:?}");
        let answered = within(Duration::from_secs(60), std::future::ready(Ok(7)));
        assert_eq!(answered.await.unwrap(), 7);
    }
}
