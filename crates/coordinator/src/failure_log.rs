//! When a failure that repeats is logged: at once, then at growing intervals, and once more when it has passed.

use std::time::{Duration, Instant};

/// The first pause between two log entries of the same failure. Each following one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause: a failure of some days still stands in the last hours of a log.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);

/// The failures in a row of one kind of request.
#[derive(Debug, Default)]
pub(crate) struct FailureLog(Option<Failing>);

#[derive(Debug)]
struct Failing {
    since: Instant,
    logged: Instant,
    pause: Duration,
}

impl FailureLog {
    /// Notes a failure. Returns whether it is to be logged now.
    pub(crate) fn failed(&mut self, now: Instant) -> bool {
        let Some(failing) = &mut self.0 else {
            self.0 = Some(Failing {
                since: now,
                logged: now,
                pause: FIRST_PAUSE,
            });
            return true;
        };
        let is_due = now.duration_since(failing.logged) >= failing.pause;
        if is_due {
            failing.logged = now;
            failing.pause = (failing.pause * 2).min(LONGEST_PAUSE);
        }
        is_due
    }

    /// Notes a success. If requests failed before it, returns for how long.
    pub(crate) fn succeeded(&mut self, now: Instant) -> Option<Duration> {
        let failing = self.0.take()?;
        Some(now.duration_since(failing.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_failure_is_logged_ever_less_often() {
        let (mut log, began) = (FailureLog::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(log.succeeded(at(0)), None, "nothing has failed");
        // Five requests a second, for a day.
        let requests = (0..5 * 86_400).map(|fifth| began + Duration::from_millis(200) * fifth);
        let logged: Vec<u64> = requests
            .filter(|now| log.failed(*now))
            .map(|now| now.duration_since(began).as_secs() / 60)
            .collect();
        assert_eq!(logged[..8], [0, 1, 3, 7, 15, 31, 63, 123], "minutes");
        assert!(
            logged.windows(2).all(|pair| pair[1] - pair[0] <= 60),
            "{logged:?}"
        );
        let lasted = log.succeeded(at(86_400));
        assert_eq!(lasted, Some(Duration::from_secs(86_400)));
        assert_eq!(log.succeeded(at(86_401)), None, "said once");
        assert!(log.failed(at(86_402)), "a new failure is logged at once");
    }
}
