//! Converts what a coordinator publishes to what decisions are made from, and selects the changes that need a reconciliation. Pure.

use crate::decide::{ObservedRun, RunEnd};
use varuna_coordinator::{CoordinatorError, Outcome, RunMode, View};
use varuna_plan::Layout;

/// What decisions use of a coordinator's view.
pub(super) fn observed_run(view: &View, address: (String, u16), ended: Option<RunEnd>) -> ObservedRun {
    ObservedRun {
        snapshot: view.snapshot.clone(),
        loss: view.metric.as_ref().map(|m| m.loss),
        skipped_steps: view.metric.as_ref().map(|m| m.skipped_steps),
        loss_scale: view.metric.as_ref().and_then(|m| m.loss_scale),
        // Before it has read its record it may not know them all.
        checkpoints: view.snapshot.as_ref().and(view.checkpoints.clone()),
        address: Some(address),
        ended,
    }
}

/// A change of this makes the job be reconciled at once: mode, generation, members and attached workers.
pub(super) fn urgent_part(view: &View) -> Option<(RunMode, u64, usize, usize)> {
    let s = view.snapshot.as_ref()?;
    let attached = s.workers.iter().filter(|w| w.up).count();
    Some((s.run.mode, s.run.generation.0, s.run.members, attached))
}

/// How a coordinator ended.
pub(super) fn run_end(result: Result<Outcome, CoordinatorError>, layout: &Layout) -> RunEnd {
    match result {
        Err(CoordinatorError::CheckpointsTaken { run }) => RunEnd::CheckpointsTaken(run),
        Err(error) => RunEnd::Failed(error.to_string()),
        Ok(Outcome::Done) => RunEnd::Done,
        Ok(Outcome::Stopped) => RunEnd::Stopped,
        Ok(Outcome::StateLost { units }) => RunEnd::StateLost(layout.name(&units)),
        Ok(Outcome::Diverged(divergence)) => RunEnd::Diverged(divergence.to_string()),
        Ok(Outcome::Deposed) => RunEnd::Failed("another coordinator has taken over".into()),
    }
}
