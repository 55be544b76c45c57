//! Schedules as data: each stage's list of instructions, made by a generator and judged by the one checker ([`check`]).
//!
//! Communication is implied: a forward takes its activation from the previous stage and sends its output to the next; a
//! backward takes the gradient from the next stage and sends its input's gradient to the previous. The simulator and the
//! worker run the same lists.

pub mod check;
mod instruction;
pub mod paper;
mod text;

use crate::document::{Recompute, ScheduleKind, ScheduleSpec};

pub use instruction::Instruction;
pub use text::text;

/// Forwards that stage `stage` of `stages` runs ahead of its first backward, with `micro_batches` in a step.
///
/// GPipe: all. 1F1B: `ceil(w * (stages - 1 - stage))`, at most all.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bounded, non-negative count"
)]
#[expect(clippy::cast_precision_loss, reason = "stage counts are small")]
pub fn warmup(kind: ScheduleKind, stages: usize, stage: usize, micro_batches: u32) -> u32 {
    match kind {
        ScheduleKind::Gpipe => micro_batches,
        ScheduleKind::OneForwardOneBackward { warmup_factor } => {
            let later = stages.saturating_sub(stage + 1) as f64;
            ((warmup_factor.max(1.0) * later).ceil() as u32).min(micro_batches)
        }
    }
}

/// Most micro-batches that a stage has forwarded and not yet backwarded.
#[must_use]
pub fn stash_max(kind: ScheduleKind, stages: usize, stage: usize, micro_batches: u32) -> u32 {
    (warmup(kind, stages, stage, micro_batches) + 1).min(micro_batches)
}

/// The instruction list of one stage.
///
/// With recompute, a backward that does not directly follow its own forward is preceded by a recompute; one that does (each
/// on the last stage of 1F1B, and that of a step's only micro-batch) keeps what its forward saved. GPipe with more than
/// one micro-batch therefore recomputes each of them on each stage.
#[must_use]
pub fn generate(spec: &ScheduleSpec, stages: usize, stage: usize, micro_batches: u32) -> Vec<Instruction> {
    let ahead = warmup(spec.kind, stages, stage, micro_batches);
    let mut list = Vec::new();
    let mut next_forward = 0;
    for next_backward in 0..micro_batches {
        // After the warm-up each backward lets one more forward in.
        while next_forward < micro_batches && next_forward <= next_backward + ahead {
            list.push(Instruction::Forward(next_forward));
            next_forward += 1;
        }
        let fresh = list.last() == Some(&Instruction::Forward(next_backward));
        if spec.recompute != Recompute::None && !fresh {
            list.push(Instruction::Recompute(next_backward));
        }
        list.push(Instruction::Backward(next_backward));
    }
    list
}

/// Whether something of the forward at `position` will be recomputed, so that it must keep less.
#[must_use]
pub fn is_recomputed(list: &[Instruction], position: usize) -> bool {
    match list.get(position) {
        Some(Instruction::Forward(m)) => list[position..].contains(&Instruction::Recompute(*m)),
        _ => false,
    }
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
    fn the_last_stage_of_1f1b_never_recomputes() {
        let list = generate(&spec(1.0, Recompute::Full), 3, 2, 5);
        assert!(!list.iter().any(|i| matches!(i, Instruction::Recompute(_))));
        let first = generate(&spec(1.0, Recompute::Full), 3, 0, 5);
        assert_eq!(
            first
                .iter()
                .filter(|i| matches!(i, Instruction::Recompute(_)))
                .count(),
            5
        );
    }
}
