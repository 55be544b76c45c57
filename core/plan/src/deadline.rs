//! The deadline of a step, after which its workers are assumed to hang.

use crate::ids::Step;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Number of first steps of a generation, whose deadline may be longer: caches are cold, and the step time is not known yet.
const FIRST_STEPS: usize = 8;
/// A step may take this multiple of the slowest recent step.
const OF_RECENT: u32 = 4;
/// The same for the first steps, each of which may still be the first to compile a kernel, fill an allocator or touch a file.
const OF_FIRST: u32 = 16;

/// The deadline of a plan's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepDeadline {
    /// Deadline of a step without an evaluation until one was observed, nanoseconds.
    pub step_ns: u64,
    /// Shortest deadline, however short the observed steps are, nanoseconds. 0, as in plans of earlier releases: `step_ns`.
    #[serde(default)]
    pub floor_ns: u64,
    /// Number of times that the deadline of the generation's first steps is doubled, because earlier generations committed nothing.
    pub doublings: u32,
    /// Which steps begin with an evaluation.
    pub evaluation: Option<EvaluationSteps>,
}

/// Steps that begin with an evaluation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationSteps {
    /// Steps between two evaluations: every multiple of this number begins with one.
    pub interval_steps: u64,
    /// Evaluated samples in units of the global batch, rounded up.
    pub batches: u32,
}

impl EvaluationSteps {
    /// Whether the step that follows `step` committed ones begins with an evaluation.
    #[must_use]
    pub fn has(&self, step: Step) -> bool {
        step.0.is_multiple_of(self.interval_steps.max(1))
    }
}

impl StepDeadline {
    /// The same deadline for all steps, in milliseconds.
    #[must_use]
    pub const fn of_ms(ms: u64) -> Self {
        Self {
            step_ns: ms * 1_000_000,
            floor_ns: 0,
            doublings: 0,
            evaluation: None,
        }
    }

    /// The deadline of the step after the first `step` committed ones, given the earlier steps of the same generation in `recent`. The
    /// expected time may be wrong by orders of magnitude in either direction (a GPU planned as a processor, or the reverse), so from the
    /// first commit on the observed times count instead.
    #[must_use]
    pub fn of(&self, step: Step, recent: &RecentSteps) -> Duration {
        let doubled = |ns: u64, n: u32| ns.saturating_mul(1u64.checked_shl(n).unwrap_or(u64::MAX));
        let ns_of = |times: u32, slowest: Duration| {
            u64::try_from(slowest.saturating_mul(times).as_nanos()).unwrap_or(u64::MAX)
        };
        let floor_ns = match self.floor_ns {
            _ if bug!(DeadlineBelowFloor) => 0,
            0 => self.step_ns,
            floor => floor.min(self.step_ns),
        };
        let enough = recent.are_enough() && !bug!(FirstStepsNeverEnd);
        let ns = match (recent.slowest(), enough) {
            (None, _) if bug!(IgnoreFruitlessGenerations) => self.step_ns,
            (None, _) => doubled(self.step_ns, self.doublings),
            // Earlier generations committed nothing within a shorter deadline.
            (Some(slowest), false) => ns_of(OF_FIRST, slowest).clamp(
                doubled(floor_ns, self.doublings),
                doubled(self.step_ns, self.doublings),
            ),
            // Never longer than after the maximum number of fruitless generations.
            (Some(slowest), true) if bug!(DeadlineWithoutEnd) => ns_of(OF_RECENT, slowest).max(floor_ns),
            (Some(slowest), true) => {
                ns_of(OF_RECENT, slowest).clamp(floor_ns, doubled(self.step_ns, MOST_DOUBLINGS))
            }
        };
        let evaluated = self
            .evaluation
            .filter(|e| e.has(step) && !bug!(EvaluationTakesNoTime));
        let batches = evaluated.map_or(0, |e| e.batches);
        Duration::from_nanos(ns.saturating_mul(1 + u64::from(batches)))
    }
}

/// Maximum number of doublings.
pub const MOST_DOUBLINGS: u32 = 5;

/// The times of the last steps of a generation, without those that had an evaluation.
#[derive(Clone, Debug, Default)]
pub struct RecentSteps {
    took: VecDeque<Duration>,
}

impl RecentSteps {
    /// Notes the time of the step after the first `step` committed ones.
    pub fn note(&mut self, deadline: &StepDeadline, step: Step, took: Duration) {
        if deadline.evaluation.is_some_and(|e| e.has(step)) && !bug!(EvaluationsAreObserved) {
            return;
        }
        if self.took.len() == FIRST_STEPS {
            self.took.pop_front();
        }
        self.took.push_back(took);
    }

    /// The time of the slowest of them; none before the first commit.
    fn slowest(&self) -> Option<Duration> {
        if bug!(LastStepAloneCounts) {
            return self.took.back().copied();
        }
        self.took.iter().copied().max()
    }

    /// Whether the generation's first steps are over.
    fn are_enough(&self) -> bool {
        self.took.len() == FIRST_STEPS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn deadline(doublings: u32) -> StepDeadline {
        StepDeadline {
            step_ns: 100_000_000,
            floor_ns: 0,
            doublings,
            evaluation: Some(EvaluationSteps {
                interval_steps: 100,
                batches: 3,
            }),
        }
    }

    #[test]
    fn a_doubled_deadline_comes_back_after_a_few_commits() {
        let deadline = deadline(3);
        let mut recent = RecentSteps::default();
        assert_eq!(deadline.of(Step(1), &recent), MS * 800);
        for step in 1..=8 {
            assert_eq!(deadline.of(Step(step), &recent), MS * 800);
            recent.note(&deadline, Step(step), MS * 20);
        }
        assert_eq!(deadline.of(Step(9), &recent), MS * 100);
    }

    #[test]
    fn slow_steps_get_a_bounded_deadline() {
        let deadline = deadline(0);
        let mut recent = RecentSteps::default();
        for step in 1..=7 {
            recent.note(&deadline, Step(step), MS * 20);
        }
        recent.note(&deadline, Step(8), MS * 90);
        assert_eq!(deadline.of(Step(9), &recent), MS * 360);
        recent.note(&deadline, Step(9), MS * 20);
        assert_eq!(
            deadline.of(Step(10), &recent),
            MS * 360,
            "the slowest counts, not the last"
        );
        recent.note(&deadline, Step(9), MS * 1_000_000);
        assert_eq!(deadline.of(Step(10), &recent), MS * 3_200);
    }

    #[test]
    fn overestimated_step_counts_from_the_first_commit() {
        // Steps of 300 ms that were planned as 300 s: a job on a GPU with the costs of a CPU.
        let deadline = StepDeadline {
            step_ns: 4 * 300_000_000_000,
            floor_ns: 4_000_000_000,
            doublings: 0,
            evaluation: None,
        };
        let mut recent = RecentSteps::default();
        assert_eq!(deadline.of(Step(0), &recent), MS * 1_200_000);
        recent.note(&deadline, Step(0), MS * 900);
        assert_eq!(deadline.of(Step(1), &recent), MS * 14_400);
        for step in 1..=8 {
            recent.note(&deadline, Step(step), MS * 300);
            assert!(deadline.of(Step(step + 1), &recent) <= MS * 14_400, "{step}");
        }
        assert_eq!(deadline.of(Step(9), &recent), MS * 4_000, "the floor");
    }

    #[test]
    fn deadline_of_first_steps_is_bounded_on_both_sides() {
        let deadline = StepDeadline {
            floor_ns: 40_000_000,
            ..deadline(2)
        };
        let mut recent = RecentSteps::default();
        recent.note(&deadline, Step(1), MS);
        assert_eq!(
            deadline.of(Step(2), &recent),
            MS * 160,
            "the floor, doubled twice"
        );
        recent.note(&deadline, Step(2), MS * 15);
        assert_eq!(deadline.of(Step(3), &recent), MS * 240);
        recent.note(&deadline, Step(3), MS * 90);
        assert_eq!(
            deadline.of(Step(4), &recent),
            MS * 400,
            "what was expected, doubled twice"
        );
    }

    #[test]
    fn evaluation_has_its_own_deadline() {
        let deadline = deadline(0);
        let mut recent = RecentSteps::default();
        assert_eq!(deadline.of(Step(100), &recent), MS * 400);
        for step in 101..=107 {
            recent.note(&deadline, Step(step), MS * 20);
        }
        recent.note(&deadline, Step(200), MS * 390);
        assert!(!recent.are_enough());
        recent.note(&deadline, Step(201), MS * 20);
        assert_eq!(deadline.of(Step(202), &recent), MS * 100);
    }

    #[test]
    fn a_deadline_in_milliseconds_is_that_of_every_step() {
        let deadline = StepDeadline::of_ms(400);
        for step in [0, 1, 100] {
            assert_eq!(deadline.of(Step(step), &RecentSteps::default()), MS * 400);
        }
    }

    #[test]
    fn no_number_overflows() {
        let deadline = StepDeadline {
            step_ns: u64::MAX,
            floor_ns: u64::MAX,
            doublings: u32::MAX,
            evaluation: Some(EvaluationSteps {
                interval_steps: 0,
                batches: u32::MAX,
            }),
        };
        let endless = Duration::from_nanos(u64::MAX);
        assert_eq!(deadline.of(Step(u64::MAX), &RecentSteps::default()), endless);
    }
}
