//! Estimates how often workers come and go, and so how long the present set of workers is likely to stay the same.

use crate::message::Time;
use std::time::Duration;

/// Events within this time after a change belong to it: nodes leave and come in groups.
const TOGETHER: Duration = Duration::from_secs(1);

/// Changes in the set of workers since the first plan, or those of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Churn {
    since: Option<Time>,
    last: Option<Time>,
    count: u32,
    /// Time that the clock did not show.
    skipped: Duration,
    /// Expected time to the next change, as used for plans.
    horizon: Duration,
}

impl Churn {
    /// A churn without any observation yet.
    pub(super) fn expecting(horizon: Duration) -> Self {
        Self {
            since: None,
            last: None,
            count: 0,
            skipped: Duration::ZERO,
            horizon,
        }
    }

    /// Expected time to the next change, as it was known when the generation began or when a change was last reconsidered. It is kept fixed
    /// in between, because prepared plans are worthless once it changes.
    pub(super) fn horizon(&self) -> Duration {
        self.horizon
    }

    /// A generation has started. From the first one on, changes are counted.
    pub(super) fn begin_generation(&mut self, now: Time, prior: Duration) {
        self.since.get_or_insert(now);
        self.expect_anew(now, prior);
    }

    /// Makes plans use the present estimate from now on.
    pub(super) fn expect_anew(&mut self, now: Time, prior: Duration) {
        self.horizon = self.expected(now, prior);
    }

    /// Time that the clock did not show.
    pub(super) fn skip(&mut self, time: Duration) {
        self.skipped = self.skipped.saturating_add(time);
    }

    /// Whether changes are counted: a generation has started.
    pub(super) fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    /// Such a change.
    pub(super) fn observe(&mut self, now: Time) {
        if !self.has_begun() || self.last.is_some_and(|at| now < at.after(TOGETHER)) {
            return;
        }
        self.last = Some(now);
        self.count = self.count.saturating_add(1);
    }

    /// The expected time to the next change: the observed time plus `prior`, divided by the observed number of changes plus one. The prior
    /// keeps a young run from jumping to conclusions.
    pub(super) fn expected(&self, now: Time, prior: Duration) -> Duration {
        self.passed(now, prior) / self.count.saturating_add(1)
    }

    /// The time in which changes were observed, and `prior`.
    pub(super) fn passed(&self, now: Time, prior: Duration) -> Duration {
        let seen = self.since.map_or(Duration::ZERO, |since| now.since(since));
        prior + seen + self.skipped
    }

    /// The time until `expected` becomes the expected time to the next change, if no worker comes or goes until then.
    pub(super) fn until_expected(&self, expected: Duration, now: Time, prior: Duration) -> Duration {
        let needed = expected.saturating_mul(self.count.saturating_add(1));
        needed.saturating_sub(self.passed(now, prior))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_run_learns_how_often_its_workers_change() {
        let start = Time(1);
        let mut churn = Churn::expecting(HOUR);
        churn.observe(start);
        assert_eq!(
            churn.expected(start, HOUR),
            HOUR,
            "workers that gather are no change"
        );
        churn.begin_generation(start, HOUR);
        for minutes in [5, 10, 15] {
            let at = start.after(Duration::from_secs(60 * minutes));
            for _ in 0..4 {
                churn.observe(at);
            }
        }
        let now = start.after(Duration::from_secs(20 * 60));
        assert_eq!(churn.expected(now, HOUR), Duration::from_secs(20 * 60));
        churn.skip(HOUR);
        let expected = Duration::from_secs(35 * 60);
        assert_eq!(churn.expected(now, HOUR), expected);
        assert_eq!(churn.until_expected(expected, now, HOUR), Duration::ZERO);
        let more = expected + Duration::from_secs(60);
        assert_eq!(
            churn.until_expected(more, now, HOUR),
            Duration::from_secs(4 * 60),
            "there were three changes"
        );
    }
}
