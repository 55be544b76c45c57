//! One pipeline's step on paper: the instruction lists run against each other with compute and transfer times.

use crate::schedule::Instruction;

/// Times of one stage for one micro-batch, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StageTimes {
    /// Forward.
    pub forward_ms: f64,
    /// Backward without recompute.
    pub backward_ms: f64,
    /// A transfer between the previous stage and this one, either way (0 for the first).
    pub transfer_ms: f64,
}

/// What a simulated step took.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulated {
    /// When each stage has ended its last backward, milliseconds from the step's start.
    pub ends_ms: Vec<f64>,
    /// Compute time of each stage.
    pub busy_ms: Vec<f64>,
}

impl Simulated {
    /// When the last stage has ended.
    #[must_use]
    pub fn makespan_ms(&self) -> f64 {
        self.ends_ms.iter().copied().fold(0.0, f64::max)
    }
}

/// Runs the lists of all stages. Transfers overlap with compute; they take their time but block nobody.
/// The lists must have passed [`crate::schedule::check::check`]; instructions that can never run are left out.
#[must_use]
pub fn simulate(lists: &[Vec<Instruction>], times: &[StageTimes], micro_batches: u32) -> Simulated {
    let (stages, n) = (lists.len(), micro_batches as usize);
    let mut forward = vec![vec![f64::NAN; n]; stages];
    let mut backward = vec![vec![f64::NAN; n]; stages];
    let (mut at, mut free, mut busy) = (vec![0; stages], vec![0.0f64; stages], vec![0.0f64; stages]);
    loop {
        let mut moved = false;
        for s in 0..stages {
            while let Some(instruction) = lists[s].get(at[s]) {
                let (arrives, takes) = match *instruction {
                    Instruction::Forward(_) if s == 0 => (0.0, times[s].forward_ms),
                    Instruction::Forward(m) => (
                        forward[s - 1][m as usize] + times[s].transfer_ms,
                        times[s].forward_ms,
                    ),
                    Instruction::Recompute(_) => (0.0, times[s].forward_ms),
                    Instruction::Backward(_) if s + 1 == stages => (0.0, times[s].backward_ms),
                    Instruction::Backward(m) => (
                        backward[s + 1][m as usize] + times[s + 1].transfer_ms,
                        times[s].backward_ms,
                    ),
                };
                if arrives.is_nan() {
                    break;
                }
                free[s] = free[s].max(arrives) + takes;
                busy[s] += takes;
                match *instruction {
                    Instruction::Forward(m) => forward[s][m as usize] = free[s],
                    Instruction::Backward(m) => backward[s][m as usize] = free[s],
                    Instruction::Recompute(_) => {}
                }
                at[s] += 1;
                moved = true;
            }
        }
        if !moved {
            return Simulated {
                ends_ms: free,
                busy_ms: busy,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Recompute, ScheduleKind, ScheduleSpec};
    use crate::schedule::generate;

    #[test]
    fn without_transfers_1f1b_takes_the_closed_form() {
        let spec = ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            recompute: Recompute::None,
        };
        for (p, n) in [(4usize, 8u32), (8, 20), (3, 1), (1, 5)] {
            let lists: Vec<_> = (0..p).map(|s| generate(&spec, p, s, n)).collect();
            let times = vec![
                StageTimes {
                    forward_ms: 1.0,
                    backward_ms: 2.0,
                    transfer_ms: 0.0
                };
                p
            ];
            let took = simulate(&lists, &times, n);
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let expected = (f64::from(n) + p as f64 - 1.0) * 3.0;
            assert!(
                (took.makespan_ms() - expected).abs() < 1e-9,
                "P {p} n {n}: {took:?}"
            );
            assert!((took.busy_ms[0] - 3.0 * f64::from(n)).abs() < 1e-9);
        }
    }

    #[test]
    fn recompute_and_transfers_make_a_step_longer() {
        let spec = |recompute| ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute,
        };
        let time = |recompute, transfer_ms| {
            let lists: Vec<_> = (0..3).map(|s| generate(&spec(recompute), 3, s, 6)).collect();
            simulate(
                &lists,
                &[StageTimes {
                    forward_ms: 1.0,
                    backward_ms: 2.0,
                    transfer_ms,
                }; 3],
                6,
            )
            .makespan_ms()
        };
        assert!(time(Recompute::Full, 0.0) > time(Recompute::None, 0.0));
        assert!(time(Recompute::None, 0.5) > time(Recompute::None, 0.0));
    }
}
