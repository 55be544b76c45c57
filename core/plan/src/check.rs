//! The plan checker. It judges any plan and shares no code with the planner.

use crate::document::{Plan, ScheduleKind, Shape, Stage};
use crate::ids::{Unit, WorkerId};
use crate::layout::Layout;
use std::collections::BTreeSet;

/// Why a plan must not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is nothing to run.
    #[error("the plan has no pipeline")]
    Empty,
    /// A pipeline does not cover the segments 0..n in order.
    #[error("pipeline {pipeline}: stage {stage} starts at segment {found}, expected {expected}")]
    Cover {
        /// Index of the pipeline.
        pipeline: usize,
        /// Index of the stage; the number of stages if the pipeline ends too early or too late.
        stage: usize,
        /// Where it had to start.
        expected: u32,
        /// The offset at which it starts.
        found: u32,
    },
    /// A stage without segments.
    #[error("pipeline {pipeline}: stage {stage} has no segment")]
    EmptyStage {
        /// Index of the pipeline.
        pipeline: usize,
        /// Index of the stage in its pipeline.
        stage: usize,
    },
    /// A worker has two places.
    #[error("worker {0} has more than one place")]
    Twice(WorkerId),
    /// The stages of an interleaved pipeline do not go round its workers (at least two) in whole rounds.
    #[error(
        "pipeline {pipeline}: {stages} stages do not make {chunks} rounds of at least 2 workers in one order"
    )]
    Rounds {
        /// Index of the pipeline.
        pipeline: usize,
        /// Number of its stages.
        stages: usize,
        /// Rounds that the schedule names.
        chunks: usize,
    },
    /// The micro-batches of an interleaved pipeline do not make whole groups.
    #[error(
        "pipeline {pipeline} interleaves {micro_batches} micro-batches, no multiple of its {workers} workers"
    )]
    Groups {
        /// Index of the pipeline.
        pipeline: usize,
        /// Micro-batches in a step.
        micro_batches: u64,
        /// Number of its workers.
        workers: usize,
    },
    /// Samples are missing, doubled, or a pipeline has none.
    #[error("pipeline {pipeline} takes samples {start}..{end}, expected a non-empty range from {expected}")]
    Samples {
        /// Index of the pipeline.
        pipeline: usize,
        /// Start of its range.
        start: u64,
        /// End of its range.
        end: u64,
        /// Where it had to start.
        expected: u64,
    },
    /// The pipelines' samples do not add up to the batch.
    #[error("the pipelines take {found} samples of a batch of {expected}")]
    Batch {
        /// The global batch size.
        expected: u64,
        /// The end of the last pipeline's range.
        found: u64,
    },
    /// A micro-batch has no samples.
    #[error("the micro-batch size is 0")]
    MicroBatch,
    /// An offered worker is neither used nor named a spare.
    #[error("worker {0} is neither used nor named a spare")]
    Forgotten(WorkerId),
    /// A spare without a reason, or one that was not offered.
    #[error("spare {0} has no reason or was not offered")]
    Spare(WorkerId),
    /// A member that was not offered.
    #[error("worker {0} has a stage but was not offered")]
    NotOffered(WorkerId),
    /// Sources do not match the units.
    #[error("the plan lists sources for {found} units of {expected}")]
    Sources {
        /// Units of the layout.
        expected: usize,
        /// Entries in the plan.
        found: usize,
    },
    /// A member or source has no address.
    #[error("worker {0} has no address")]
    Address(WorkerId),
    /// Keepers of spare copies do not match the units.
    #[error("the plan lists keepers of spare copies for {found} units of {expected}")]
    Keepers {
        /// Units of the layout.
        expected: usize,
        /// Entries in the plan.
        found: usize,
    },
    /// A spare copy is assigned to a worker that cannot keep it, or is not needed.
    #[error(
        "worker {keeper} keeps a spare copy of unit {unit}: a member that does not hold it is allowed, where one other does"
    )]
    Keeper {
        /// The unit.
        unit: Unit,
        /// The worker that would keep it.
        keeper: WorkerId,
    },
    /// Parameters are to be sent first where that is not possible.
    #[error(
        "the plan sends parameters first: that is allowed if some member lacks state at a known base, and the first sources of all that members lack are members"
    )]
    ParametersFirst,
    /// A unit has neither a source nor a checkpoint.
    #[error("unit {0} has no source, and the plan names no checkpoint")]
    Unsourced(Unit),
}

/// How many of a pipeline's stages the first round takes: all, unless it is interleaved.
fn check_rounds(shape: &Shape, pipeline: usize) -> Result<usize, PlanError> {
    let chunks = match shape.schedule.kind {
        ScheduleKind::Interleaved { chunks } => chunks as usize,
        ScheduleKind::Gpipe | ScheduleKind::OneForwardOneBackward { .. } => {
            return Ok(shape.pipelines[pipeline].stages.len());
        }
    };
    let stages = &shape.pipelines[pipeline].stages;
    let workers = stages.len() / chunks.max(1);
    let again = |(s, stage): (usize, &Stage)| stage.worker == stages[s % workers].worker;
    if chunks < 2 || workers < 2 || workers * chunks != stages.len() || !stages.iter().enumerate().all(again)
    {
        return Err(PlanError::Rounds {
            pipeline,
            stages: stages.len(),
            chunks,
        });
    }
    let micro_batches = shape.pipelines[pipeline].micro_batches(shape.micro_batch_size);
    if !micro_batches.is_multiple_of(workers as u64) && !bug!(AllowPartOfGroup) {
        return Err(PlanError::Groups {
            pipeline,
            micro_batches,
            workers,
        });
    }
    Ok(workers)
}

/// Judges a shape against what it was made from.
///
/// # Errors
/// The first violation found.
pub fn check_shape(
    shape: &Shape,
    layout: &Layout,
    batch: u64,
    offered: &[WorkerId],
) -> Result<(), PlanError> {
    if shape.pipelines.is_empty() {
        return Err(PlanError::Empty);
    }
    if shape.micro_batch_size == 0 {
        return Err(PlanError::MicroBatch);
    }
    let offered: BTreeSet<WorkerId> = offered.iter().copied().collect();
    let mut placed = BTreeSet::new();
    let mut sample = 0;
    for (pipeline, p) in shape.pipelines.iter().enumerate() {
        let round = check_rounds(shape, pipeline)?;
        let mut segment = 0;
        for (stage, s) in p.stages.iter().enumerate() {
            if s.segments.start != segment && !bug!(AllowGap) {
                return Err(PlanError::Cover {
                    pipeline,
                    stage,
                    expected: segment,
                    found: s.segments.start,
                });
            }
            if s.segments.end <= s.segments.start && !bug!(AllowEmptyStage) {
                return Err(PlanError::EmptyStage { pipeline, stage });
            }
            segment = s.segments.end;
            if stage < round && !placed.insert(s.worker) && !bug!(AllowWorkerTwice) {
                return Err(PlanError::Twice(s.worker));
            }
            if !offered.contains(&s.worker) && !bug!(AllowStranger) {
                return Err(PlanError::NotOffered(s.worker));
            }
        }
        if segment != layout.segments && !bug!(AllowShortPipeline) {
            let stage = p.stages.len();
            return Err(PlanError::Cover {
                pipeline,
                stage,
                expected: layout.segments,
                found: segment,
            });
        }
        let (start, end) = (p.samples.start, p.samples.end);
        if (start != sample && !bug!(AllowSampleTwice)) || end <= start {
            return Err(PlanError::Samples {
                pipeline,
                start,
                end,
                expected: sample,
            });
        }
        sample = end;
    }
    if sample != batch && !bug!(AllowShortBatch) {
        return Err(PlanError::Batch {
            expected: batch,
            found: sample,
        });
    }
    for spare in &shape.spares {
        if spare.reason.trim().is_empty() || !offered.contains(&spare.worker) {
            return Err(PlanError::Spare(spare.worker));
        }
        if !placed.insert(spare.worker) {
            return Err(PlanError::Twice(spare.worker));
        }
    }
    offered
        .difference(&placed)
        .next()
        .map_or(Ok(()), |w| Err(PlanError::Forgotten(*w)))
}

/// Judges a whole plan: its shape, that every worker in it has an address, and that every unit has a source.
///
/// # Errors
/// The first violation found.
pub fn check_plan(plan: &Plan, batch: u64) -> Result<(), PlanError> {
    let mut offered = plan.members().to_vec();
    offered.extend(plan.shape.spares.iter().map(|s| s.worker));
    check_shape(&plan.shape, &plan.layout, batch, &offered)?;
    if plan.sources.len() != plan.layout.units() {
        return Err(PlanError::Sources {
            expected: plan.layout.units(),
            found: plan.sources.len(),
        });
    }
    for worker in plan.members().iter().chain(plan.sources.iter().flatten()) {
        if !plan.addresses.contains_key(worker) && !bug!(AllowUnreachable) {
            return Err(PlanError::Address(*worker));
        }
    }
    check_keepers(plan)?;
    if plan.parameters_first && !plan.can_send_parameters_first() && !bug!(AllowParametersOfStranger) {
        return Err(PlanError::ParametersFirst);
    }
    let stored = matches!(plan.base, crate::document::Base::Fixed { checkpoint: true, .. });
    let mut units = plan.layout.all_units();
    match units.find(|u| !stored && plan.sources[u.index()].is_empty() && !bug!(AllowUnsourced)) {
        Some(unit) => Err(PlanError::Unsourced(unit)),
        None => Ok(()),
    }
}

/// Checks that spare copies are kept only of units with one holder, by members that do not hold them.
fn check_keepers(plan: &Plan) -> Result<(), PlanError> {
    let (expected, found) = (plan.layout.units(), plan.keepers.len());
    if found != 0 && found != expected {
        return Err(PlanError::Keepers { expected, found });
    }
    let kept = plan.layout.all_units().zip(&plan.keepers);
    let mut kept = kept.filter_map(|(unit, keeper)| Some((unit, (*keeper)?)));
    let sound = |unit: Unit, keeper: WorkerId| match plan.shape.holders(&plan.layout, unit)[..] {
        [holder] => (holder != keeper || bug!(AllowKeeperOfItsOwn)) && plan.members().contains(&keeper),
        _ => false,
    };
    match kept.find(|(unit, keeper)| !sound(*unit, *keeper)) {
        Some((unit, keeper)) => Err(PlanError::Keeper { unit, keeper }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
