//! Schedules that are simulated only: interleaved virtual stages and zero-bubble H1.
//!
//! They exist to say what such an order would bring. No plan can name them ([`crate::ScheduleKind`] has none of them), so no
//! worker is ever told to run one: the engine has neither several chunks on a stage nor a backward in two parts.

use std::collections::VecDeque;
use std::fmt;

/// A part of a micro-batch's work on one chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// Forward.
    Forward,
    /// Backward with regard to the chunk's input: what the previous chunk waits for.
    Input,
    /// Backward with regard to the weights: nobody waits for it.
    Weight,
}

/// One task of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// What.
    pub work: Work,
    /// Which of the stage's chunks; chunk c of stage s is virtual stage `c * stages + s`.
    pub chunk: usize,
    /// Which micro-batch.
    pub micro_batch: u32,
}

/// An order of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PaperKind {
    /// 1F1B over several chunks of each stage (Narayanan et al. 2021, section 2.2). With several chunks the number of
    /// micro-batches must be a multiple of the number of stages; [`run`] finds the deadlock of others.
    Interleaved {
        /// Chunks of each stage, at least 1.
        chunks: usize,
    },
    /// 1F1B with weight gradients put off to fill the drain, at no more memory (Qi et al. 2023, H1).
    ZeroBubbleH1,
}

impl fmt::Display for PaperKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PaperKind::Interleaved { chunks } => write!(f, "interleaved, {chunks} chunks a stage"),
            PaperKind::ZeroBubbleH1 => write!(f, "zero-bubble H1"),
        }
    }
}

impl PaperKind {
    /// Chunks of each stage.
    #[must_use]
    pub fn chunks(self) -> usize {
        match self {
            PaperKind::Interleaved { chunks } => chunks.max(1),
            PaperKind::ZeroBubbleH1 => 1,
        }
    }
}

/// The tasks of one stage.
#[must_use]
pub fn generate(kind: PaperKind, stages: usize, stage: usize, micro_batches: u32) -> Vec<Task> {
    let (chunks, n, later) = (kind.chunks(), micro_batches as usize, stages - 1 - stage);
    // Groups of as many micro-batches as there are stages go through all chunks; the last group may be short.
    let rounds = n.div_ceil(stages);
    let order = |backward: bool| {
        (0..rounds * chunks * stages).filter_map(move |k| {
            let chunk = (k / stages) % chunks;
            let micro_batch = k / (stages * chunks) * stages + k % stages;
            let chunk = if backward { chunks - 1 - chunk } else { chunk };
            (micro_batch < n).then_some((chunk, u32::try_from(micro_batch).unwrap_or(u32::MAX)))
        })
    };
    let warmup = match kind {
        PaperKind::Interleaved { chunks: 2.. } => 2 * later + (chunks - 1) * stages,
        PaperKind::Interleaved { .. } | PaperKind::ZeroBubbleH1 => later,
    };
    // Weight gradients that a stage puts off: with them each stage keeps what the first one keeps anyway.
    let put_off = if kind == PaperKind::ZeroBubbleH1 { stage } else { 0 };
    let mut list = Vec::with_capacity(3 * n * chunks);
    let mut forwards = order(false);
    let mut waiting: VecDeque<(usize, u32)> = VecDeque::new();
    let task = |work, (chunk, micro_batch)| Task {
        work,
        chunk,
        micro_batch,
    };
    list.extend(forwards.by_ref().take(warmup).map(|at| task(Work::Forward, at)));
    for at in order(true) {
        list.extend(forwards.next().map(|at| task(Work::Forward, at)));
        list.push(task(Work::Input, at));
        waiting.push_back(at);
        while waiting.len() > put_off {
            list.extend(waiting.pop_front().map(|at| task(Work::Weight, at)));
        }
    }
    list.extend(waiting.into_iter().map(|at| task(Work::Weight, at)));
    list
}

/// Times of one chunk of a stage for one micro-batch, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChunkTimes {
    /// Forward.
    pub forward_ms: f64,
    /// Backward with regard to the input.
    pub input_ms: f64,
    /// Backward with regard to the weights.
    pub weight_ms: f64,
    /// A transfer between two virtual stages.
    pub transfer_ms: f64,
}

/// Why lists must not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaperError {
    /// A task is missing, doubled, unknown or before what it needs on its own stage.
    #[error("stage {stage}: task {position} is missing, doubled or out of order")]
    Order {
        /// Which stage.
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
/// deadlock. All chunks take the same time.
///
/// # Errors
/// The first violation found.
pub fn run(
    lists: &[Vec<Task>],
    kind: PaperKind,
    micro_batches: u32,
    times: ChunkTimes,
) -> Result<Vec<f64>, PaperError> {
    let (stages, n, chunks) = (lists.len(), micro_batches as usize, kind.chunks());
    // A backward in one part tells the previous stage when all of it has ended.
    let told = match kind {
        PaperKind::Interleaved { .. } => Work::Weight,
        PaperKind::ZeroBubbleH1 => Work::Input,
    };
    let virtual_stages = stages * chunks;
    // When each work of each virtual stage and micro-batch has ended.
    let mut ended = vec![[None::<f64>; 3]; virtual_stages * n];
    let (mut at, mut free) = (vec![0usize; stages], vec![0.0f64; stages]);
    loop {
        let mut moved = false;
        for s in 0..stages {
            while let Some(task) = lists[s].get(at[s]) {
                let wrong = Err(PaperError::Order {
                    stage: s,
                    position: at[s],
                });
                let (v, m) = (task.chunk * stages + s, task.micro_batch as usize);
                if task.chunk >= chunks || m >= n || ended[v * n + m][task.work as usize].is_some() {
                    return wrong;
                }
                let end_of = |v: usize, work: Work| ended[v * n + m][work as usize];
                let (own, other, takes) = match task.work {
                    Work::Forward if v == 0 => (Some(0.0), Some(0.0), times.forward_ms),
                    Work::Forward => (Some(0.0), end_of(v - 1, Work::Forward), times.forward_ms),
                    Work::Input if v + 1 == virtual_stages => {
                        (end_of(v, Work::Forward), Some(0.0), times.input_ms)
                    }
                    Work::Input => (end_of(v, Work::Forward), end_of(v + 1, told), times.input_ms),
                    Work::Weight => (end_of(v, Work::Input), Some(0.0), times.weight_ms),
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
                ended[v * n + m][task.work as usize] = Some(free[s]);
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
            let stage = missing / n % stages;
            let position = lists[stage].len();
            Err(PaperError::Order { stage, position })
        }
        None => Ok(free),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EVEN: ChunkTimes = ChunkTimes {
        forward_ms: 1.0,
        input_ms: 1.0,
        weight_ms: 1.0,
        transfer_ms: 0.0,
    };

    fn lists(kind: PaperKind, stages: usize, n: u32) -> Vec<Vec<Task>> {
        (0..stages).map(|s| generate(kind, stages, s, n)).collect()
    }

    fn makespan(kind: PaperKind, stages: usize, n: u32, times: ChunkTimes) -> f64 {
        let ends = run(&lists(kind, stages, n), kind, n, times).unwrap();
        ends.into_iter().fold(0.0, f64::max)
    }

    fn kinds() -> impl Strategy<Value = PaperKind> {
        prop_oneof![
            Just(PaperKind::ZeroBubbleH1),
            (1usize..5).prop_map(|chunks| PaperKind::Interleaved { chunks })
        ]
    }

    proptest! {
        #[test]
        fn every_list_does_everything_once_without_deadlock(
            kind in kinds(), stages in 1usize..9, n in 1u32..24, forward in 0.1f64..3.0, weight in 0.1f64..3.0, transfer in 0.0f64..2.0
        ) {
            // Interleaving is defined for whole groups of micro-batches.
            let whole = matches!(kind, PaperKind::Interleaved { chunks: 2.. });
            let n = if whole { n.next_multiple_of(u32::try_from(stages).unwrap()) } else { n };
            let times = ChunkTimes { forward_ms: forward, input_ms: 1.0, weight_ms: weight, transfer_ms: transfer };
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
            let one_f_one_b = makespan(PaperKind::Interleaved { chunks: 1 }, stages, n, EVEN);
            assert!((one_f_one_b - busy - others).abs() < 1e-9);
            // Each of two chunks takes half as long, and so does the bubble.
            let half = ChunkTimes {
                forward_ms: 0.5,
                input_ms: 0.5,
                weight_ms: 0.5,
                transfer_ms: 0.0,
            };
            let interleaved = makespan(PaperKind::Interleaved { chunks: 2 }, stages, n, half);
            assert!(
                (interleaved - busy - others / 2.0).abs() < 1e-9,
                "P {stages} n {n}: {interleaved}"
            );
            // (P - 1) (F + B - W) instead of (P - 1) (F + B + W).
            let zero_bubble = makespan(PaperKind::ZeroBubbleH1, stages, n, EVEN);
            assert!(
                (zero_bubble - busy - others / 3.0).abs() < 1e-9,
                "P {stages} n {n}: {zero_bubble}"
            );
        }
    }
}
