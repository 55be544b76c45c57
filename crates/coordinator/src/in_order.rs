//! Committed steps in their order, whatever the order in which they are heard of.
//!
//! A new coordinator hears of steps from several workers at once: of the newest from one that was quick, of those that its
//! predecessor missed from one that tells its history. What comes early waits for what is missing, but not for ever.

use crate::folder::Metric;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use varuna_plan::Step;

/// How long a step waits for the ones before it: workers attach anew within a second and tell their history at once.
const HOLD: Duration = Duration::from_secs(3);
/// How many wait at most: as many as a worker's history has.
const WAITING: usize = 4096;

/// Steps that were heard of too early.
#[derive(Debug)]
pub(crate) struct InOrder {
    last: Step,
    waiting: BTreeMap<Step, Metric>,
    since: Option<Instant>,
}

impl InOrder {
    /// `last` was published before; the step after it is next.
    pub(crate) fn after(last: Step) -> InOrder {
        InOrder {
            last,
            waiting: BTreeMap::new(),
            since: None,
        }
    }

    /// Takes a step; returns what may be published now, in order.
    pub(crate) fn offer(&mut self, now: Instant, metric: Metric) -> Vec<Metric> {
        if metric.step <= self.last {
            return vec![];
        }
        // The first report of a step stands.
        self.waiting.entry(metric.step).or_insert(metric);
        let mut due = vec![];
        while let Some(metric) = self.waiting.remove(&self.last.next()) {
            self.last = metric.step;
            due.push(metric);
        }
        if self.waiting.len() > WAITING {
            due.append(&mut self.rest());
        }
        // Progress starts the wait afresh: the missing ones are on their way.
        match (self.waiting.is_empty(), due.is_empty()) {
            (true, _) => self.since = None,
            (false, false) => self.since = Some(now),
            (false, true) => self.since = self.since.or(Some(now)),
        }
        due
    }

    /// What has waited long enough: the steps before it are not known to anyone who told.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<Metric> {
        let overdue = self
            .since
            .is_some_and(|since| now.saturating_duration_since(since) >= HOLD);
        if overdue { self.rest() } else { vec![] }
    }

    /// Everything, at the end.
    pub(crate) fn rest(&mut self) -> Vec<Metric> {
        self.since = None;
        let rest: Vec<Metric> = std::mem::take(&mut self.waiting).into_values().collect();
        self.last = rest.last().map_or(self.last, |m| m.step);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::tests::metric;

    fn steps(metrics: &[Metric]) -> Vec<u64> {
        metrics.iter().map(|m| m.step.0).collect()
    }

    #[test]
    fn an_early_step_waits_for_the_history_that_a_slower_worker_tells() {
        let (now, mut order) = (Instant::now(), InOrder::after(Step(21)));
        assert!(order.offer(now, metric(24)).is_empty());
        assert!(order.offer(now, metric(21)).is_empty(), "published before");
        assert_eq!(steps(&order.offer(now, metric(22))), [22]);
        assert!(order.offer(now, metric(22)).is_empty());
        assert_eq!(steps(&order.offer(now, metric(23))), [23, 24]);
        assert_eq!(steps(&order.offer(now, metric(25))), [25]);
        assert!(order.overdue(now + HOLD * 2).is_empty() && order.rest().is_empty());
    }

    #[test]
    fn steps_that_nobody_tells_of_hold_the_others_back_for_a_while_only() {
        let (now, mut order) = (Instant::now(), InOrder::after(Step(0)));
        assert!(order.offer(now, metric(7)).is_empty());
        assert!(order.offer(now + HOLD / 2, metric(6)).is_empty());
        assert!(order.overdue(now + HOLD / 2).is_empty());
        assert_eq!(steps(&order.overdue(now + HOLD)), [6, 7]);
        assert!(order.offer(now, metric(3)).is_empty(), "the file stays in order");
        assert_eq!(steps(&order.offer(now, metric(8))), [8]);
    }

    #[test]
    fn no_more_than_a_history_waits_and_the_end_leaves_nothing_behind() {
        let (now, mut order) = (Instant::now(), InOrder::after(Step(0)));
        let mut due = vec![];
        for step in 2..WAITING as u64 + 3 {
            due.append(&mut order.offer(now, metric(step)));
        }
        assert_eq!(due.len(), WAITING + 1);
        assert!(order.offer(now, metric(WAITING as u64 + 9)).is_empty());
        assert_eq!(steps(&order.rest()), [WAITING as u64 + 9]);
    }
}
