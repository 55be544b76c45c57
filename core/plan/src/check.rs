//! The plan checker: judges any plan, and shares no code with the planner.

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
        /// Which stage (the number of stages: the pipeline ends early or late).
        stage: usize,
        /// Where it had to start.
        expected: u32,
        /// Where it starts.
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
    /// The stages of an interleaved pipeline do not go round its workers, two at least, in whole rounds.
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
    /// An interleaved pipeline's micro-batches are no whole groups.
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
    /// A micro-batch holds nothing.
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
    Stranger(WorkerId),
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
    if !micro_batches.is_multiple_of(workers as u64) {
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
            if s.segments.start != segment {
                return Err(PlanError::Cover {
                    pipeline,
                    stage,
                    expected: segment,
                    found: s.segments.start,
                });
            }
            if s.segments.end <= s.segments.start {
                return Err(PlanError::EmptyStage { pipeline, stage });
            }
            segment = s.segments.end;
            if stage < round && !placed.insert(s.worker) {
                return Err(PlanError::Twice(s.worker));
            }
            if !offered.contains(&s.worker) {
                return Err(PlanError::Stranger(s.worker));
            }
        }
        if segment != layout.segments {
            let stage = p.stages.len();
            return Err(PlanError::Cover {
                pipeline,
                stage,
                expected: layout.segments,
                found: segment,
            });
        }
        let (start, end) = (p.samples.start, p.samples.end);
        if start != sample || end <= start {
            return Err(PlanError::Samples {
                pipeline,
                start,
                end,
                expected: sample,
            });
        }
        sample = end;
    }
    if sample != batch {
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

/// Judges a whole plan: its shape, and that everyone in it can be reached and every unit can be had.
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
        if !plan.addresses.contains_key(worker) {
            return Err(PlanError::Address(*worker));
        }
    }
    let stored = matches!(plan.base, crate::document::Base::Fixed { checkpoint: true, .. });
    let mut units = plan.layout.all_units();
    match units.find(|u| !stored && plan.sources[u.index()].is_empty()) {
        Some(unit) => Err(PlanError::Unsourced(unit)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{
        Base, Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Spare, Stage,
    };
    use crate::ids::Generation;
    use crate::layout::SegmentRange;
    use crate::state::StateId;

    const LAYOUT: Layout = Layout {
        segments: 4,
        tied: true,
    };

    fn stage(worker: u64, start: u32, end: u32) -> Stage {
        Stage {
            recompute: None,
            worker: WorkerId(worker),
            segments: SegmentRange { start, end },
        }
    }

    fn sound() -> Shape {
        Shape {
            pipelines: vec![
                Pipeline {
                    stages: vec![stage(1, 0, 3), stage(2, 3, 4)],
                    samples: SampleRange { start: 0, end: 5 },
                },
                Pipeline {
                    stages: vec![stage(3, 0, 4)],
                    samples: SampleRange { start: 5, end: 8 },
                },
            ],
            spares: vec![Spare {
                worker: WorkerId(4),
                reason: "it would make a step slower".into(),
            }],
            micro_batch_size: 2,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        }
    }

    fn verdict(change: impl FnOnce(&mut Shape)) -> Result<(), PlanError> {
        let mut shape = sound();
        change(&mut shape);
        check_shape(
            &shape,
            &LAYOUT,
            8,
            &[WorkerId(1), WorkerId(2), WorkerId(3), WorkerId(4)],
        )
    }

    #[test]
    fn a_sound_shape_passes_and_each_damage_is_named() {
        assert_eq!(verdict(|_| {}), Ok(()));
        assert_eq!(verdict(|s| s.pipelines.clear()), Err(PlanError::Empty));
        assert_eq!(verdict(|s| s.micro_batch_size = 0), Err(PlanError::MicroBatch));
        let gap = verdict(|s| s.pipelines[0].stages[1].segments.start = 2);
        assert_eq!(
            gap,
            Err(PlanError::Cover {
                pipeline: 0,
                stage: 1,
                expected: 3,
                found: 2
            })
        );
        let short = verdict(|s| s.pipelines[1].stages[0].segments.end = 3);
        assert_eq!(
            short,
            Err(PlanError::Cover {
                pipeline: 1,
                stage: 1,
                expected: 4,
                found: 3
            })
        );
        let twice = verdict(|s| s.pipelines[1].stages[0].worker = WorkerId(1));
        assert_eq!(twice, Err(PlanError::Twice(WorkerId(1))));
        let stranger = verdict(|s| s.pipelines[1].stages[0].worker = WorkerId(9));
        assert_eq!(stranger, Err(PlanError::Stranger(WorkerId(9))));
        let doubled = verdict(|s| s.pipelines[1].samples.start = 4);
        assert_eq!(
            doubled,
            Err(PlanError::Samples {
                pipeline: 1,
                start: 4,
                end: 8,
                expected: 5
            })
        );
        let dropped = verdict(|s| s.pipelines[1].samples.end = 7);
        assert_eq!(
            dropped,
            Err(PlanError::Batch {
                expected: 8,
                found: 7
            })
        );
        assert_eq!(
            verdict(|s| s.spares.clear()),
            Err(PlanError::Forgotten(WorkerId(4)))
        );
        assert_eq!(
            verdict(|s| s.spares[0].reason.clear()),
            Err(PlanError::Spare(WorkerId(4)))
        );
    }

    #[test]
    fn an_interleaved_pipeline_goes_round_its_workers_with_whole_groups() {
        let sound = |shape: &mut Shape| {
            shape.schedule.kind = ScheduleKind::Interleaved { chunks: 2 };
            shape.micro_batch_size = 1;
            let stages = [(1, 0, 1), (2, 1, 2), (1, 2, 3), (2, 3, 4)];
            shape.pipelines.truncate(1);
            shape.pipelines[0].stages = stages.map(|(w, a, b)| stage(w, a, b)).to_vec();
            shape.pipelines[0].samples.end = 8;
            shape.spares.push(Spare {
                worker: WorkerId(3),
                ..shape.spares[0].clone()
            });
        };
        assert_eq!(verdict(sound), Ok(()));
        let broken = |change: fn(&mut Shape)| {
            verdict(|shape| {
                sound(shape);
                change(shape);
            })
        };
        let rounds = |chunks| {
            Err(PlanError::Rounds {
                pipeline: 0,
                stages: 4,
                chunks,
            })
        };
        assert_eq!(
            broken(|s| s.pipelines[0].stages[2].worker = WorkerId(2)),
            rounds(2)
        );
        for chunks in [0, 1, 3, 4] {
            let kind = ScheduleKind::Interleaved { chunks };
            let verdict = verdict(|shape| {
                sound(shape);
                shape.schedule.kind = kind;
            });
            assert_eq!(verdict, rounds(chunks as usize), "{kind:?}");
        }
        let groups = PlanError::Groups {
            pipeline: 0,
            micro_batches: 3,
            workers: 2,
        };
        assert_eq!(broken(|s| s.micro_batch_size = 3), Err(groups));
        let twice = broken(|s| {
            let p = s.pipelines[0].clone();
            s.pipelines.push(p);
        });
        assert_eq!(twice, Err(PlanError::Twice(WorkerId(1))));
    }

    #[test]
    fn an_interleaved_pipeline_has_two_workers_at_least_and_whole_rounds_of_any_length() {
        let verdict = |workers: &[u64], chunks: u32| {
            let mut shape = sound();
            let segments = workers.len() as u32;
            shape.schedule.kind = ScheduleKind::Interleaved { chunks };
            shape.micro_batch_size = 1;
            shape.spares.clear();
            shape.pipelines.truncate(1);
            let stages = (0..).zip(workers).map(|(i, w)| stage(*w, i, i + 1));
            shape.pipelines[0].stages = stages.collect();
            shape.pipelines[0].samples.end = 6;
            let offered: BTreeSet<WorkerId> = workers.iter().copied().map(WorkerId).collect();
            let offered: Vec<WorkerId> = offered.into_iter().collect();
            let tied = true;
            check_shape(&shape, &Layout { segments, tied }, 6, &offered)
        };
        let rounds = |stages, chunks| {
            Err(PlanError::Rounds {
                pipeline: 0,
                stages,
                chunks,
            })
        };
        assert_eq!(verdict(&[1, 2, 3, 1, 2, 3], 2), Ok(()));
        assert_eq!(verdict(&[1, 2, 1, 2, 1, 2], 3), Ok(()));
        assert_eq!(verdict(&[1, 1, 1, 1], 4), rounds(4, 4));
        assert_eq!(verdict(&[1, 2, 1, 2, 1], 2), rounds(5, 2));
    }

    fn whole() -> Plan {
        let shape = sound();
        Plan {
            generation: Generation(2),
            parent: Generation(1),
            base: Base::AtSwitch { from: Generation(1) },
            layout: LAYOUT,
            sources: vec![vec![WorkerId(1)]; LAYOUT.units()],
            addresses: shape
                .members()
                .into_iter()
                .map(|w| (w, "host:1".into()))
                .collect(),
            shape,
            deadline: crate::deadline::StepDeadline::of_ms(1),
            relay: false,
            tree_fan_out: 2,
            evidence: Vec::new(),
            reason: String::new(),
            index: crate::document::PlanIndex::default(),
        }
    }

    #[test]
    fn a_plan_needs_sources_for_each_unit_and_an_address_for_everyone() {
        let verdict = |change: fn(&mut Plan)| {
            let mut plan = whole();
            change(&mut plan);
            check_plan(&plan, 8)
        };
        assert_eq!(verdict(|_| {}), Ok(()));
        let short = verdict(|p| p.sources.truncate(3));
        assert_eq!(
            short,
            Err(PlanError::Sources {
                expected: 5,
                found: 3
            })
        );
        assert_eq!(
            verdict(|p| p.sources[4].clear()),
            Err(PlanError::Unsourced(Unit(4)))
        );
        let unreachable = verdict(|p| drop(p.addresses.remove(&WorkerId(2))));
        assert_eq!(unreachable, Err(PlanError::Address(WorkerId(2))));
        assert_eq!(
            verdict(|p| p.sources[0].push(WorkerId(8))),
            Err(PlanError::Address(WorkerId(8)))
        );
        let stored = |p: &mut Plan| {
            p.sources.iter_mut().for_each(Vec::clear);
            p.base = Base::Fixed {
                id: StateId::INITIAL,
                decision: None,
                checkpoint: true,
            };
        };
        assert_eq!(verdict(stored), Ok(()), "the checkpoint gives what nobody holds");
    }
}
