//! Schedules of papers that no plan can name ([`varuna_plan::ScheduleKind`] has none of them): zero-bubble H1.
//!
//! They are generated, checked and simulated to say what such an order would bring. No worker is ever told to run one: the
//! engine has no backward in two parts.

use std::collections::VecDeque;
use std::fmt;
use varuna_plan::{Costs, Shape};

/// A part of a micro-batch's work on a stage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// Forward.
    Forward,
    /// Backward with regard to the stage's input: what the previous stage waits for.
    Input,
    /// Backward with regard to the weights: nobody waits for it.
    Weight,
}

/// One task of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// Which part of the work.
    pub work: Work,
    /// Number of the micro-batch.
    pub micro_batch: u32,
}

/// An order of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PaperKind {
    /// 1F1B, to compare: its backward is in one part, and the previous stage waits for all of it.
    OneForwardOneBackward,
    /// 1F1B with weight gradients put off to fill the drain, at no more memory (Qi et al. 2023, H1).
    ZeroBubbleH1,
}

impl fmt::Display for PaperKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PaperKind::OneForwardOneBackward => "1f1b w=1, to compare",
            PaperKind::ZeroBubbleH1 => "zero-bubble H1",
        })
    }
}

/// The tasks of one stage.
#[must_use]
pub fn generate(kind: PaperKind, stages: usize, stage: usize, micro_batches: u32) -> Vec<Task> {
    let later = stages - 1 - stage;
    // Weight gradients that a stage puts off: with them each stage keeps what the first one keeps anyway.
    let put_off = if kind == PaperKind::ZeroBubbleH1 { stage } else { 0 };
    let mut list = Vec::with_capacity(3 * micro_batches as usize);
    let mut forwards = 0..micro_batches;
    let mut waiting: VecDeque<u32> = VecDeque::new();
    let task = |work, micro_batch| Task { work, micro_batch };
    list.extend(forwards.by_ref().take(later).map(|m| task(Work::Forward, m)));
    for m in 0..micro_batches {
        list.extend(forwards.next().map(|m| task(Work::Forward, m)));
        list.push(task(Work::Input, m));
        waiting.push_back(m);
        while waiting.len() > put_off {
            list.extend(waiting.pop_front().map(|m| task(Work::Weight, m)));
        }
    }
    list.extend(waiting.into_iter().map(|m| task(Work::Weight, m)));
    list
}

/// Times of a stage for one micro-batch, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PartTimes {
    /// Forward.
    pub forward_ms: f64,
    /// Backward with regard to the input.
    pub input_ms: f64,
    /// Backward with regard to the weights.
    pub weight_ms: f64,
    /// A transfer between two stages.
    pub transfer_ms: f64,
}

/// Why lists must not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperError {
    /// A task is missing, doubled, unknown or before what it needs on its own stage.
    #[error("stage {stage}: task {position} is missing, doubled or out of order")]
    Order {
        /// Index of the stage in its pipeline.
        stage: usize,
        /// Index in its list.
        position: usize,
    },
    /// Every stage waits for another.
    #[error("deadlock: stage {stage} waits for ever at its task {position}")]
    Deadlock {
        /// The first stage that waits.
        stage: usize,
        /// Index in its list.
        position: usize,
    },
}

/// Checks the lists of all stages and says when each stage ends, milliseconds: each task once and after what it needs, no
/// deadlock. All stages take the same time.
///
/// # Errors
/// The first violation found.
pub fn run(
    lists: &[Vec<Task>],
    kind: PaperKind,
    micro_batches: u32,
    times: PartTimes,
) -> Result<Vec<f64>, PaperError> {
    let (stages, n) = (lists.len(), micro_batches as usize);
    // A backward in one part tells the previous stage when all of it has ended.
    let told = match kind {
        PaperKind::OneForwardOneBackward => Work::Weight,
        PaperKind::ZeroBubbleH1 => Work::Input,
    };
    // When each work of each stage and micro-batch has ended.
    let mut ended = vec![[None::<f64>; 3]; stages * n];
    let (mut at, mut free) = (vec![0usize; stages], vec![0.0f64; stages]);
    loop {
        let mut moved = false;
        for s in 0..stages {
            while let Some(task) = lists[s].get(at[s]) {
                let wrong = Err(PaperError::Order {
                    stage: s,
                    position: at[s],
                });
                let m = task.micro_batch as usize;
                if m >= n || ended[s * n + m][task.work as usize].is_some() {
                    return wrong;
                }
                let end_of = |s: usize, work: Work| ended[s * n + m][work as usize];
                let (own, other, takes) = match task.work {
                    Work::Forward if s == 0 => (Some(0.0), Some(0.0), times.forward_ms),
                    Work::Forward => (Some(0.0), end_of(s - 1, Work::Forward), times.forward_ms),
                    Work::Input if s + 1 == stages => (end_of(s, Work::Forward), Some(0.0), times.input_ms),
                    Work::Input => (end_of(s, Work::Forward), end_of(s + 1, told), times.input_ms),
                    Work::Weight => (end_of(s, Work::Input), Some(0.0), times.weight_ms),
                };
                if own.is_none() {
                    return wrong;
                }
                let Some(other) = other else { break };
                let arrives = if other > 0.0 {
                    other + times.transfer_ms
                } else {
                    0.0
                };
                free[s] = free[s].max(arrives) + takes;
                ended[s * n + m][task.work as usize] = Some(free[s]);
                (at[s], moved) = (at[s] + 1, true);
            }
        }
        if !moved {
            break;
        }
    }
    if let Some(stage) = (0..stages).find(|s| at[*s] < lists[*s].len()) {
        let position = at[stage];
        return Err(PaperError::Deadlock { stage, position });
    }
    match ended.iter().position(|works| works.iter().any(Option::is_none)) {
        Some(missing) => {
            let stage = missing / n;
            let position = lists[stage].len();
            Err(PaperError::Order { stage, position })
        }
        None => Ok(free),
    }
}

/// What the first pipeline of a plan would take under each kind, milliseconds, if all of its stages were as slow as the slowest.
/// Nothing for pipelines of one stage and for interleaved ones.
#[must_use]
pub fn compare(shape: &Shape, costs: &Costs) -> Vec<(PaperKind, f64)> {
    let plain = shape.schedule.kind.chunks() == 1;
    let Some(pipeline) = shape.pipelines.first().filter(|p| plain && p.stages.len() > 1) else {
        return Vec::new();
    };
    let (m, stages) = (shape.micro_batch_size, pipeline.stages.len());
    let n = u32::try_from(pipeline.micro_batches(m)).unwrap_or(u32::MAX);
    let ranges = pipeline.stages.iter().map(|s| s.segments);
    let slowest = ranges.max_by(|a, b| costs.backward_ms(*a, m).total_cmp(&costs.backward_ms(*b, m)));
    let Some(slowest) = slowest else {
        return Vec::new();
    };
    let times = PartTimes {
        forward_ms: costs.forward_ms(slowest, m),
        input_ms: costs.backward_ms(slowest, m) / 2.0,
        weight_ms: costs.backward_ms(slowest, m) / 2.0,
        transfer_ms: costs.transfer_ms(1, m),
    };
    let took = |kind| {
        let lists: Vec<_> = (0..stages).map(|s| generate(kind, stages, s, n)).collect();
        let ends = run(&lists, kind, n, times).ok()?;
        Some((kind, ends.into_iter().fold(0.0, f64::max)))
    };
    [PaperKind::OneForwardOneBackward, PaperKind::ZeroBubbleH1]
        .into_iter()
        .filter_map(took)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVEN: PartTimes = PartTimes {
        forward_ms: 1.0,
        input_ms: 1.0,
        weight_ms: 1.0,
        transfer_ms: 0.0,
    };

    fn lists(kind: PaperKind, stages: usize, n: u32) -> Vec<Vec<Task>> {
        (0..stages).map(|s| generate(kind, stages, s, n)).collect()
    }

    fn kinds() -> impl Strategy<Value = PaperKind> {
        prop_oneof![
            Just(PaperKind::ZeroBubbleH1),
            Just(PaperKind::OneForwardOneBackward)
        ]
    }

    proptest! {
        #[test]
        fn every_list_does_everything_once_without_deadlock(
            kind in kinds(), stages in 1usize..9, n in 1u32..24, forward in 0.1f64..3.0, weight in 0.1f64..3.0, transfer in 0.0f64..2.0
        ) {
            let times = PartTimes { forward_ms: forward, input_ms: 1.0, weight_ms: weight, transfer_ms: transfer };
            prop_assert!(run(&lists(kind, stages, n), kind, n, times).is_ok());
        }

        #[test]
        fn leaving_out_or_repeating_a_task_is_refused(
            kind in kinds(), stages in 1usize..6, n in 1u32..10, at in 0usize..200, repeat: bool
        ) {
            let mut lists = lists(kind, stages, n);
            let at = at % lists[0].len();
            if repeat {
                let again = lists[0][at];
                lists[0].insert(at, again);
            } else {
                lists[0].remove(at);
            }
            prop_assert!(run(&lists, kind, n, EVEN).is_err());
        }

        #[test]
        fn zero_bubble_h1_keeps_no_more_than_the_first_stage_of_1f1b(stages in 1usize..9, n in 1u32..24) {
            for list in lists(PaperKind::ZeroBubbleH1, stages, n) {
                let (mut kept, mut most) = (0i64, 0);
                for task in list {
                    kept += match task.work { Work::Forward => 1, Work::Input => 0, Work::Weight => -1 };
                    most = most.max(kept);
                }
                prop_assert!(most <= i64::try_from(stages).unwrap(), "{}", most);
            }
        }
    }

    #[test]
    fn the_bubbles_are_the_published_ones() {
        for (stages, n) in [(4usize, 8u32), (4, 16), (8, 32)] {
            let (busy, others) = (
                3.0 * f64::from(n),
                3.0 * f64::from(u32::try_from(stages - 1).unwrap()),
            );
            let makespan = |kind| {
                let ends = run(&lists(kind, stages, n), kind, n, EVEN).unwrap();
                ends.into_iter().fold(0.0, f64::max)
            };
            let one_f_one_b = makespan(PaperKind::OneForwardOneBackward);
            assert!((one_f_one_b - busy - others).abs() < 1e-9);
            // The bubble is (P - 1) (F + B - W) instead of (P - 1) (F + B + W).
            let zero_bubble = makespan(PaperKind::ZeroBubbleH1);
            assert!(
                (zero_bubble - busy - others / 3.0).abs() < 1e-9,
                "P {stages} n {n}: {zero_bubble}"
            );
        }
    }
}
