//! Sentences about the checkpoint store.

use super::count;
use varuna_plan::Step;
use varuna_run_folder::CheckpointEvent;

/// The sentence about a change in the checkpoint store.
pub(crate) fn of_checkpoint(event: &CheckpointEvent) -> String {
    match event {
        CheckpointEvent::Checkpointed { step, .. } => format!("checkpoint of step {step} is complete"),
        CheckpointEvent::CheckpointsFail { why, newest_step } => {
            let newest = newest_step.map_or("there is none yet".into(), |s| {
                format!("the newest is of step {s}")
            });
            format!("checkpoints are failing ({newest}): {why}")
        }
        CheckpointEvent::CheckpointStale {
            newest_step: Step(0),
            steps_behind,
        } => format!("there is no checkpoint after {}", count(*steps_behind, "step")),
        CheckpointEvent::CheckpointStale {
            newest_step,
            steps_behind,
        } => format!(
            "checkpoints are falling behind: the newest is of step {newest_step}, {} ago",
            count(*steps_behind, "step")
        ),
        CheckpointEvent::ShardMisread { state, unit, by } => format!(
            "{by} has read {unit} of the checkpoint of step {} as damaged, and it is sound: that machine's memory or disk cache may be bad",
            state.step
        ),
        CheckpointEvent::CheckpointsTaken { by } => {
            format!("run {by} has taken over the checkpoint location: this run ends")
        }
    }
}
