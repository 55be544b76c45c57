//! A measured step: what each worker did when. It is drawn next to the predicted one, in the same form.

use crate::document::{Pipeline, Shape};
use crate::ids::{Generation, Step, WorkerId};
use crate::predict::{Activity, PipelineTrace, Span, StageEnd};
use crate::schedule::{Instruction, Task};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The workers of this many pipelines are measured, beginning with the first: a record of thousands of workers would be many megabytes, and
/// nobody could look at it.
pub const PIPELINES_MAX: usize = 4;
/// A worker with more tasks in a step is not measured.
pub const TASKS_MAX: usize = 4096;

/// When a worker ran one of its tasks, microseconds from when its own step began. A task begins once what it waits for has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredTask {
    /// Index of the stage in its pipeline.
    pub stage: u32,
    /// The instruction that was run.
    pub instruction: Instruction,
    /// Time at which it began, in microseconds.
    pub from_us: u64,
    /// When it had ended, microseconds.
    pub to_us: u64,
}

/// What one worker did in a step; times but the first are microseconds from when its own step began.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredWork {
    /// When its step began by its own clock, microseconds since 1970.
    pub began_us: u64,
    /// Its tasks, in the order in which they ran.
    pub tasks: Vec<MeasuredTask>,
    /// When its gradients were summed over all holders.
    pub reduced_us: u64,
    /// When its optimizer began; by then all members have reported their norms.
    pub optimizer_from_us: u64,
    /// When its optimizer had ended.
    pub optimizer_to_us: u64,
}

/// A step of a plan, as the workers of its first pipelines measured it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredStep {
    /// The plan's generation.
    pub generation: Generation,
    /// The step that was run.
    pub step: Step,
    /// What each of the workers did.
    pub workers: BTreeMap<WorkerId, MeasuredWork>,
}

/// The workers of a plan that measure a step.
#[must_use]
pub fn measured_workers(shape: &Shape) -> BTreeSet<WorkerId> {
    let pipelines = shape.pipelines.iter().take(PIPELINES_MAX);
    pipelines
        .flat_map(|p| p.stages.iter().map(|s| s.worker))
        .collect()
}

impl MeasuredTask {
    fn task(&self) -> Task {
        Task {
            stage: self.stage as usize,
            instruction: self.instruction,
        }
    }
}

impl MeasuredWork {
    /// The same with only the tasks of these stages. The measurement comes from the network and may name stages of other workers, or stages
    /// that do not exist.
    fn of_stages(&self, own: impl Fn(usize) -> bool) -> MeasuredWork {
        let tasks = self.tasks.iter().filter(|task| own(task.stage as usize));
        MeasuredWork {
            began_us: self.began_us,
            tasks: tasks.copied().collect(),
            reduced_us: self.reduced_us,
            optimizer_from_us: self.optimizer_from_us,
            optimizer_to_us: self.optimizer_to_us,
        }
    }
}

impl MeasuredStep {
    /// The pipelines whose workers were all measured, in the form of a prediction. Transfers are missing, since nobody measured them.
    ///
    /// The clocks of machines differ. Within a pipeline they are corrected as far as messages prove an error: a stage cannot begin a task
    /// before the task that it waits for has ended on another worker.
    #[must_use]
    pub fn traces(&self, shape: &Shape) -> Vec<PipelineTrace> {
        let stages = shape.pipelines.iter().flat_map(|p| &p.stages);
        // Any worker serves as reference: it only keeps the numbers small, so that they are exact.
        let any = stages.filter_map(|s| self.workers.get(&s.worker)).next();
        let since_us = any.map_or(0, |work| work.began_us);
        let pipelines = shape.pipelines.iter().enumerate().take(PIPELINES_MAX);
        let measured =
            pipelines.filter_map(|(index, pipeline)| self.trace(shape, (index, pipeline), since_us));
        let mut traces: Vec<PipelineTrace> = measured.collect();
        // Now that clocks are corrected, times count from the earliest one.
        let starts = traces.iter().flat_map(|t| t.spans.iter().map(|s| s.start_ms));
        let earliest = starts.fold(f64::INFINITY, f64::min);
        if earliest.is_finite() {
            traces.iter_mut().for_each(|trace| shift(trace, -earliest));
        }
        traces
    }

    fn trace(
        &self,
        shape: &Shape,
        (index, pipeline): (usize, &Pipeline),
        since_us: u64,
    ) -> Option<PipelineTrace> {
        let stages = pipeline.stages.len();
        let workers = shape.schedule.kind.workers(stages);
        let work = |w: usize| {
            let told = self.workers.get(&pipeline.stages.get(w)?.worker)?;
            Some(told.of_stages(|stage| stage < stages && stage % workers == w))
        };
        let works: Vec<MeasuredWork> = (0..workers).map(work).collect::<Option<_>>()?;
        let offsets = offsets_ms(&works, since_us);
        let mut trace = PipelineTrace {
            first: index,
            count: 1,
            micro_batches: u32::try_from(pipeline.micro_batches(shape.micro_batch_size)).unwrap_or(u32::MAX),
            stages: pipeline.stages.iter().map(|s| s.segments).collect(),
            workers,
            spans: Vec::new(),
            ends: vec![StageEnd::default(); stages],
        };
        for (w, (work, offset)) in works.iter().zip(&offsets).enumerate() {
            let at = |us: u64| offset + milliseconds(us);
            let spans = work.tasks.iter().map(|task| Span {
                stage: task.stage as usize,
                activity: Activity::Compute(task.instruction),
                start_ms: at(task.from_us),
                end_ms: at(task.to_us.max(task.from_us)),
            });
            let before = trace.spans.len();
            trace.spans.extend(spans);
            let computed = trace.spans[before..]
                .iter()
                .map(|s| s.end_ms)
                .fold(at(0), f64::max);
            let reduced = at(work.reduced_us).max(computed);
            let optimizer_from = at(work.optimizer_from_us).max(reduced);
            for end in trace.ends.iter_mut().skip(w).step_by(workers) {
                *end = StageEnd {
                    rings_from_ms: computed,
                    rings_to_ms: reduced,
                    optimizer_from_ms: optimizer_from,
                    ms: at(work.optimizer_to_us).max(optimizer_from),
                };
            }
        }
        Some(trace)
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a step")]
fn milliseconds(us: u64) -> f64 {
    us as f64 / 1e3
}

/// When each worker's step began, in milliseconds from `since_us` by the first worker's clock, as far as that can be determined.
fn offsets_ms(works: &[MeasuredWork], since_us: u64) -> Vec<f64> {
    let told = |work: &MeasuredWork| match work.began_us.checked_sub(since_us) {
        Some(later) => milliseconds(later),
        None => -milliseconds(since_us - work.began_us),
    };
    let mut offsets: Vec<f64> = Vec::with_capacity(works.len());
    for work in works {
        let offset = match works.get(offsets.len().wrapping_sub(1)).zip(offsets.last()) {
            None => told(work),
            Some((before, offset)) => {
                let wished = told(work) - told(before);
                offset + possible(before, work, wished)
            }
        };
        offsets.push(offset);
    }
    offsets
}

/// How much later `b`'s step began than `a`'s, in milliseconds: as near to `wished` as their messages to each other permit.
fn possible(a: &MeasuredWork, b: &MeasuredWork, wished: f64) -> f64 {
    let (not_before, not_after) = (least_lag_ms(a, b), -least_lag_ms(b, a));
    if not_before > not_after {
        // The limits contradict each other, because times have limited accuracy.
        return f64::midpoint(not_before, not_after);
    }
    wished.clamp(not_before, not_after)
}

/// Lower bound of how much later `b`'s step began than `a`'s: no task of `b` begins before the task of `a` that it waits for has ended.
/// Minus infinity if `b` waits for nothing of `a`.
fn least_lag_ms(a: &MeasuredWork, b: &MeasuredWork) -> f64 {
    let ended: BTreeMap<Task, u64> = a.tasks.iter().map(|t| (t.task(), t.to_us)).collect();
    let lags = b.tasks.iter().filter_map(|task| {
        let to_us = ended.get(&waits_for(task.task())?)?;
        Some(milliseconds(*to_us) - milliseconds(task.from_us))
    });
    lags.fold(f64::NEG_INFINITY, f64::max)
}

/// The task of a neighbouring stage that this one waits for. None if it is not known to wait for any, as on the last stage, where there is
/// no such task.
fn waits_for(task: Task) -> Option<Task> {
    let stage = match task.instruction {
        Instruction::Forward(_) => task.stage.checked_sub(1)?,
        Instruction::Backward(_) => task.stage.checked_add(1)?,
        Instruction::Recompute(_) => return None,
    };
    Some(Task { stage, ..task })
}

fn shift(trace: &mut PipelineTrace, by_ms: f64) {
    for span in &mut trace.spans {
        span.start_ms += by_ms;
        span.end_ms += by_ms;
    }
    for end in &mut trace.ends {
        let times = [
            &mut end.rings_from_ms,
            &mut end.rings_to_ms,
            &mut end.optimizer_from_ms,
            &mut end.ms,
        ];
        times.into_iter().for_each(|time| *time += by_ms);
    }
}

#[cfg(test)]
mod tests;
