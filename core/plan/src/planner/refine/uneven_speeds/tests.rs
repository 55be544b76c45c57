use super::*;
use crate::check::check_shape;
use crate::cost::{Costs, Device};
use crate::planner::{Constraints, CostPlanner, PlanRequest, Planner};
use proptest::prelude::*;
use varuna_model::{Transformer, gpt2};

fn planner(min_depth: u32, max_depth: u32) -> CostPlanner {
    let gpt = Transformer {
        layers: 10,
        hidden_size: 256,
        sequence_length: 64,
        vocabulary_size: 100,
        tied_head: false,
        ..gpt2::SMALL
    };
    CostPlanner {
        costs: Costs::estimate(&gpt.spec(), Device::CPU_CORE),
        constraints: Constraints {
            min_workers: 1,
            max_workers: u32::MAX,
            micro_batch_size: Some(1),
            min_depth,
            max_depth: Some(max_depth),
            schedules: vec![ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            }],
            device_memory_bytes: None,
        },
    }
}

fn request(planner: &CostPlanner, speeds: &[f64], parent: Option<Shape>) -> PlanRequest {
    let worker = |(id, speed): (u64, &f64)| WorkerInfo {
        speed: *speed,
        ..WorkerInfo::nominal(WorkerId(id), "")
    };
    let workers = (1..).zip(speeds).map(worker).collect();
    PlanRequest {
        parent,
        ..PlanRequest::first(workers, planner.costs.layout(), 24)
    }
}

fn of(shape: &Shape, worker: u64) -> (u32, u64) {
    let (i, j) = shape.place(WorkerId(worker)).unwrap();
    let pipeline = &shape.pipelines[i];
    let r = pipeline.stages[j].segments;
    (r.end - r.start, pipeline.samples.len())
}

#[test]
fn a_slow_stage_gets_fewer_segments_and_stays_where_it_is() {
    let planner = planner(3, 3);
    let even = planner.plan(&request(&planner, &[1.0; 3], None)).unwrap();
    let asked = request(&planner, &[1.0, 0.4, 1.0], Some(even.clone()));
    let shape = planner.plan(&asked).unwrap();
    let all: Vec<WorkerId> = asked.workers.iter().map(|w| w.id).collect();
    check_shape(&shape, &asked.layout, 24, &all).unwrap();
    assert_eq!(shape.place(WorkerId(2)), even.place(WorkerId(2)));
    assert!(of(&shape, 2).0 < of(&even, 2).0, "{shape:?}");
    let before = planner.predicted_ms(&even, &asked.workers).unwrap();
    assert!(
        shape.predicted.step_ms < before * 0.7,
        "{} of {before}",
        shape.predicted.step_ms
    );
}

#[test]
fn a_slow_pipeline_gets_fewer_samples() {
    let planner = planner(1, 1);
    let even = planner.plan(&request(&planner, &[1.0; 3], None)).unwrap();
    let asked = request(&planner, &[1.0, 1.0, 0.5], Some(even.clone()));
    let shape = planner.plan(&asked).unwrap();
    assert_eq!(
        shape.members().len(),
        3,
        "a worker of half the speed is still worth having"
    );
    assert!(of(&shape, 3).1 < of(&shape, 1).1, "{shape:?}");
    assert!(shape.predicted.step_ms < planner.predicted_ms(&even, &asked.workers).unwrap() * 0.75);
}

#[test]
fn a_prediction_at_equal_speeds_is_the_planners_own() {
    for (least, most) in [(1, 1), (3, 3)] {
        let planner = planner(least, most);
        let asked = request(&planner, &[1.0; 3], None);
        let shape = planner.plan(&asked).unwrap();
        let again = planner.predicted_ms(&shape, &asked.workers).unwrap();
        assert!(
            (again / shape.predicted.step_ms - 1.0).abs() < 1e-6,
            "{again} {shape:?}"
        );
    }
}

fn offered(asked: &PlanRequest) -> BTreeMap<WorkerId, &WorkerInfo> {
    asked.workers.iter().map(|w| (w.id, w)).collect()
}

#[test]
fn redundant_plan_is_kept_against_a_slightly_faster_one() {
    let any = planner(1, 2);
    let asked = request(&any, &[1.0, 0.5], None);
    let problem = any.problem(&asked, 1);
    let [pair, single] = [1, 2].map(|depth| planner(depth, depth).plan(&asked).unwrap());
    assert_eq!([pair.pipelines.len(), single.pipelines.len()], [2, 1]);
    let fast = by_speed(&Holdings::new(&problem), &single, &offered(&asked)).unwrap();
    let instead_of_one_that_takes = |times: f64| {
        let mut other = pair.clone();
        other.predicted.step_ms = fast.predicted.step_ms * times;
        refine(&problem, &[Some(&single)], &other)
    };
    assert_eq!(instead_of_one_that_takes(1.005), None);
    assert_eq!(instead_of_one_that_takes(1.02), Some(fast.clone()));
}

#[test]
fn parent_of_more_workers_than_may_train_is_not_used() {
    let mut planner = planner(1, 1);
    let parent = planner.plan(&request(&planner, &[1.0; 4], None)).unwrap();
    assert_eq!(parent.members().len(), 4);
    planner.constraints.max_workers = 3;
    let asked = request(&planner, &[1.0, 1.0, 1.0, 0.9], Some(parent));
    assert_eq!(planner.plan(&asked).unwrap().members().len(), 3);
}

#[test]
fn equal_plans_are_ranked_by_memory_redundancy_and_speed() {
    let of = |exceeds_memory, missing_holders, effective_ms| Judged {
        exceeds_memory,
        missing_holders,
        effective_ms,
    };
    assert_eq!(preferred(&[of(false, 1, 100.5), of(true, 0, 100.0)]), 0);
    assert_eq!(preferred(&[of(true, 0, 100.0), of(false, 1, 100.9)]), 1);
    assert_eq!(preferred(&[of(false, 0, 102.0), of(true, 1, 100.0)]), 1);
    assert_eq!(preferred(&[of(false, 0, 100.0), of(false, 0, 99.9)]), 1);
    assert_eq!(preferred(&[of(false, 0, 100.0), of(false, 0, 100.0)]), 0);
    assert_eq!(preferred(&[of(false, 2, 100.0), of(false, 1, 100.9)]), 1);
}

#[test]
fn the_last_stage_runs_nothing_again_but_with_gpipe() {
    let planner = planner(1, 2);
    let asked = request(&planner, &[1.0, 1.0], None);
    let problem = planner.problem(&asked, 1);
    let costs = &planner.costs;
    let segments = costs.layout().segments;
    let ms = |start, end, is_run_again: bool| {
        let range = SegmentRange { start, end };
        let again = if is_run_again {
            costs.forward_ms(range, 1)
        } else {
            0.0
        };
        costs.forward_ms(range, 1) + costs.backward_ms(range, 1) + again
    };
    let alternating = ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 };
    for (kind, last) in [(alternating, false), (ScheduleKind::Gpipe, true)] {
        let spec = ScheduleSpec {
            kind,
            recompute: Recompute::Full,
        };
        let line: Line = asked.workers.iter().map(|w| (w, spec)).collect();
        let cut = cut_by_speed(&problem, 1, &line, 8).unwrap();
        let slowest = |at| f64::max(ms(0, at, true), ms(at, segments, last));
        let best = (1..segments).map(slowest).fold(f64::INFINITY, f64::min);
        assert!((cut.period_ms - best).abs() < 1e-9, "{kind:?}: {cut:?}, {best}");
    }
}

#[test]
fn with_gpipe_each_pipeline_needs_room_for_its_own_share_alone() {
    let mut planner = planner(1, 1);
    planner.constraints.schedules[0].kind = ScheduleKind::Gpipe;
    let asked = request(&planner, &[1.0, 0.8], None);
    let shape = planner.plan(&asked).unwrap();
    assert_eq!(shape.pipelines.len(), 2);
    let whole = planner.costs.layout().whole();
    let most = planner.costs.memory_bytes(whole, 14, 1, Recompute::None);
    planner.constraints.device_memory_bytes = Some(most);
    let problem = planner.problem(&asked, 1);
    let made = by_speed(&Holdings::new(&problem), &shape, &offered(&asked)).unwrap();
    assert!(of(&made, 1).1 > 12 && of(&made, 1).1 <= 14, "{made:?}");
    assert!(
        problem
            .memory_bytes(&made)
            .into_iter()
            .flatten()
            .all(|bytes| bytes <= most)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn equal_pipelines_are_cut_once(
        workers in prop::collection::vec((0_usize..3, prop::option::of(20_u64..200)), 4..16), depth in 1_usize..4, room in 1_u64..9
    ) {
        let planner = planner(1, 4);
        let info = |(id, (speed, mib)): (u64, &(usize, Option<u64>))| WorkerInfo {
            speed: [1.0, 0.7, 0.5][*speed],
            memory_bytes: mib.map(|m| m << 20),
            ..WorkerInfo::nominal(WorkerId(id), "")
        };
        let infos: Vec<WorkerInfo> = (1..).zip(&workers).map(info).collect();
        let asked = PlanRequest::first(infos.clone(), planner.costs.layout(), 24);
        let problem = planner.problem(&asked, 1);
        let spec = |i: usize| ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute: [Recompute::None, Recompute::Full][i % 2],
        };
        let all: Line = infos.iter().enumerate().map(|(i, w)| (w, spec(i))).collect();
        let lines: Vec<Line> = all.chunks_exact(depth).map(<[_]>::to_vec).collect();
        let room: Vec<u64> = (0..lines.len() as u64).map(|i| room + i % 2).collect();
        let each = lines.iter().zip(&room).map(|(line, room)| cut_by_speed(&problem, 1, line, *room));
        let direct: Option<Vec<PipelineCut>> = each.collect();
        prop_assert_eq!(cuts(&problem, 1, &lines, &room), direct);
    }
}
