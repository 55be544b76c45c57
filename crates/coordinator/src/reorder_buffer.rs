//! Puts reported steps into order before they are published.
//!
//! A new coordinator gets reports from several workers at once: the newest step from the one that attached first, the steps that
//! its predecessor missed from another one's history. A step that arrives early waits for the missing ones, for a limited time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use varuna_plan::Step;
use varuna_run_folder::Metric;

/// How long a step waits for those before it: workers attach again within a second and send their history at once.
const WAIT: Duration = Duration::from_secs(3);
/// How many steps wait at most: as many as a worker's history has.
const CAPACITY: usize = 4096;

/// Steps that wait for earlier ones.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    last: Step,
    waiting: BTreeMap<Step, Metric>,
    since: Option<Instant>,
}

impl ReorderBuffer {
    /// An empty buffer; the step after `last` is published next.
    pub(crate) fn after(last: Step) -> ReorderBuffer {
        ReorderBuffer {
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
        // Of several reports of a step the first counts.
        self.waiting.entry(metric.step).or_insert(metric);
        let mut due = vec![];
        while let Some(metric) = self.waiting.remove(&self.last.next()) {
            self.last = metric.step;
            due.push(metric);
        }
        if self.waiting.len() > CAPACITY {
            due.append(&mut self.rest());
        }
        // Progress restarts the wait: the missing ones are on their way.
        match (self.waiting.is_empty(), due.is_empty()) {
            (true, _) => self.since = None,
            (false, false) => self.since = Some(now),
            (false, true) => self.since = self.since.or(Some(now)),
        }
        due
    }

    /// Everything, once it has waited long enough: no attached worker knows the missing steps.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<Metric> {
        let overdue = self
            .since
            .is_some_and(|since| now.saturating_duration_since(since) >= WAIT);
        if overdue { self.rest() } else { vec![] }
    }

    /// Everything that waits.
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
    use varuna_plan::state::Chain;
    use varuna_plan::{Generation, StateId};

    fn metric(step: u64) -> Metric {
        Metric {
            step: Step(step),
            loss: 1.5,
            eval_loss: None,
            gradient_norm: 1.0,
            overflow: false,
            generation: Generation(1),
            workers: 2,
            plan: "P2xD1".into(),
            tokens: 64,
            step_ms: 10.0,
            time_ms: 1,
            state: StateId {
                run_gen: Generation(1),
                step: Step(step),
                chain: Chain(step),
            },
        }
    }

    fn steps(metrics: &[Metric]) -> Vec<u64> {
        metrics.iter().map(|m| m.step.0).collect()
    }

    #[test]
    fn an_early_step_waits_for_the_history_that_a_slower_worker_sends() {
        let (now, mut order) = (Instant::now(), ReorderBuffer::after(Step(21)));
        assert!(order.offer(now, metric(24)).is_empty());
        assert!(order.offer(now, metric(21)).is_empty(), "published before");
        assert_eq!(steps(&order.offer(now, metric(22))), [22]);
        assert!(order.offer(now, metric(22)).is_empty());
        assert_eq!(steps(&order.offer(now, metric(23))), [23, 24]);
        assert_eq!(steps(&order.offer(now, metric(25))), [25]);
        assert!(order.overdue(now + WAIT * 2).is_empty() && order.rest().is_empty());
    }

    #[test]
    fn steps_that_nobody_reports_delay_the_others_for_a_limited_time() {
        let (now, mut order) = (Instant::now(), ReorderBuffer::after(Step(0)));
        assert!(order.offer(now, metric(7)).is_empty());
        assert!(order.offer(now + WAIT / 2, metric(6)).is_empty());
        assert!(order.overdue(now + WAIT / 2).is_empty());
        assert_eq!(steps(&order.overdue(now + WAIT)), [6, 7]);
        assert!(order.offer(now, metric(3)).is_empty(), "the file stays in order");
        assert_eq!(steps(&order.offer(now, metric(8))), [8]);
    }

    #[test]
    fn no_more_than_a_history_waits_and_the_end_leaves_nothing_behind() {
        let (now, mut order) = (Instant::now(), ReorderBuffer::after(Step(0)));
        let mut due = vec![];
        for step in 2..CAPACITY as u64 + 3 {
            due.append(&mut order.offer(now, metric(step)));
        }
        assert_eq!(due.len(), CAPACITY + 1);
        assert!(order.offer(now, metric(CAPACITY as u64 + 9)).is_empty());
        assert_eq!(steps(&order.rest()), [CAPACITY as u64 + 9]);
    }
}
