//! Schedules for people.

use super::{Task, lists};
use crate::document::ScheduleSpec;

/// One line a worker, by the schedule of each stage of a pipeline: `stage 0: f0 f1 b0 ...`, or, where workers have several
/// stages, `worker 0: 0f0 0f1 2f0 ...` with the stage before each instruction.
#[must_use]
pub fn text(specs: &[ScheduleSpec], micro_batches: u32) -> String {
    let several = specs.first().is_some_and(|s| s.kind.chunks() > 1);
    let word = |task: &Task| match several {
        true => format!("{}{}", task.stage, task.instruction),
        false => task.instruction.to_string(),
    };
    let line = |(worker, list): (usize, Vec<Task>)| {
        let words: Vec<String> = list.iter().map(word).collect();
        let who = if several { "worker" } else { "stage" };
        format!("{who} {worker}: {}\n", words.join(" "))
    };
    lists(specs, micro_batches)
        .into_iter()
        .enumerate()
        .map(line)
        .collect()
}
