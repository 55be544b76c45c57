//! Sentences about the checkpoint store.

use super::count;
use varuna_plan::Step;
use varuna_run_folder::CheckpointEvent;

/// The sentence about a change in the checkpoint store.
pub(crate) fn of_checkpoint(event: &CheckpointEvent) -> String {
    match event {
        CheckpointEvent::Checkpointed { step, .. } => format!("checkpoint of step {step} is complete"),
        CheckpointEvent::CheckpointsFail { why, newest_step } => {
            format!("checkpoints are failing ({}): {why}", newest(*newest_step))
        }
        CheckpointEvent::CheckpointsWork { newest_step } => {
            format!("checkpoints work again ({})", newest(*newest_step))
        }
        CheckpointEvent::LastCheckpointAwaited { step, why } => {
            let why = why.as_ref().map_or(String::new(), |why| format!(": {why}"));
            format!(
                "all {} are done, and the run ends as soon as the checkpoint of the last one is complete{why}",
                count(step.0, "step")
            )
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

fn newest(step: Option<Step>) -> String {
    step.map_or("there is none yet".to_owned(), |step| {
        format!("the newest is of step {step}")
    })
}
