//! Links that failed a short while ago. They are planned around, and forgotten after a while.

use crate::message::Time;
use std::collections::BTreeSet;
use varuna_plan::WorkerId;

/// Pairs of workers that could not reach one another.
#[derive(Clone, Debug, Default)]
pub(super) struct BadLinks {
    marks: Vec<(WorkerId, WorkerId, Time)>,
}

impl BadLinks {
    pub(super) fn mark(&mut self, now: Time, a: WorkerId, b: WorkerId, until: Time) {
        self.marks
            .retain(|(x, y, t)| *t > now && (*x, *y) != (a.min(b), a.max(b)));
        self.marks.push((a.min(b), a.max(b), until));
    }

    pub(super) fn any(&self, now: Time) -> bool {
        self.marks.iter().any(|(_, _, until)| *until > now)
    }

    /// Leaves out the worker with most bad links among the rest, again and again, but keeps `least` workers.
    pub(super) fn eligible(&self, now: Time, from: &[WorkerId], least: usize) -> Vec<WorkerId> {
        let mut kept = from.to_vec();
        let mut bad: BTreeSet<(WorkerId, WorkerId)> = self
            .marks
            .iter()
            .filter(|(a, b, until)| *until > now && kept.contains(a) && kept.contains(b))
            .map(|(a, b, _)| (*a, *b))
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
