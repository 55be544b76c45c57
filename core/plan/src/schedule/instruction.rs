//! The instructions for a worker.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing that a stage does for one micro-batch (its index counts within the pipeline's share of the batch).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Instruction {
    /// Forward: takes the activation from the previous stage, sends its output to the next. If a recompute follows, only what it does not
    /// make again is kept.
    Forward(u32),
    /// The forward again, of all segments or only of attention, keeping what autograd saves; directly before the backward.
    Recompute(u32),
    /// Backward: takes the gradient from the next stage, sends its input's gradient to the previous.
    Backward(u32),
}

/// An entry of a worker's list: an instruction for one of its stages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Task {
    /// Index of the stage in its pipeline.
    pub stage: usize,
    /// The instruction of the task.
    pub instruction: Instruction,
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instruction::Forward(micro_batch) => write!(f, "f{micro_batch}"),
            Instruction::Recompute(micro_batch) => write!(f, "r{micro_batch}"),
            Instruction::Backward(micro_batch) => write!(f, "b{micro_batch}"),
        }
    }
}
