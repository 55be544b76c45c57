use super::*;
use crate::check::check_shape;
use crate::cost::{Costs, Device};
use crate::planner::{Constraints, CostPlanner, PlanRequest, Planner};
use crate::schedule::{check, lists, stash_max};
use proptest::prelude::*;
use varuna_model::{Transformer, gpt2};

fn interleaved(chunks: u32, recompute: Recompute) -> ScheduleSpec {
    ScheduleSpec {
        kind: ScheduleKind::Interleaved { chunks },
        recompute,
    }
}

fn plain(recompute: Recompute) -> ScheduleSpec {
    ScheduleSpec {
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
        recompute,
    }
}

fn planner(min_depth: u32, schedules: Vec<ScheduleSpec>, memory: Option<u64>) -> CostPlanner {
    let gpt = Transformer {
        layers: 12,
        hidden_size: 256,
        sequence_length: 128,
        vocabulary_size: 100,
        ..gpt2::SMALL
    };
    CostPlanner {
        costs: Costs::estimate(&gpt.spec(), Device::CPU_CORE),
        constraints: Constraints {
            min_workers: 1,
            max_workers: 64,
            micro_batch_size: Some(1),
            min_depth,
            max_depth: None,
            schedules,
            device_memory_bytes: memory,
        },
    }
}

fn both() -> Vec<ScheduleSpec> {
    let mut all = vec![plain(Recompute::None)];
    all.extend([2, 3].map(|chunks| interleaved(chunks, Recompute::None)));
    all
}

fn request(planner: &CostPlanner, count: u64, batch: u64) -> PlanRequest {
    let worker = |id: u64| WorkerInfo::nominal(WorkerId(id * 7919), id.to_string());
    let workers = (1..=count).map(worker).collect();
    PlanRequest::first(workers, planner.costs.layout(), batch)
}

fn chunks(shape: &Shape) -> usize {
    shape.schedule.kind.chunks()
}

#[test]
fn deep_pipeline_with_few_micro_batches_is_interleaved() {
    let (with, without) = (
        planner(4, both(), None),
        planner(4, vec![plain(Recompute::None)], None),
    );
    let asked = request(&with, 4, 8);
    let (fast, slow) = (with.plan(&asked).unwrap(), without.plan(&asked).unwrap());
    assert!(chunks(&fast) > 1 && chunks(&slow) == 1);
    assert_eq!(fast.summary(), format!("P4xD1xV{}", chunks(&fast)));
    let (a, b) = (&fast.predicted, &slow.predicted);
    assert!(a.step_ms < b.step_ms * 0.95 && a.bubble < b.bubble, "{a:?} {b:?}");
    assert!((with.predicted_ms(&fast, &asked.workers).unwrap() / a.step_ms - 1.0).abs() < 1e-6);
    let explained = with.explain(&asked).unwrap();
    assert!(
        explained.runners_up.iter().any(|r| r.summary == "P4xD1"),
        "the plan without is named: {explained:?}"
    );
}

#[test]
fn more_workers_are_never_predicted_slower() {
    for min_depth in [2, 4] {
        let planner = planner(min_depth, both(), None);
        let mut before = f64::MAX;
        for n in u64::from(min_depth)..40 {
            let shape = planner.plan(&request(&planner, n, 32)).unwrap();
            let ms = shape.predicted.step_ms;
            assert!(
                ms <= before * EQUAL,
                "{n} workers, {}: {ms} after {before}",
                shape.summary()
            );
            before = before.min(ms);
        }
    }
}

#[test]
fn no_cut_can_be_moved_to_advantage() {
    for (workers, batch) in [(2, 4), (4, 8)] {
        let planner = planner(workers, both(), None);
        let asked = request(&planner, u64::from(workers), batch);
        let shape = planner.plan(&asked).unwrap();
        assert!(chunks(&shape) > 1);
        for at in 1..shape.pipelines[0].stages.len() {
            for forth in [true, false] {
                let mut other = shape.clone();
                let stages = &mut other.pipelines[0].stages;
                let end = stages[at].segments.start;
                let moved = if forth { end + 1 } else { end - 1 };
                (stages[at - 1].segments.end, stages[at].segments.start) = (moved, moved);
                if !stages[at - 1].segments.is_empty() && !stages[at].segments.is_empty() {
                    let ms = planner.predicted_ms(&other, &asked.workers).unwrap();
                    assert!(ms >= shape.predicted.step_ms * (1.0 - 1e-3), "{at} {forth}: {ms}");
                }
            }
        }
    }
}

#[test]
fn a_pipeline_that_is_always_full_gains_nothing_and_stays_plain() {
    let planner = planner(2, both(), None);
    assert_eq!(chunks(&planner.plan(&request(&planner, 2, 512)).unwrap()), 1);
}

#[test]
fn memory_of_all_stages_together_counts() {
    let roomy = planner(4, both(), None);
    let asked = request(&roomy, 4, 8);
    let shape = roomy.plan(&asked).unwrap();
    let need = |shape: &Shape| -> u64 {
        let p = &shape.pipelines[0];
        let workers = shape.schedule.kind.workers(p.stages.len());
        let of = |s: usize| {
            let range = p.stages[s].segments;
            let stash = stash_max(shape.schedule.kind, p.stages.len(), s, 8);
            roomy.costs.memory_bytes(range, stash, 1, Recompute::None)
        };
        let worker = |w: usize| (w..p.stages.len()).step_by(workers).map(of).sum();
        (0..workers).map(worker).max().unwrap()
    };
    let most = need(&shape);
    let fits = planner(4, both(), Some(most));
    assert!(chunks(&fits.plan(&asked).unwrap()) > 1);
    let tight = planner(4, both(), Some(most - 1)).plan(&asked).unwrap();
    assert!(need(&tight) < most, "{tight:?}");
}

#[test]
fn interleaved_plans_share_state_out_as_memory_was_counted() {
    let mut planner = planner(2, both(), None);
    // Over slow links few pipelines are faster: they have less to sum.
    planner.costs.device.bytes_per_s = 1e8;
    let mut asked = request(&planner, 8, 8);
    asked.layout = asked.layout.in_ranges(12);
    let pipelines_of = |held: u64| {
        let planner = planner.holding(held, &asked.layout);
        let decision = planner.decide_holding(&asked, held, None).unwrap();
        decision.shape.pipelines.len()
    };
    assert!(pipelines_of(asked.layout.ranges_held(1)) < 4);
    // Memory is counted for workers of four pipelines. There is such a plan, whatever fewer pipelines would reach.
    assert_eq!(pipelines_of(asked.layout.ranges_held(4)), 4);
}

#[test]
fn interleaved_plan_has_the_least_number_of_workers() {
    let mut planner = planner(2, both(), None);
    planner.constraints.max_depth = Some(2);
    let asked = request(&planner, 8, 6);
    let workers = |planner: &CostPlanner| planner.plan(&asked).unwrap().members().len();
    assert_eq!(workers(&planner), 6, "three groups of two micro-batches");
    planner.constraints.min_workers = 8;
    assert_eq!(workers(&planner), 8);
}

#[test]
fn a_slow_worker_of_an_interleaved_pipeline_gets_fewer_segments() {
    let planner = planner(4, both(), None);
    let mut asked = request(&planner, 4, 8);
    asked.workers[1].speed = 0.5;
    let shape = planner.plan(&asked).unwrap();
    assert!(chunks(&shape) > 1, "{shape:?}");
    let held = |id: u64| -> u32 {
        let ranges = shape.segments_of(WorkerId(id * 7919));
        ranges.iter().map(|r| r.len()).sum()
    };
    assert!(held(2) < held(1) && held(2) < held(3), "{shape:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn interleaved_plans_pass_both_checkers_and_are_stable(
        count in 1u64..14, batch in 1u64..40, min_depth in 1u32..5, gone in 0usize..14
    ) {
        let with = planner(min_depth, both(), None);
        let without = planner(min_depth, vec![plain(Recompute::None)], None);
        let asked = request(&with, count, batch);
        let ids: Vec<WorkerId> = asked.workers.iter().map(|w| w.id).collect();
        let (Ok(shape), Ok(slow)) = (with.plan(&asked), without.plan(&asked)) else {
            prop_assert!(count < u64::from(min_depth));
            return Ok(());
        };
        prop_assert_eq!(check_shape(&shape, &asked.layout, batch, &ids), Ok(()));
        prop_assert!(shape.predicted.step_ms <= slow.predicted.step_ms);
        for p in &shape.pipelines {
            let n = u32::try_from(p.micro_batches(shape.micro_batch_size)).unwrap();
            let specs: Vec<ScheduleSpec> = p.stages.iter().map(|s| shape.schedule_of(s)).collect();
            let most: Vec<u32> = (0..specs.len()).map(|s| stash_max(specs[s].kind, specs.len(), s, n)).collect();
            prop_assert_eq!(check::check(&specs, &lists(&specs, n), n, &most), Ok(()));
        }
        // Planned again, the plan stays the same. Without one of its workers it is still a valid plan.
        let again = asked.clone().after(shape.clone());
        prop_assert_eq!(with.plan(&again), Ok(shape));
        let mut fewer = again;
        fewer.workers.remove(gone % fewer.workers.len());
        if let Ok(shape) = with.plan(&fewer) {
            let ids: Vec<WorkerId> = fewer.workers.iter().map(|w| w.id).collect();
            prop_assert_eq!(check_shape(&shape, &fewer.layout, batch, &ids), Ok(()));
        }
    }
}
