//! How long the workers that are there are likely to stay the same.

use crate::message::Time;
use std::time::Duration;

/// What happens within so long of a change belongs to it: nodes go and come in groups.
const TOGETHER: Duration = Duration::from_secs(1);

/// Changes of who is there, since the first plan.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Changes {
    since: Option<Time>,
    last: Option<Time>,
    count: u32,
    /// Time that passed beside the clock.
    aside: Duration,
}

impl Changes {
    /// From now on changes count.
    pub(super) fn begin(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Time that the clock did not show.
    pub(super) fn pass(&mut self, aside: Duration) {
        self.aside = self.aside.saturating_add(aside);
    }

    /// Somebody came, went or will go.
    pub(super) fn observe(&mut self, now: Time) {
        if self.since.is_none() || self.last.is_some_and(|at| now < at.after(TOGETHER)) {
            return;
        }
        self.last = Some(now);
        self.count = self.count.saturating_add(1);
    }

    /// The expected time to the next change: as many changes as were seen over the time that was seen, and one over `prior`
    /// besides, so that a young run does not jump to conclusions.
    pub(super) fn expected(&self, now: Time, prior: Duration) -> Duration {
        let seen = self.since.map_or(Duration::ZERO, |since| now.since(since));
        (prior + seen + self.aside) / self.count.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn a_run_learns_how_often_its_workers_change() {
        let start = Time(1);
        let mut changes = Changes::default();
        changes.observe(start);
        assert_eq!(
            changes.expected(start, HOUR),
            HOUR,
            "workers that gather are no change"
        );
        changes.begin(start);
        for minutes in [5, 10, 15] {
            let at = start.after(Duration::from_secs(60 * minutes));
            for _ in 0..4 {
                changes.observe(at);
            }
        }
        let now = start.after(Duration::from_secs(20 * 60));
        assert_eq!(changes.expected(now, HOUR), Duration::from_secs(20 * 60));
        changes.pass(HOUR);
        assert_eq!(changes.expected(now, HOUR), Duration::from_secs(35 * 60));
    }
}
