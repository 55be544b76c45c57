use super::*;
use crate::document::{
    Base, Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Spare, Stage,
};
use crate::ids::Generation;
use crate::layout::SegmentRange;
use crate::state::StateId;

const LAYOUT: Layout = Layout::new(4, true);

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
    let empty = verdict(|s| {
        s.pipelines[0].stages[0].segments.end = 0;
        s.pipelines[0].stages[1].segments.start = 0;
    });
    assert_eq!(
        empty,
        Err(PlanError::EmptyStage {
            pipeline: 0,
            stage: 0
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
    let not_offered = verdict(|s| s.pipelines[1].stages[0].worker = WorkerId(9));
    assert_eq!(not_offered, Err(PlanError::NotOffered(WorkerId(9))));
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
fn interleaved_pipeline_takes_whole_groups() {
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
fn interleaved_pipeline_needs_two_workers_and_whole_rounds() {
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
        check_shape(&shape, &Layout::new(segments, tied), 6, &offered)
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
        following: false,
        parameters_first: false,
        keepers: Vec::new(),
        evidence: Vec::new(),
        reason: String::new(),
        index: crate::document::PlanIndex::default(),
    }
}

#[test]
fn plan_needs_sources_and_addresses() {
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

#[test]
fn spare_copies_are_kept_only_of_units_with_one_holder() {
    let verdict = |keepers: &[Option<u64>]| {
        let mut plan = whole();
        let alone = Pipeline {
            samples: SampleRange { start: 0, end: 8 },
            ..plan.shape.pipelines[0].clone()
        };
        plan.shape.pipelines = vec![alone];
        plan.shape.spares.push(Spare {
            worker: WorkerId(3),
            reason: "not needed".into(),
        });
        plan.keepers = keepers.iter().map(|k| k.map(WorkerId)).collect();
        check_plan(&plan, 8)
    };
    let refused = |unit, keeper| {
        let (unit, keeper) = (Unit(unit), WorkerId(keeper));
        Err(PlanError::Keeper { unit, keeper })
    };
    assert_eq!(verdict(&[]), Ok(()));
    assert_eq!(verdict(&[Some(2), Some(2), None, Some(1), None]), Ok(()));
    assert_eq!(
        verdict(&[Some(2)]),
        Err(PlanError::Keepers {
            expected: 5,
            found: 1
        })
    );
    let holds = verdict(&[Some(1), None, None, None, None]);
    assert_eq!(holds, refused(0, 1));
    let idle = verdict(&[None, None, None, Some(3), None]);
    assert_eq!(idle, refused(3, 3), "it has no stage");
    let twice = verdict(&[None, None, None, None, Some(1)]);
    assert_eq!(twice, refused(4, 1), "the tied weight has two holders");
}
