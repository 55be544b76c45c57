//! When each task of a step ran. One step of each plan is measured so, for the picture of a step.

use super::super::EngineError;
use super::Run;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use varuna_plan::measured_step::{MeasuredTask, MeasuredWork, TASKS_MAX};
use varuna_plan::schedule::Task;
use varuna_torch::Mark;

/// When a worker ran its tasks of a step.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// When the first of them could begin.
    pub began: Instant,
    /// The same by the system's clock, microseconds since 1970.
    pub began_us: u64,
    /// All of them, in the order in which they ran.
    pub tasks: Vec<MeasuredTask>,
    /// When the gradients were reduced, from `began` on.
    pub reduced: Duration,
}

impl Timeline {
    /// Adds the optimizer, which has just ended and took this long.
    #[must_use]
    pub fn with_optimizer(self, took: Duration) -> MeasuredWork {
        let ended = self.began.elapsed();
        MeasuredWork {
            began_us: self.began_us,
            tasks: self.tasks,
            reduced_us: microseconds(self.reduced),
            optimizer_from_us: microseconds(ended.saturating_sub(took)),
            optimizer_to_us: microseconds(ended),
        }
    }
}

/// The marks of a step that is measured.
pub(super) struct TaskMarks {
    began: Instant,
    began_us: u64,
    start: Mark,
    /// Each task, and which of the step's timings are its own.
    tasks: Vec<(Task, Range<usize>)>,
}

impl TaskMarks {
    /// Another task was handed over, with these timings.
    pub(super) fn add(&mut self, task: Task, segment_timings: Range<usize>) {
        self.tasks.push((task, segment_timings));
    }
}

impl Run<'_> {
    /// The step's tasks begin.
    pub(super) fn begin_timeline(&self, tasks: usize) -> Result<Option<TaskMarks>, EngineError> {
        if !self.is_measured || tasks > TASKS_MAX {
            return Ok(None);
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Some(TaskMarks {
            began: Instant::now(),
            began_us: microseconds(since_1970),
            start: self.mark()?,
            tasks: Vec::with_capacity(tasks),
        }))
    }

    /// All tasks, as the device's clock has them, of a step whose gradients were reduced at `ended`. The device has done all of it, and the timings were
    /// not taken yet.
    pub(super) fn timeline(&mut self, ended: Instant) -> Result<Option<Timeline>, EngineError> {
        let Some(marks) = self.task_marks.take() else {
            return Ok(None);
        };
        let reduced = ended.duration_since(marks.began);
        let mut tasks = Vec::with_capacity(marks.tasks.len());
        for (task, segment_timings) in marks.tasks {
            let own = &self.marked[segment_timings];
            let (Some(first), Some(last)) = (own.first(), own.last()) else {
                continue;
            };
            tasks.push(MeasuredTask {
                stage: u32::try_from(task.stage).unwrap_or(u32::MAX),
                instruction: task.instruction,
                from_us: microseconds(first.start.since(&marks.start)?),
                to_us: microseconds(last.end.since(&marks.start)?),
            });
        }
        Ok(Some(Timeline {
            began: marks.began,
            began_us: marks.began_us,
            tasks,
            reduced,
        }))
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
