//! Where the time of a worker's step went. Informative: nothing in the protocol depends on it.

use crate::v1;
use v1::measured_task::Kind;
use varuna_plan::measured_step::{MeasuredTask, MeasuredWork, TASKS_MAX};
use varuna_plan::schedule::Instruction;
use varuna_plan::{Generation, Step};

/// Where the time of one step went on one worker (milliseconds).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMetrics {
    /// The generation that ran it.
    pub generation: Generation,
    /// The step that was run.
    pub step: Step,
    /// Milliseconds of the whole step.
    pub step_ms: f64,
    /// Milliseconds in forwards.
    pub forward_ms: f64,
    /// Milliseconds in backwards.
    pub backward_ms: f64,
    /// Milliseconds in forwards that were run again.
    pub recompute_ms: f64,
    /// Waiting for neighbours.
    pub wait_ms: f64,
    /// Waiting for reductions.
    pub reduce_ms: f64,
    /// Milliseconds in the optimizer.
    pub apply_ms: f64,
    /// Processor time of the engine's own thread in the optimizer, milliseconds. None if the worker does not report it.
    pub apply_cpu_ms: Option<f64>,
    /// Tokens of this worker's pipeline in this step.
    pub tokens: u64,
    /// Medians by segment; empty if the worker does not report them.
    pub segments: Vec<SegmentTimes>,
    /// Samples in the micro-batches of `segments`.
    pub micro_batch_size: u32,
    /// Peak memory of the worker since it started, bytes; none if it does not report it.
    pub peak_memory_bytes: Option<u64>,
    /// When each task of this step ran, if the worker reports it for this step.
    pub measured: Option<MeasuredWork>,
}

/// Medians of one segment's work on one micro-batch (milliseconds).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SegmentTimes {
    /// The segment's number.
    pub segment: u32,
    /// Forward.
    pub forward_ms: f64,
    /// Backward.
    pub backward_ms: f64,
    /// Forward that was run again; 0 where none was.
    pub recompute_ms: f64,
}

pub(crate) fn to_wire(m: &StepMetrics) -> v1::StepMetrics {
    v1::StepMetrics {
        generation: m.generation.0,
        step: m.step.0,
        step_ms: m.step_ms,
        forward_ms: m.forward_ms,
        backward_ms: m.backward_ms,
        recompute_ms: m.recompute_ms,
        wait_ms: m.wait_ms,
        reduce_ms: m.reduce_ms,
        apply_ms: m.apply_ms,
        apply_cpu_ms: m.apply_cpu_ms,
        tokens: m.tokens,
        segments: m.segments.iter().map(segment_to_wire).collect(),
        micro_batch_size: m.micro_batch_size,
        peak_memory_bytes: m.peak_memory_bytes,
        measured: m.measured.as_ref().map(measured_to_wire),
    }
}

pub(crate) fn read(m: &v1::StepMetrics) -> StepMetrics {
    // This is shown to people and used for estimates, so an impossible number is replaced rather than refused.
    let ms = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
    let segment = |s: &v1::SegmentTimes| SegmentTimes {
        segment: s.segment,
        forward_ms: ms(s.forward_ms),
        backward_ms: ms(s.backward_ms),
        recompute_ms: ms(s.recompute_ms),
    };
    StepMetrics {
        generation: Generation(m.generation),
        step: Step(m.step),
        step_ms: ms(m.step_ms),
        forward_ms: ms(m.forward_ms),
        backward_ms: ms(m.backward_ms),
        recompute_ms: ms(m.recompute_ms),
        wait_ms: ms(m.wait_ms),
        reduce_ms: ms(m.reduce_ms),
        apply_ms: ms(m.apply_ms),
        apply_cpu_ms: m.apply_cpu_ms.map(ms),
        tokens: m.tokens,
        segments: m.segments.iter().map(segment).collect(),
        micro_batch_size: m.micro_batch_size,
        peak_memory_bytes: m.peak_memory_bytes,
        measured: m.measured.as_ref().and_then(read_measured),
    }
}

fn measured_to_wire(work: &MeasuredWork) -> v1::MeasuredWork {
    v1::MeasuredWork {
        began_us: work.began_us,
        tasks: work.tasks.iter().map(task_to_wire).collect(),
        reduced_us: work.reduced_us,
        optimizer_from_us: work.optimizer_from_us,
        optimizer_to_us: work.optimizer_to_us,
    }
}

fn task_to_wire(task: &MeasuredTask) -> v1::MeasuredTask {
    let (kind, micro_batch) = match task.instruction {
        Instruction::Forward(m) => (Kind::Forward, m),
        Instruction::Recompute(m) => (Kind::Recompute, m),
        Instruction::Backward(m) => (Kind::Backward, m),
    };
    v1::MeasuredTask {
        stage: task.stage,
        kind: kind.into(),
        micro_batch,
        from_us: task.from_us,
        to_us: task.to_us,
    }
}

/// The measurement; none if it is longer than any worker may report.
fn read_measured(work: &v1::MeasuredWork) -> Option<MeasuredWork> {
    if work.tasks.len() > TASKS_MAX {
        return None;
    }
    Some(MeasuredWork {
        began_us: work.began_us,
        tasks: work.tasks.iter().filter_map(read_task).collect(),
        reduced_us: work.reduced_us,
        optimizer_from_us: work.optimizer_from_us,
        optimizer_to_us: work.optimizer_to_us,
    })
}

fn read_task(task: &v1::MeasuredTask) -> Option<MeasuredTask> {
    let instruction = match task.kind() {
        Kind::Unspecified => return None,
        Kind::Forward => Instruction::Forward(task.micro_batch),
        Kind::Recompute => Instruction::Recompute(task.micro_batch),
        Kind::Backward => Instruction::Backward(task.micro_batch),
    };
    Some(MeasuredTask {
        stage: task.stage,
        instruction,
        from_us: task.from_us,
        to_us: task.to_us,
    })
}

fn segment_to_wire(s: &SegmentTimes) -> v1::SegmentTimes {
    v1::SegmentTimes {
        segment: s.segment,
        forward_ms: s.forward_ms,
        backward_ms: s.backward_ms,
        recompute_ms: s.recompute_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_measured_step_is_ignored() {
        let task = |kind| v1::MeasuredTask {
            kind,
            ..v1::MeasuredTask::default()
        };
        let read_back = |tasks| {
            let work = v1::MeasuredWork {
                tasks,
                ..v1::MeasuredWork::default()
            };
            let metrics = v1::StepMetrics {
                measured: Some(work),
                ..v1::StepMetrics::default()
            };
            read(&metrics).measured.map(|work| work.tasks.len())
        };
        assert_eq!(read_back(vec![task(1); TASKS_MAX]), Some(TASKS_MAX));
        assert_eq!(read_back(vec![task(1); TASKS_MAX + 1]), None);
        assert_eq!(read_back(vec![task(0), task(3), task(4), task(-1)]), Some(1));
    }
}
