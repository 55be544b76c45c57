//! Schedules as data: each worker's list of tasks, made by a generator and judged by the only checker ([`check`]).
//!
//! Communication is implicit: a forward takes its activation from the previous stage and sends its output to the next; a backward takes the
//! gradient from the next stage and sends its input's gradient to the previous one. The simulator and the worker run the same lists.

pub mod check;
mod instruction;
mod interleaved;
mod text;

use crate::document::{Recompute, ScheduleKind, ScheduleSpec};

pub use instruction::{Instruction, Task};
pub use text::text;

/// The task lists of all workers of a pipeline whose stages have these schedules, all of one kind; first worker first.
#[must_use]
pub fn lists(specs: &[ScheduleSpec], micro_batches: u32) -> Vec<Vec<Task>> {
    let workers = specs.first().map_or(0, |spec| spec.kind.workers(specs.len()));
    (0..workers).map(|w| list(specs, w, micro_batches)).collect()
}

/// The task list of one of them: the worker of the stages whose index is `worker` modulo the number of workers.
///
/// # Panics
/// There is no such worker.
#[must_use]
pub fn list(specs: &[ScheduleSpec], worker: usize, micro_batches: u32) -> Vec<Task> {
    let order = match specs[worker].kind {
        ScheduleKind::Interleaved { chunks } => {
            let workers = specs.len() / chunks.max(1) as usize;
            interleaved::order(chunks.max(1) as usize, workers, worker, micro_batches)
        }
        ScheduleKind::OneForwardOneBackward { warmup_factor } => {
            let ahead = warmup(warmup_factor, specs.len(), worker, micro_batches);
            in_turn(worker, ahead, micro_batches)
        }
        ScheduleKind::Gpipe => in_turn(worker, micro_batches, micro_batches),
    };
    with_recompute(specs, order)
}

/// The forwards of an evaluation over `micro_batches` micro-batches on one worker of a pipeline, in order. If workers have several stages,
/// the micro-batches go in groups through one stage after the other, as in training, so that no worker runs far ahead of the others.
#[must_use]
pub fn evaluation_list(kind: ScheduleKind, stages: usize, worker: usize, micro_batches: u32) -> Vec<Task> {
    let workers = kind.workers(stages);
    let group = if stages > workers { workers } else { 1 };
    let mut list = Vec::with_capacity(micro_batches as usize * kind.chunks());
    let all: Vec<u32> = (0..micro_batches).collect();
    for group in all.chunks(group) {
        for stage in (worker..stages).step_by(workers) {
            list.extend(group.iter().map(|m| Task {
                stage,
                instruction: Instruction::Forward(*m),
            }));
        }
    }
    list
}

/// Forwards that stage `stage` of `stages` runs ahead of its first backward under 1F1B, with `micro_batches` in a step:
/// `ceil(w * (stages - 1 - stage))`, at most all.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bounded, non-negative count"
)]
#[expect(clippy::cast_precision_loss, reason = "stage counts are small")]
fn warmup(warmup_factor: f64, stages: usize, stage: usize, micro_batches: u32) -> u32 {
    let later = stages.saturating_sub(stage + 1) as f64;
    ((warmup_factor.max(1.0) * later).ceil() as u32).min(micro_batches)
}

/// Maximum number of micro-batches for which a stage has run the forward and not yet the backward.
#[must_use]
pub fn stash_max(kind: ScheduleKind, stages: usize, stage: usize, micro_batches: u32) -> u32 {
    match kind {
        ScheduleKind::Interleaved { chunks } => {
            interleaved::stash_max(chunks.max(1) as usize, stages, stage, micro_batches)
        }
        ScheduleKind::OneForwardOneBackward { warmup_factor } => {
            (warmup(warmup_factor, stages, stage, micro_batches) + 1).min(micro_batches)
        }
        ScheduleKind::Gpipe => micro_batches,
    }
}

/// The list of a worker with one stage: `ahead` forwards, then a forward and a backward in turn.
fn in_turn(stage: usize, ahead: u32, micro_batches: u32) -> Vec<Task> {
    let task = |instruction| Task { stage, instruction };
    let mut list = Vec::with_capacity(2 * micro_batches as usize);
    let mut next_forward = 0;
    for next_backward in 0..micro_batches {
        // After the warm-up each backward lets one more forward in.
        while next_forward < micro_batches && next_forward <= next_backward + ahead {
            list.push(task(Instruction::Forward(next_forward)));
            next_forward += 1;
        }
        list.push(task(Instruction::Backward(next_backward)));
    }
    list
}

/// With recompute, a backward that does not directly follow its own forward is preceded by a recompute. One that does (each on the last
/// stage of 1F1B, and that of a step's only micro-batch) uses what its forward saved. GPipe with more than one micro-batch therefore
/// recomputes each of them on each stage.
fn with_recompute(specs: &[ScheduleSpec], order: Vec<Task>) -> Vec<Task> {
    if specs.iter().all(|spec| spec.recompute == Recompute::None) {
        return order;
    }
    let mut list: Vec<Task> = Vec::with_capacity(order.len() * 3 / 2);
    for task in order {
        if let Instruction::Backward(m) = task.instruction {
            let of = |instruction| Task { instruction, ..task };
            let fresh = list.last() == Some(&of(Instruction::Forward(m)));
            if specs[task.stage].recompute != Recompute::None && !fresh {
                list.push(of(Instruction::Recompute(m)));
            }
        }
        list.push(task);
    }
    list
}

/// Whether a part of the forward at `position` will be recomputed, so that the forward must keep less.
#[must_use]
pub fn is_recomputed(list: &[Task], position: usize) -> bool {
    let Some(Task {
        stage,
        instruction: Instruction::Forward(m),
    }) = list.get(position)
    else {
        return false;
    };
    let again = Task {
        stage: *stage,
        instruction: Instruction::Recompute(*m),
    };
    list[position..].contains(&again)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(w: f64, recompute: Recompute) -> ScheduleSpec {
        ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: w },
            recompute,
        }
    }

    #[test]
    fn one_forward_one_backward_is_the_published_order() {
        let expected = "stage 0: f0 f1 b0 f2 b1 f3 b2 b3\nstage 1: f0 b0 f1 b1 f2 b2 f3 b3\n";
        assert_eq!(text(&[spec(1.0, Recompute::None); 2], 4), expected);
    }

    #[test]
    fn a_double_warmup_runs_two_forwards_ahead_for_each_later_stage() {
        let expected = "stage 0: f0 f1 f2 b0 f3 b1 b2 b3\nstage 1: f0 b0 f1 b1 f2 b2 f3 b3\n";
        assert_eq!(text(&[spec(2.0, Recompute::None); 2], 4), expected);
    }

    #[test]
    fn gpipe_forwards_everything_first_and_recomputes_all() {
        let gpipe = ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute: Recompute::Full,
        };
        assert_eq!(text(&[gpipe; 1], 2), "stage 0: f0 f1 r0 b0 r1 b1\n");
        let plain = ScheduleSpec {
            recompute: Recompute::None,
            ..gpipe
        };
        assert_eq!(text(&[plain; 1], 2), "stage 0: f0 f1 b0 b1\n");
    }

    #[test]
    fn evaluation_passes_the_stages_round_by_round() {
        let of = |kind, stages, worker| {
            let list = evaluation_list(kind, stages, worker, 3);
            let word = |t: &Task| format!("{}{}", t.stage, t.instruction);
            list.iter().map(word).collect::<Vec<_>>().join(" ")
        };
        let interleaved = ScheduleKind::Interleaved { chunks: 2 };
        assert_eq!(of(interleaved, 4, 0), "0f0 0f1 2f0 2f1 0f2 2f2");
        assert_eq!(of(interleaved, 4, 1), "1f0 1f1 3f0 3f1 1f2 3f2");
        assert_eq!(of(ScheduleKind::Gpipe, 2, 1), "1f0 1f1 1f2");
    }

    #[test]
    fn the_last_stage_of_1f1b_never_recomputes() {
        let lists = lists(&[spec(1.0, Recompute::Full); 3], 5);
        let recomputes = |list: &[Task]| {
            let again = |t: &&Task| matches!(t.instruction, Instruction::Recompute(_));
            list.iter().filter(again).count()
        };
        assert_eq!(lists.iter().map(|l| recomputes(l)).collect::<Vec<_>>(), [5, 5, 0]);
    }
}
