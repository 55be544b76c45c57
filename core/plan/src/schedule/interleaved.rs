//! 1F1B over several chunks of the model on each worker (Narayanan et al. 2021, section 2.2).
//!
//! Micro-batches go in groups, as many in a group as there are workers, through all of a worker's stages, one stage after the other;
//! backwards go through the stages in the opposite order. A step must consist of whole groups: otherwise workers would wait for each other
//! for ever, which [`super::check`] detects.

use super::{Instruction, Task};

/// The stage and micro-batch of the `k`th forward of a worker.
fn forward(chunks: usize, workers: usize, worker: usize, k: usize) -> (usize, u32) {
    let chunk = k / workers % chunks;
    let micro_batch = k / (workers * chunks) * workers + k % workers;
    (
        chunk * workers + worker,
        u32::try_from(micro_batch).unwrap_or(u32::MAX),
    )
}

/// The stage and micro-batch of its `k`th backward: the last chunk comes first.
fn backward(chunks: usize, workers: usize, worker: usize, k: usize) -> (usize, u32) {
    let (stage, micro_batch) = forward(chunks, workers, worker, k);
    let first = chunks.saturating_sub(1) * workers;
    (first + 2 * worker - stage, micro_batch)
}

/// Number of forwards before the first backward: enough for the last worker to continue at once.
fn warmup(chunks: usize, workers: usize, worker: usize) -> usize {
    2 * (workers - 1 - worker) + (chunks - 1) * workers
}

/// The order of one worker's forwards and backwards, `chunks` and `workers` at least 1.
pub(super) fn order(chunks: usize, workers: usize, worker: usize, micro_batches: u32) -> Vec<Task> {
    let all = micro_batches as usize * chunks;
    let ahead = warmup(chunks, workers, worker);
    let mut list = Vec::with_capacity(2 * all);
    let mut next = 0;
    for k in 0..all {
        while next < all && next <= k + ahead {
            let (stage, m) = forward(chunks, workers, worker, next);
            list.push(Task {
                stage,
                instruction: Instruction::Forward(m),
            });
            next += 1;
        }
        let (stage, m) = backward(chunks, workers, worker, k);
        list.push(Task {
            stage,
            instruction: Instruction::Backward(m),
        });
    }
    list
}

/// The same as [`super::stash_max`], for interleaved schedules.
pub(super) fn stash_max(chunks: usize, stages: usize, stage: usize, micro_batches: u32) -> u32 {
    let workers = (stages / chunks).max(1);
    // From the second backward of a stage on, it keeps the same number at the same points of each group.
    let groups = 4 * chunks.max(2);
    let most = u32::try_from(groups * workers).unwrap_or(u32::MAX);
    let (mut kept, mut stash) = (0u32, 0);
    for task in order(chunks, workers, stage % workers, micro_batches.min(most)) {
        match task.instruction {
            _ if task.stage != stage => {}
            Instruction::Backward(_) => kept -= 1,
            _ => {
                kept += 1;
                stash = stash.max(kept);
            }
        }
    }
    stash
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Recompute, ScheduleKind, ScheduleSpec};
    use crate::schedule::text;

    #[test]
    fn two_chunks_on_two_workers_are_the_published_order() {
        let spec = ScheduleSpec {
            kind: ScheduleKind::Interleaved { chunks: 2 },
            recompute: Recompute::None,
        };
        let expected = "worker 0: 0f0 0f1 2f0 2f1 0f2 2b0 0f3 2b1 2f2 0b0 2f3 0b1 2b2 2b3 0b2 0b3\n\
                        worker 1: 1f0 1f1 3f0 3b0 3f1 3b1 1f2 1b0 1f3 1b1 3f2 3b2 3f3 3b3 1b2 1b3\n";
        assert_eq!(text(&[spec; 4], 4), expected);
    }

    #[test]
    fn what_is_kept_in_long_steps_is_what_is_kept_in_short_ones() {
        for (chunks, workers) in [(2, 2), (2, 5), (3, 4), (4, 2)] {
            for stage in 0..chunks * workers {
                let of = |groups: u32| {
                    stash_max(
                        chunks,
                        chunks * workers,
                        stage,
                        groups * u32::try_from(workers).unwrap(),
                    )
                };
                let counted = {
                    let n = 40 * u32::try_from(workers).unwrap();
                    let (mut kept, mut most) = (0i32, 0);
                    for task in order(chunks, workers, stage % workers, n) {
                        if task.stage == stage {
                            kept += if matches!(task.instruction, Instruction::Backward(_)) {
                                -1
                            } else {
                                1
                            };
                            most = most.max(kept);
                        }
                    }
                    u32::try_from(most).unwrap()
                };
                assert_eq!(
                    of(40),
                    counted,
                    "{chunks} chunks, {workers} workers, stage {stage}"
                );
            }
        }
    }
}
