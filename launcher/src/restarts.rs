//! Which workers of a pod are started when, and with which exit code the pod ends. Pure: times are given, and nothing is done here.
//!
//! A worker that ends with an error is started again after 1, 2, 4, ... seconds. One that fails too often ends the pod: its
//! device may be broken, and the operator can create another pod on another node. So does one that fails every few minutes for an hour: it
//! never fails often at a time, but each failure costs the whole job a recovery. A worker that ends well was released, and is not started again.
//!
//! Once one worker has failed too often, the others have some time to end. Those that still run then are killed: a notice alone ends no
//! worker, because the job may be too small to release one, and a pod that stays is never replaced.

use std::time::Duration;

/// A worker that fails more often than this within [`SHORT`] ends the pod.
const RESTARTS_MAX: usize = 4;
/// What counts as often at a time, and for how long a failure makes the next restart wait.
const SHORT: Duration = Duration::from_secs(600);
/// So does one that fails more often than this within [`LONG`].
const RESTARTS_MAX_LONG: usize = 9;
/// Failures longer ago than this do not count.
const LONG: Duration = Duration::from_secs(3600);
/// The longest time before a worker is started again; the first is a second.
const DELAY_MAX: Duration = Duration::from_secs(30);

/// A worker's place.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    /// A worker is to be started.
    Due {
        /// Time of the restart.
        at: Duration,
        /// The exit code of the one before; 0 where there was none. The place ends with it where no other one is started any more.
        after: i32,
    },
    /// The worker is running.
    Running,
    /// The worker has ended for good, with this exit code.
    Ended(i32),
}

/// What is to be done because something ended, or the pod is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// There is nothing to do.
    None,
    /// All workers that run are asked to end.
    StopAll,
    /// All workers that run are killed.
    KillAll,
}

/// The places of a pod's workers. Times are counted from any fixed moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restarts {
    places: Vec<Place>,
    /// When the worker of each place failed.
    failures: Vec<Vec<Duration>>,
    /// No worker is started any more.
    stopping: bool,
    /// The exit code of the worker that failed too often.
    given_up: Option<i32>,
    /// How long the others may take to end after that.
    kill_after: Duration,
    /// When those are killed that still run.
    kill_at: Option<Duration>,
}

impl Restarts {
    /// So many places whose workers are due now. `kill_after`: how long the others may take to end once one has failed too often.
    #[must_use]
    pub fn new(workers: usize, kill_after: Duration) -> Restarts {
        Restarts {
            places: vec![
                Place::Due {
                    at: Duration::ZERO,
                    after: 0
                };
                workers
            ],
            failures: vec![Vec::new(); workers],
            stopping: false,
            given_up: None,
            kill_after,
            kill_at: None,
        }
    }

    /// The places whose workers are to be started now. They count as running from here on.
    pub fn due(&mut self, now: Duration) -> Vec<usize> {
        let mut due = Vec::new();
        for (number, place) in self.places.iter_mut().enumerate() {
            if matches!(place, Place::Due { at, .. } if *at <= now) {
                *place = Place::Running;
                due.push(number);
            }
        }
        due
    }

    /// When something is to be done next without anything else happening: a worker is due, or those that were asked to end are killed.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        let times = self.places.iter().filter_map(|place| match place {
            Place::Due { at, .. } => Some(*at),
            _ => None,
        });
        let kill_at = self.kill_at.filter(|_| self.places.contains(&Place::Running));
        times.chain(kill_at).min()
    }

    /// What is to be done because time has passed.
    pub fn overdue(&mut self, now: Duration) -> Action {
        if self.kill_at.take_if(|at| *at <= now).is_some() {
            return Action::KillAll;
        }
        Action::None
    }

    /// The worker of a place has ended, with an exit code that is 128 and the signal's number where a signal ended it.
    pub fn ended(&mut self, now: Duration, place: usize, code: i32) -> Action {
        if code == 0 || self.stopping {
            self.places[place] = Place::Ended(code);
            return Action::None;
        }
        let failures = &mut self.failures[place];
        failures.retain(|at| now.saturating_sub(*at) < LONG);
        failures.push(now);
        let lately = failures.iter().filter(|at| now.saturating_sub(**at) < SHORT);
        let lately = lately.count();
        if lately > RESTARTS_MAX || failures.len() > RESTARTS_MAX_LONG {
            self.places[place] = Place::Ended(code);
            self.given_up = Some(code);
            self.kill_at = Some(now + self.kill_after);
            return self.stop();
        }
        let doubled = u32::try_from(lately - 1).unwrap_or(u32::MAX);
        let delay = Duration::from_secs(1) * 2_u32.saturating_pow(doubled);
        self.places[place] = Place::Due {
            at: now + delay.min(DELAY_MAX),
            after: code,
        };
        Action::None
    }

    /// No worker is started any more; those that run are to end.
    pub fn stop(&mut self) -> Action {
        self.stopping = true;
        for place in &mut self.places {
            if let Place::Due { after, .. } = place {
                *place = Place::Ended(*after);
            }
        }
        Action::StopAll
    }

    /// The exit code of the pod; none while a worker runs or waits: that of the worker that failed too often, else the first one that
    /// is not 0.
    #[must_use]
    pub fn outcome(&self) -> Option<i32> {
        let codes: Option<Vec<i32>> = self
            .places
            .iter()
            .map(|place| match place {
                Place::Ended(code) => Some(*code),
                _ => None,
            })
            .collect();
        let first_failure = codes?.into_iter().find(|code| *code != 0);
        Some(self.given_up.or(first_failure).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KILL_AFTER: Duration = Duration::from_secs(30);

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn a_failing_worker_starts_ever_later_and_at_last_ends_the_pod() {
        let mut restarts = Restarts::new(2, KILL_AFTER);
        assert_eq!(restarts.due(seconds(0)), [0, 1]);
        let mut now = seconds(0);
        for delay in [1, 2, 4, 8] {
            assert_eq!(restarts.ended(now, 1, 137), Action::None);
            assert_eq!(restarts.next(), Some(now + seconds(delay)));
            assert!(
                restarts
                    .due(now + seconds(delay) - Duration::from_millis(1))
                    .is_empty()
            );
            now += seconds(delay);
            assert_eq!(restarts.due(now), [1]);
        }
        assert_eq!(restarts.ended(now, 1, 137), Action::StopAll);
        assert_eq!(restarts.outcome(), None, "the other one still runs");
        assert_eq!(restarts.ended(now, 0, 0), Action::None);
        assert_eq!(restarts.outcome(), Some(137));
    }

    #[test]
    fn a_pod_ends_with_the_last_failure_and_kills_who_remains_once() {
        let mut restarts = Restarts::new(2, KILL_AFTER);
        for failure in 0..5 {
            restarts.due(seconds(10 * failure));
            restarts.ended(seconds(10 * failure), 1, 3);
        }
        let given_up = seconds(40);
        assert_eq!(restarts.next(), Some(given_up + KILL_AFTER));
        let before = given_up + KILL_AFTER - Duration::from_millis(1);
        assert_eq!(restarts.overdue(before), Action::None);
        // A notice of the pod's own end does not change that.
        assert_eq!(restarts.stop(), Action::StopAll);
        assert_eq!(restarts.overdue(given_up + KILL_AFTER), Action::KillAll);
        assert_eq!(restarts.overdue(given_up + KILL_AFTER), Action::None);
        assert_eq!(
            (restarts.next(), restarts.outcome()),
            (None, None),
            "it has not ended yet"
        );
        restarts.ended(given_up + KILL_AFTER, 0, 137);
        assert_eq!(restarts.outcome(), Some(3));
    }

    #[test]
    fn a_pod_that_is_told_to_end_kills_nobody() {
        let mut restarts = Restarts::new(2, KILL_AFTER);
        restarts.due(seconds(0));
        restarts.stop();
        assert_eq!(restarts.next(), None, "who told it decides how long it waits");
        assert_eq!(restarts.overdue(seconds(10_000)), Action::None);
    }

    #[test]
    fn failures_long_ago_do_not_count() {
        let mut restarts = Restarts::new(1, KILL_AFTER);
        for hour in 0..20 {
            restarts.due(seconds(3600 * hour));
            assert_eq!(restarts.ended(seconds(3600 * hour), 0, 1), Action::None);
            assert_eq!(restarts.next(), Some(seconds(3600 * hour + 1)));
        }
    }

    #[test]
    fn failing_every_three_minutes_ends_the_pod_in_half_an_hour() {
        let mut restarts = Restarts::new(2, KILL_AFTER);
        restarts.due(seconds(0));
        for failure in 0..9 {
            let now = seconds(180 * failure);
            assert_eq!(restarts.ended(now, 0, 1), Action::None);
            // Only the failures of the last ten minutes count for the delay, at most four.
            assert!(restarts.next().unwrap() <= now + seconds(8), "{restarts:?}");
            restarts.due(now + seconds(8));
        }
        assert_eq!(restarts.ended(seconds(180 * 9), 0, 1), Action::StopAll);
    }

    #[test]
    fn released_workers_stay_ended_and_the_last_ends_the_pod_well() {
        let mut restarts = Restarts::new(2, KILL_AFTER);
        restarts.due(seconds(0));
        restarts.ended(seconds(9), 0, 0);
        assert_eq!((restarts.next(), restarts.outcome()), (None, None));
        restarts.ended(seconds(9), 1, 0);
        assert_eq!(restarts.outcome(), Some(0));
    }

    #[test]
    fn nothing_is_started_once_the_pod_is_to_end() {
        let mut restarts = Restarts::new(3, KILL_AFTER);
        restarts.due(seconds(0));
        restarts.ended(seconds(1), 2, 1);
        assert_eq!(restarts.stop(), Action::StopAll);
        assert_eq!(restarts.due(seconds(100)), Vec::<usize>::new());
        restarts.ended(seconds(2), 0, 0);
        restarts.ended(seconds(2), 1, 143);
        assert_eq!(restarts.outcome(), Some(143));
    }

    #[test]
    fn a_pod_told_to_end_while_its_worker_waits_has_failed() {
        let mut restarts = Restarts::new(1, KILL_AFTER);
        restarts.due(seconds(0));
        restarts.ended(seconds(1), 0, 7);
        restarts.stop();
        assert_eq!(restarts.outcome(), Some(7), "it was not released");
        let mut restarts = Restarts::new(1, KILL_AFTER);
        restarts.stop();
        assert_eq!(restarts.outcome(), Some(0), "it has not begun");
    }

    proptest! {
        #[test]
        fn a_pod_always_ends_after_its_workers_and_never_before(
            ends in proptest::collection::vec((0_usize..3, prop_oneof![Just(0), Just(1), Just(137)], 0_u64..40), 0..60),
            stop_after in 0_usize..60,
        ) {
            let mut restarts = Restarts::new(3, KILL_AFTER);
            let mut running = [false; 3];
            let mut now = seconds(0);
            for (i, (place, code, wait)) in ends.into_iter().enumerate() {
                for started in restarts.due(now) {
                    prop_assert!(!running[started], "started twice");
                    running[started] = true;
                }
                if i == stop_after {
                    restarts.stop();
                }
                if running[place] {
                    running[place] = false;
                    restarts.ended(now, place, code);
                }
                let waits = restarts.next().is_some();
                prop_assert_eq!(restarts.outcome().is_none(), running.contains(&true) || waits);
                now += seconds(wait);
            }
        }
    }
}
