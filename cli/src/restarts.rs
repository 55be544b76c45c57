//! Which workers of `varuna run` are started again and when, and how long a run without workers waits. Pure: times are arguments, and
//! nothing is done here.
//!
//! The launcher of a pod (`launcher/src/restarts.rs`) has another policy: its number of workers is fixed, and a worker that fails too often
//! ends its pod, so that another pod is made on another node. Here `varuna scale` changes the number of workers, and there is only one
//! machine.

use std::time::Duration;

/// The delay of the first restart, and of the first one after a worker that ran for [`STEADY`].
const DELAY: Duration = Duration::from_secs(1);
/// The longest time before a worker is started again.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// A worker that ran for this long has loaded its state and trained: its end says nothing about the next one.
const STEADY: Duration = Duration::from_secs(300);
/// How long a run may be without any worker. Long enough for somebody at a terminal to start some; a batch job must not wait for ever.
pub(crate) const WITHOUT_WORKERS_MAX: Duration = Duration::from_secs(300);

/// How a worker's process has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// How long the process ran.
    pub(crate) ran: Duration,
    /// Whether `varuna scale` told the process to end.
    pub(crate) told: bool,
    /// Whether it ended with exit code 0: the coordinator has released the worker.
    pub(crate) well: bool,
}

/// The restarts of a run. Times are counted from any fixed moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Restarts {
    /// How many may be begun.
    left: usize,
    /// How long the next one waits.
    delay: Duration,
    /// When those are due that wait.
    due: Vec<Duration>,
}

impl Restarts {
    /// The number of restarts in all.
    pub(crate) fn new(most: usize) -> Restarts {
        Restarts {
            left: most,
            delay: DELAY,
            due: Vec::new(),
        }
    }

    /// A worker has ended. How long it takes until another one is started in its place; none where none is.
    pub(crate) fn ended(&mut self, now: Duration, end: End) -> Option<Duration> {
        if end.told || end.well || self.left <= self.due.len() {
            return None;
        }
        if end.ran >= STEADY {
            self.delay = DELAY;
        }
        let delay = self.delay;
        self.delay = (delay * 2).min(DELAY_MAX);
        self.due.push(now + delay);
        Some(delay)
    }

    /// When the next worker is to be started; none where none is.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.due.iter().min().copied()
    }

    /// How many workers are to be started now. They count as started from here on.
    pub(crate) fn take_due(&mut self, now: Duration) -> usize {
        let waiting = self.due.len();
        self.due.retain(|at| *at > now);
        let due = waiting - self.due.len();
        self.left = self.left.saturating_sub(due);
        due
    }

    /// Cancels all restarts that wait: the user has set the number of workers, or the run ends.
    pub(crate) fn cancel(&mut self) {
        self.due.clear();
    }
}

/// Since when a run has no worker. Times are counted from any fixed moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct WithoutWorkers(Option<Duration>);

impl WithoutWorkers {
    /// Notes whether the run has no worker now, and none that will be started. True if that is new.
    pub(crate) fn note(&mut self, now: Duration, alone: bool) -> bool {
        let is_new = alone && self.0.is_none();
        self.0 = alone.then_some(self.0.unwrap_or(now));
        is_new
    }

    /// When it will have waited for long enough; none where it has workers.
    pub(crate) fn until(&self) -> Option<Duration> {
        self.0.map(|since| since + WITHOUT_WORKERS_MAX)
    }

    /// Whether the time is over.
    pub(crate) fn is_over(&self, now: Duration) -> bool {
        self.until().is_some_and(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn failed_after(ran: Duration) -> End {
        End {
            ran,
            told: false,
            well: false,
        }
    }

    #[test]
    fn failing_workers_are_restarted_with_growing_delays() {
        let mut restarts = Restarts::new(8);
        let mut now = seconds(10);
        for delay in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(
                restarts.ended(now, failed_after(seconds(1))),
                Some(seconds(delay))
            );
            assert_eq!(restarts.next(), Some(now + seconds(delay)));
            assert_eq!(
                restarts.take_due(now + seconds(delay) - Duration::from_millis(1)),
                0
            );
            now += seconds(delay);
            assert_eq!(restarts.take_due(now), 1);
            assert_eq!(restarts.next(), None);
        }
        assert_eq!(
            restarts.ended(now, failed_after(seconds(1))),
            None,
            "eight were asked for"
        );
        assert_eq!(Restarts::new(0).ended(now, failed_after(seconds(1))), None);
    }

    #[test]
    fn after_a_worker_that_ran_for_long_the_next_one_comes_soon() {
        let mut restarts = Restarts::new(9);
        for _ in 0..4 {
            restarts.ended(seconds(0), failed_after(seconds(1)));
        }
        assert_eq!(
            restarts.ended(seconds(0), failed_after(STEADY - seconds(1))),
            Some(seconds(16))
        );
        assert_eq!(restarts.ended(seconds(0), failed_after(STEADY)), Some(seconds(1)));
    }

    #[test]
    fn who_was_told_to_end_or_was_released_is_not_started_again() {
        let mut restarts = Restarts::new(3);
        let failed = failed_after(seconds(1));
        assert_eq!(restarts.ended(seconds(0), End { told: true, ..failed }), None);
        assert_eq!(restarts.ended(seconds(0), End { well: true, ..failed }), None);
        assert_eq!(restarts.next(), None);
    }

    #[test]
    fn a_restart_that_is_cancelled_is_not_counted() {
        let mut restarts = Restarts::new(1);
        assert_eq!(
            restarts.ended(seconds(0), failed_after(seconds(1))),
            Some(seconds(1))
        );
        assert_eq!(
            restarts.ended(seconds(0), failed_after(seconds(1))),
            None,
            "the one that is left waits"
        );
        restarts.cancel();
        assert_eq!((restarts.next(), restarts.take_due(seconds(9))), (None, 0));
        assert!(restarts.ended(seconds(9), failed_after(seconds(1))).is_some());
    }

    #[test]
    fn run_without_workers_warns_once_per_wait() {
        let mut alone = WithoutWorkers::default();
        assert!(!alone.note(seconds(1), false));
        assert_eq!((alone.until(), alone.is_over(seconds(9999))), (None, false));
        assert!(alone.note(seconds(10), true));
        assert!(!alone.note(seconds(20), true), "it was said");
        assert_eq!(alone.until(), Some(seconds(10) + WITHOUT_WORKERS_MAX));
        assert!(!alone.note(seconds(30), false), "somebody has come");
        assert!(alone.note(seconds(40), true));
        assert!(!alone.is_over(seconds(10) + WITHOUT_WORKERS_MAX));
        assert!(alone.is_over(seconds(40) + WITHOUT_WORKERS_MAX));
    }
}
