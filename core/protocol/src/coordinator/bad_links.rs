//! Links that failed recently. They are avoided in plans for a while, and for longer if they fail again: each plan that relies on a dead
//! link costs a recovery or a planned change.

use crate::message::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use varuna_plan::WorkerId;

/// Limit of the growth of the time for which a link is avoided, as a multiple of the shortest time.
const LONGEST: u32 = 16;

#[derive(Clone, Debug)]
struct Mark {
    /// The link is avoided until this time.
    until: Time,
    /// How long the link was avoided the last time.
    lasts: Duration,
}

/// Pairs of workers that could not reach one another.
#[derive(Clone, Debug, Default)]
pub(super) struct BadLinks {
    marks: BTreeMap<(WorkerId, WorkerId), Mark>,
}

impl BadLinks {
    /// The link failed: it is avoided for `least`, or longer if it has failed before.
    pub(super) fn mark(&mut self, now: Time, a: WorkerId, b: WorkerId, least: Duration) {
        self.marks.retain(|_, m| m.until.after(m.lasts * 2) > now);
        let mark = self.marks.entry((a.min(b), a.max(b))).or_insert(Mark {
            until: now,
            lasts: Duration::ZERO,
        });
        if mark.until <= now {
            mark.lasts = (mark.lasts * 2).clamp(least, least * LONGEST);
        }
        mark.until = now.after(mark.lasts);
    }

    pub(super) fn len(&self) -> usize {
        self.marks.len()
    }

    pub(super) fn any(&self, now: Time) -> bool {
        self.marks.values().any(|m| m.until > now)
    }

    /// Whether there is one between two of these workers.
    pub(super) fn is_among(&self, now: Time, workers: &[WorkerId]) -> bool {
        let mut bad = self.marks.iter().filter(|(_, m)| m.until > now);
        bad.any(|((a, b), _)| workers.contains(a) && workers.contains(b))
    }

    /// A worker among `others` to which the worker has a bad link.
    pub(super) fn other_end(
        &self,
        now: Time,
        worker: WorkerId,
        others: impl Fn(WorkerId) -> bool,
    ) -> Option<WorkerId> {
        let mut bad = self.marks.iter().filter(|(_, m)| m.until > now);
        bad.find_map(|((a, b), _)| match (*a == worker, *b == worker) {
            (true, _) => Some(*b).filter(|b| others(*b)),
            (_, true) => Some(*a).filter(|a| others(*a)),
            _ => None,
        })
    }

    /// Repeatedly removes the worker with the most bad links among the rest, but keeps at least `least` workers.
    pub(super) fn eligible(&self, now: Time, from: &[WorkerId], least: usize) -> Vec<WorkerId> {
        let mut kept = from.to_vec();
        let mut bad: BTreeSet<(WorkerId, WorkerId)> = self
            .marks
            .iter()
            .filter(|((a, b), m)| m.until > now && kept.contains(a) && kept.contains(b))
            .map(|(link, _)| *link)
            .collect();
        let count = |bad: &BTreeSet<(WorkerId, WorkerId)>, w: WorkerId| {
            bad.iter().filter(|(a, b)| *a == w || *b == w).count()
        };
        while let Some(worst) = bad
            .iter()
            .flat_map(|(a, b)| [*a, *b])
            .max_by_key(|w| (count(&bad, *w), *w))
        {
            if kept.len() <= least {
                break;
            }
            kept.retain(|w| *w != worst);
            bad.retain(|(a, b)| *a != worst && *b != worst);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_secs(10);

    #[test]
    fn repeated_link_failures_are_avoided_for_longer() {
        let (a, b) = (WorkerId(1), WorkerId(2));
        let mut links = BadLinks::default();
        let mut now = Time(0);
        let mut times = Vec::new();
        for _ in 0..6 {
            links.mark(now, a, b, LEAST);
            let since = now;
            while links.any(now) {
                now = now.after(Duration::from_secs(1));
            }
            times.push(now.since(since).as_secs());
        }
        assert_eq!(times, [10, 20, 40, 80, 160, 160]);
        now = now.after(LEAST * LONGEST * 3);
        links.mark(now, b, a, LEAST);
        assert!(!links.any(now.after(LEAST)), "it had held for a while");
    }
}
