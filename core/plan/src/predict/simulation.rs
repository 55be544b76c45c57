//! Simulates one pipeline's step: runs the instruction lists against each other with compute and transfer times.
//!
//! Noise is given as a function. This module does not know the gradient rings that follow ([`super::rings`]).

use super::stage_times::StageTimes;
use crate::schedule::{Instruction, Task};

/// The result of simulating a pipeline.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Simulated {
    /// When each stage has ended its last backward (rendezvous: or its last transfer), milliseconds from the step's start.
    pub(crate) ends_ms: Vec<f64>,
    /// Compute time of each stage.
    pub(crate) busy_ms: Vec<f64>,
}

impl Simulated {
    /// When the last stage has ended.
    pub(crate) fn makespan_ms(&self) -> f64 {
        self.ends_ms.iter().copied().fold(0.0, f64::max)
    }
}

/// The activity of a stage, or of its network interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Activity {
    /// The stage computes.
    Compute(Instruction),
    /// The activation of this micro-batch on its way to the next stage.
    SendActivation(u32),
    /// The gradient of this micro-batch on its way to the previous stage.
    SendGradient(u32),
}

/// An interval of a stage's activity, in milliseconds from the step's start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Index of the stage in its pipeline.
    pub stage: usize,
    /// What the stage does meanwhile.
    pub activity: Activity,
    /// Time at which it begins.
    pub start_ms: f64,
    /// Time at which it has ended.
    pub end_ms: f64,
}

/// Runs the lists of all workers. Transfers overlap with compute; each worker sends one tensor at a time, in the order in which it made
/// them. The lists must have passed [`crate::schedule::check::check`]; tasks that can never run are left out.
pub(crate) fn simulate(lists: &[Vec<Task>], times: &[StageTimes], micro_batches: u32) -> Simulated {
    run(lists, times, micro_batches, |_, ms| ms, |_| {})
}

/// The same, with every duration passed through `noise(stage, ms)` and every span passed to `record`.
pub(crate) fn run(
    lists: &[Vec<Task>],
    times: &[StageTimes],
    micro_batches: u32,
    mut noise: impl FnMut(usize, f64) -> f64,
    mut record: impl FnMut(Span),
) -> Simulated {
    let (workers, stages, n) = (lists.len(), times.len(), micro_batches as usize);
    // When the activation, or the gradient, of each micro-batch reaches each stage; infinite = not yet.
    let mut activation = vec![f64::INFINITY; stages * n];
    let mut gradient = vec![f64::INFINITY; stages * n];
    activation[..n].fill(0.0);
    gradient[stages.saturating_sub(1) * n..].fill(0.0);
    let mut at = vec![0; workers];
    let [mut free, mut sent] = [(); 2].map(|()| vec![0.0f64; workers]);
    let [mut ends_ms, mut busy_ms] = [(); 2].map(|()| vec![0.0f64; stages]);
    loop {
        let mut moved = false;
        for w in 0..workers {
            while let Some(Task {
                stage: s,
                instruction,
            }) = lists[w].get(at[w]).copied()
            {
                let (arrives, takes) = match instruction {
                    Instruction::Forward(m) => (activation[s * n + m as usize], times[s].forward_ms),
                    Instruction::Recompute(_) => (0.0, times[s].recompute_ms),
                    Instruction::Backward(m) => (gradient[s * n + m as usize], times[s].backward_ms),
                };
                if arrives.is_infinite() {
                    break;
                }
                let start_ms = free[w].max(arrives);
                let takes = noise(s, takes);
                free[w] = start_ms + takes;
                ends_ms[s] = free[w];
                busy_ms[s] += takes;
                let mut tell = |activity, start_ms, end_ms| {
                    record(Span {
                        stage: s,
                        activity,
                        start_ms,
                        end_ms,
                    });
                };
                tell(Activity::Compute(instruction), start_ms, free[w]);
                (at[w], moved) = (at[w] + 1, true);
                let (to, transfer_ms, activity, arrivals) = match instruction {
                    Instruction::Forward(m) if s + 1 < stages => {
                        let (to, transfer_ms) = ((s + 1) * n + m as usize, times[s + 1].transfer_ms);
                        (to, transfer_ms, Activity::SendActivation(m), &mut activation)
                    }
                    Instruction::Backward(m) if s > 0 => {
                        let (to, transfer_ms) = ((s - 1) * n + m as usize, times[s].transfer_ms);
                        (to, transfer_ms, Activity::SendGradient(m), &mut gradient)
                    }
                    _ => continue,
                };
                let start_ms = sent[w].max(free[w]);
                sent[w] = start_ms + noise(s, transfer_ms);
                arrivals[to] = sent[w];
                tell(activity, start_ms, sent[w]);
            }
        }
        if !moved {
            return Simulated { ends_ms, busy_ms };
        }
    }
}

#[cfg(test)]
mod tests;
