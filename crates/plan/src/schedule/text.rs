//! Schedules for people.

use super::generate;
use crate::document::ScheduleSpec;

/// One line a stage: `stage 0: f0 f1 b0 ...`.
#[must_use]
pub fn text(spec: &ScheduleSpec, stages: usize, micro_batches: u32) -> String {
    let line = |stage| {
        let list = generate(spec, stages, stage, micro_batches);
        let words: Vec<String> = list.iter().map(ToString::to_string).collect();
        format!("stage {stage}: {}\n", words.join(" "))
    };
    (0..stages).map(line).collect()
}
