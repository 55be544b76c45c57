//! How the API server is reached: every call ends, whatever happens to the server and to the network.

use kube::Config;
use std::time::Duration;

/// A connection on which nothing has come for this time is dead. The server ends watches sooner (`orders.rs`), and answers all else within a minute.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::WATCH_SECONDS;

    #[test]
    fn silent_connection_ends_and_the_watch_stays() {
        let config = bounded(Config::new("https://cluster.example:6443".parse().unwrap()));
        let silence = config.read_timeout.expect("a bound");
        // kube itself treats a watch as dead five seconds after its timeout.
        let watch = Duration::from_secs(u64::from(WATCH_SECONDS) + 5);
        assert!(silence > watch, "{silence:?}, {watch:?}");
        assert!(config.reset_reader_on_write && !config.default_retry);
    }
}
