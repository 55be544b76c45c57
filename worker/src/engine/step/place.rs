//! Where a worker's stages stand in their pipeline.

use varuna_plan::{Pipeline, Plan, Recompute, SegmentRange, WorkerId};

/// One of the worker's stages.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Index in its pipeline.
    pub(super) stage: usize,
    pub(super) segments: SegmentRange,
    /// What it keeps of forwards that are recomputed.
    pub(super) recompute: Recompute,
    /// Neighbours in the pipeline.
    pub(super) previous: Option<WorkerId>,
    pub(super) next: Option<WorkerId>,
}

impl Place {
    pub(super) fn of(plan: &Plan, pipeline: &Pipeline, stage: usize) -> Place {
        let of = &pipeline.stages[stage];
        Place {
            stage,
            segments: of.segments,
            recompute: plan.shape.schedule_of(of).recompute,
            previous: stage.checked_sub(1).map(|p| pipeline.stages[p].worker),
            next: pipeline.stages.get(stage + 1).map(|s| s.worker),
        }
    }
}

/// Stage indices on the wire.
pub(super) fn small(stage: usize) -> u32 {
    u32::try_from(stage).unwrap_or(u32::MAX)
}
