//! Schedules for people.

use super::generate;
use crate::document::ScheduleSpec;

/// One line a stage: `stage 0: f0 f1 b0 ...`, by the schedule of each stage of a pipeline.
#[must_use]
pub fn text(specs: &[ScheduleSpec], micro_batches: u32) -> String {
    let line = |(stage, spec): (usize, &ScheduleSpec)| {
        let list = generate(spec, specs.len(), stage, micro_batches);
        let words: Vec<String> = list.iter().map(ToString::to_string).collect();
        format!("stage {stage}: {}\n", words.join(" "))
    };
    specs.iter().enumerate().map(line).collect()
}
