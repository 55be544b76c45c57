mod departures;
mod exhaustive;

use super::search::choice::EQUAL;
use super::*;
use crate::check::check_shape;
use crate::cost::Device;
use crate::cost::halves::tests::whole_blocks;
use crate::document::{Recompute, ScheduleKind, ScheduleSpec};
use crate::ids::WorkerId;
use crate::schedule::stash_max;
use proptest::prelude::*;
use std::collections::BTreeSet;
use varuna_model::{Transformer, gpt2};

fn one_f_one_b(warmup_factor: f64) -> ScheduleSpec {
    ScheduleSpec {
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor },
        recompute: Recompute::None,
    }
}

fn every_policy(kind: ScheduleKind) -> Vec<ScheduleSpec> {
    [Recompute::Full, Recompute::None, Recompute::Selective]
        .map(|recompute| ScheduleSpec { kind, recompute })
        .to_vec()
}

/// A planner for a small model whose embedding and head share a weight.
pub(super) fn planner(min_depth: u32, memory: Option<u64>) -> CostPlanner {
    planner_of(6, min_depth, memory)
}

fn sizes(layers: u32) -> Transformer {
    Transformer {
        layers,
        hidden_size: 128,
        sequence_length: 128,
        vocabulary_size: 512,
        ..gpt2::SMALL
    }
}

fn planner_of(layers: u32, min_depth: u32, memory: Option<u64>) -> CostPlanner {
    CostPlanner {
        costs: Costs::estimate(&sizes(layers).spec(), Device::CPU_CORE),
        constraints: Constraints {
            min_workers: 1,
            max_workers: 64,
            micro_batch_size: None,
            min_depth,
            max_depth: None,
            schedules: vec![one_f_one_b(1.0)],
            device_memory_bytes: memory,
        },
    }
}

fn request(planner: &CostPlanner, count: u64, batch: u64) -> PlanRequest {
    let worker = |i| WorkerInfo::nominal(WorkerId(i * 7919), "n");
    let workers = (1..=count).map(worker).collect();
    PlanRequest::first(workers, planner.costs.layout(), batch)
}

fn ids(request: &PlanRequest) -> Vec<WorkerId> {
    request.workers.iter().map(|w| w.id).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_plan_passes_the_checker_and_is_a_fixpoint(
        count in 1u64..40, batch in 1u64..64, min_depth in 1u32..4, micro in prop::option::of(1u32..5)
    ) {
        let mut planner = planner(min_depth, None);
        planner.constraints.micro_batch_size = micro;
        let mut request = request(&planner, count, batch);
        match planner.plan(&request) {
            Err(why) => prop_assert!(count < u64::from(min_depth), "{}", why),
            Ok(shape) => {
                prop_assert_eq!(check_shape(&shape, &request.layout, batch, &ids(&request)), Ok(()));
                request.held = shape.members().into_iter().map(|w| (w, shape.units(&request.layout, w))).collect();
                request.parent = Some(shape.clone());
                prop_assert_eq!(planner.plan(&request), Ok(shape));
            }
        }
    }
}

#[test]
fn more_workers_are_never_predicted_slower() {
    let planner = planner(2, None);
    let mut before = f64::MAX;
    for n in 2..24 {
        let shape = planner.plan(&request(&planner, n, 32)).unwrap();
        assert!(
            shape.predicted.step_ms <= before * EQUAL,
            "{n} workers: {} after {before}",
            shape.predicted.step_ms
        );
        before = before.min(shape.predicted.step_ms);
    }
}

#[test]
fn seven_workers_in_pipelines_of_at_least_three_stages_all_work() {
    let planner = planner(3, None);
    let shape = planner.plan(&request(&planner, 7, 32)).unwrap();
    assert_eq!(shape.members().len(), 7, "{shape:?}");
    let mut depths: Vec<usize> = shape.pipelines.iter().map(|p| p.stages.len()).collect();
    depths.sort_unstable();
    assert_eq!(depths, [3, 4]);
    assert!(
        shape.pipelines[0].samples.len() > shape.pipelines[1].samples.len(),
        "the deeper one takes more"
    );
}

#[test]
fn survivors_keep_the_segments_that_they_hold() {
    let planner = planner(2, None);
    let mut request = request(&planner, 4, 16);
    let before = planner.plan(&request).unwrap();
    request.held = before
        .members()
        .into_iter()
        .map(|w| (w, before.units(&request.layout, w)))
        .collect();
    request.parent = Some(before.clone());
    let gone = before.pipelines[0].stages[0].worker;
    request.workers.retain(|w| w.id != gone);
    let after = planner.plan(&request).unwrap();
    let kept = after.members().into_iter().filter(|w| {
        let (old, new) = (
            before.units(&request.layout, *w),
            after.units(&request.layout, *w),
        );
        old.iter().any(|u| new.contains(u))
    });
    assert_eq!(kept.count(), 3);
}

#[test]
fn what_is_missing_is_said_in_a_sentence() {
    let few = planner(3, None);
    let why = few.plan(&request(&few, 2, 8)).unwrap_err().to_string();
    assert_eq!(why, "needs at least 3 workers (pipeline.minDepth), 2 are there");
    let small = planner(1, Some(1 << 20));
    let why = small.plan(&request(&small, 8, 8)).unwrap_err().to_string();
    assert!(
        why.contains("needs") && why.ends_with("a worker has 1 MiB (workers.deviceMemory)"),
        "{why}"
    );
}

#[test]
fn a_batch_too_small_for_the_least_number_of_workers_is_named() {
    let mut wide = planner(1, None);
    let constraints = &mut wide.constraints;
    (constraints.min_workers, constraints.max_depth) = (8, Some(1));
    constraints.micro_batch_size = Some(2);
    for memory in [None, Some(1 << 40)] {
        wide.constraints.device_memory_bytes = memory;
        let why = wide.plan(&request(&wide, 8, 8)).unwrap_err().to_string();
        assert_eq!(
            why,
            "no plan has at least 8 of 8 workers (elasticity.minWorkers): a step has micro-batches for at most 4 pipelines \
             (training.globalBatchSize, microBatchSize) of 1 to 1 workers (pipeline.minDepth, maxDepth)"
        );
        assert!(wide.plan(&request(&wide, 8, 16)).is_ok());
    }
}

#[test]
fn costs_without_any_time_give_a_plan_that_can_be_written() {
    let mut planner = planner(1, None);
    for segment in &mut planner.costs.segments {
        segment.scale_compute(0.0);
    }
    for count in [1, 5] {
        let request = request(&planner, count, 8);
        let shape = planner.plan(&request).unwrap();
        assert_eq!(check_shape(&shape, &request.layout, 8, &ids(&request)), Ok(()));
        let p = &shape.predicted;
        assert!(p.step_ms.is_finite() && p.bubble.is_finite(), "{p:?}");
    }
}

#[test]
fn memory_forces_deeper_pipelines() {
    let whole =
        planner(1, None)
            .costs
            .memory_bytes(SegmentRange { start: 0, end: 14 }, 1, 1, Recompute::None);
    let tight = planner(1, Some(whole * 2 / 3));
    let shape = tight.plan(&request(&tight, 4, 8)).unwrap();
    assert!(shape.pipelines.iter().all(|p| p.stages.len() >= 2), "{shape:?}");
}

#[test]
fn state_that_pipelines_share_out_lets_them_be_shallower() {
    let free = planner(1, None);
    let whole = free.costs.layout().whole();
    let shared = free.holding(4, &free.costs.layout().in_ranges(12));
    let memory = shared.costs.memory_bytes(whole, 1, 1, Recompute::None);
    assert!(memory < free.costs.memory_bytes(whole, 1, 1, Recompute::None));
    let mut tight = planner(1, Some(memory));
    tight.constraints.micro_batch_size = Some(1);
    let undivided = request(&tight, 8, 8);
    let mut divided = undivided.clone();
    divided.layout = divided.layout.in_ranges(12);
    let depths = |request: &PlanRequest| -> Vec<usize> {
        let shape = tight.plan(request).unwrap();
        shape.pipelines.iter().map(|p| p.stages.len()).collect()
    };
    assert!(depths(&undivided).iter().all(|depth| *depth >= 2));
    assert_eq!(depths(&divided), [1; 8]);
    // Fewer pipelines divide the state into larger parts, so their stages must be smaller. Four pipelines of two stages fit, two do not.
    let of_four = free.holding(6, &divided.layout);
    let halves = [(0, 7), (7, 14)].map(|(start, end)| SegmentRange { start, end });
    let of_half = |range| of_four.costs.memory_bytes(range, 2, 1, Recompute::None);
    let half = halves.map(of_half).into_iter().max().unwrap();
    for memory in [memory, half] {
        tight.constraints.device_memory_bytes = Some(memory);
        let planned = [3, 4, 7].into_iter().filter(|workers| {
            let mut fewer = divided.clone();
            fewer.workers.truncate(*workers);
            let Ok(explained) = tight.explain(&fewer) else {
                return false;
            };
            let most = explained.memory_bytes.iter().flatten().copied().max().unwrap();
            assert!(most <= memory, "{workers}: {most} of {memory}");
            true
        });
        assert!(planned.count() >= 2);
    }
    // Thirteen workers form two groups that divide the state. In each of them a worker holds twice as much as one of twelve workers.
    let of_twelve = free.holding(2, &divided.layout);
    let memory = of_twelve.costs.memory_bytes(whole, 1, 1, Recompute::None);
    tight.constraints.device_memory_bytes = Some(memory);
    let mut thirteen = request(&tight, 13, 13);
    thirteen.layout = divided.layout;
    let explained = tight.explain(&thirteen).unwrap();
    let most = explained.memory_bytes.iter().flatten().copied().max().unwrap();
    assert!(most <= memory, "{most} of {memory}");
    assert_eq!(explained.shape.pipelines.len(), 12);
}

#[test]
fn workers_over_the_maximum_are_spares_with_the_reason() {
    let mut planner = planner(1, None);
    planner.constraints.max_workers = 3;
    let shape = planner.plan(&request(&planner, 5, 9)).unwrap();
    assert_eq!(shape.members().len(), 3);
    assert!(
        shape
            .spares
            .iter()
            .all(|s| s.reason.contains("elasticity.maxWorkers")),
        "{:?}",
        shape.spares
    );
    assert_eq!(shape.spares.len(), 2);
}

#[test]
fn very_slow_worker_becomes_a_spare() {
    let planner = planner(1, None);
    let mut request = request(&planner, 4, 32);
    let slow = request.workers[0].id;
    request.workers[0].speed = 0.1;
    let shape = planner.plan(&request).unwrap();
    assert_eq!(check_shape(&shape, &request.layout, 32, &ids(&request)), Ok(()));
    assert_eq!(shape.spares.iter().map(|s| s.worker).collect::<Vec<_>>(), [slow]);
    assert!(
        shape.spares[0]
            .reason
            .starts_with("using it would slow a step from"),
        "{:?}",
        shape.spares
    );
    request.workers.remove(0);
    let without = planner.plan(&request).unwrap();
    assert!((shape.predicted.step_ms - without.predicted.step_ms).abs() < 1e-9);
}

#[test]
fn worker_with_too_little_memory_becomes_a_spare() {
    let planner = planner(1, None);
    let mut request = request(&planner, 3, 16);
    request.workers[1].memory_bytes = Some(1 << 20);
    let shape = planner.plan(&request).unwrap();
    assert_eq!(shape.members().len(), 2);
    assert!(
        shape.spares[0].reason.starts_with("it has 1 MiB of memory"),
        "{:?}",
        shape.spares
    );
}

#[test]
fn noise_in_measured_speeds_changes_no_plan() {
    let planner = planner(1, None);
    let mut request = request(&planner, 5, 32);
    let before = planner.plan(&request).unwrap();
    for (worker, speed) in request.workers.iter_mut().zip([1.02, 0.99, 0.98, 1.01, 1.0]) {
        worker.speed = speed;
    }
    assert_eq!(planner.plan(&request), Ok(before));
}

#[test]
fn costs_of_another_model_and_an_empty_batch_are_refused() {
    let planner = planner(1, None);
    let mut request = request(&planner, 3, 8);
    request.layout.segments = 12;
    let why = planner.plan(&request).unwrap_err().to_string();
    assert_eq!(why, "costs are known for 14 segments, the model has 12");
    request.layout.segments = 14;
    request.global_batch_size = 0;
    assert!(
        planner
            .plan(&request)
            .unwrap_err()
            .to_string()
            .contains("globalBatchSize")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn any_speeds_and_memories_give_a_valid_plan(
        workers in prop::collection::vec((1u32..30, prop::option::of(1u64..64)), 1..24), batch in 1u64..64, gpipe: bool,
        auto: bool
    ) {
        let mut planner = planner(1, None);
        if gpipe {
            planner.constraints.schedules[0].kind = ScheduleKind::Gpipe;
        }
        if auto {
            planner.constraints.schedules = every_policy(planner.constraints.schedules[0].kind);
        }
        let mut request = request(&planner, workers.len() as u64, batch);
        for (worker, (speed, mib)) in request.workers.iter_mut().zip(workers) {
            worker.speed = f64::from(speed) / 10.0;
            worker.memory_bytes = mib.map(|m| m << 20);
        }
        if let Ok(shape) = planner.plan(&request) {
            prop_assert_eq!(check_shape(&shape, &request.layout, batch, &ids(&request)), Ok(()));
            for p in &shape.pipelines {
                let n = u32::try_from(p.micro_batches(shape.micro_batch_size)).unwrap();
                for (s, stage) in p.stages.iter().enumerate() {
                    let stash = stash_max(shape.schedule.kind, p.stages.len(), s, n);
                    let kept = shape.schedule_of(stage).recompute;
                    prop_assert!(auto || kept == Recompute::None);
                    let need = planner.costs.memory_bytes(stage.segments, stash, shape.micro_batch_size, kept);
                    let has = request.workers.iter().find(|w| w.id == stage.worker).unwrap().memory_bytes;
                    prop_assert!(has.is_none_or(|m| need <= m), "needs {need}, has {has:?}");
                }
            }
        }
    }
}

#[test]
fn stages_recompute_only_as_much_as_their_memory_demands() {
    let policies = [Recompute::None, Recompute::Selective, Recompute::Full];
    let of = |chosen: &[Recompute], memory: u64| {
        let mut planner = planner(2, Some(memory));
        planner.constraints.max_depth = Some(2);
        planner.constraints.micro_batch_size = Some(1);
        let kind = ScheduleKind::OneForwardOneBackward { warmup_factor: 2.0 };
        let spec = |recompute: &Recompute| ScheduleSpec {
            kind,
            recompute: *recompute,
        };
        planner.constraints.schedules = chosen.iter().map(spec).collect();
        planner.plan(&request(&planner, 2, 8)).ok()
    };
    let mut seen = BTreeSet::new();
    let whole =
        planner(2, None)
            .costs
            .memory_bytes(SegmentRange { start: 0, end: 14 }, 5, 1, Recompute::None);
    let mut fitted = false;
    for memory in (0..400).map(|i| whole / 2 * i / 300) {
        let auto = of(&policies, memory);
        for fixed in policies {
            if let Some(one) = of(&[fixed], memory) {
                let auto = auto.as_ref().expect("what fits with one policy fits with all");
                let (ours, theirs) = (auto.predicted.step_ms, one.predicted.step_ms);
                assert!(
                    ours <= theirs * EQUAL,
                    "{memory} bytes: {ours} ms, all {fixed:?} {theirs} ms"
                );
            }
        }
        assert!(
            auto.is_some() || !fitted,
            "more memory never makes a plan impossible"
        );
        fitted |= auto.is_some();
        let first = |s: &Shape| s.schedule_of(&s.pipelines[0].stages[0]).recompute;
        seen.extend(auto.as_ref().map(first));
        // The last stage's backward follows directly after its forward.
        let last = auto
            .as_ref()
            .map(|s| s.schedule_of(&s.pipelines[0].stages[1]).recompute);
        assert!(last.is_none_or(|policy| policy == Recompute::None), "{auto:?}");
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), policies);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn no_other_plan_would_train_more_until_the_horizon(
        count in 5u64..24, gone in prop::collection::btree_set(0u64..24, 1..4), seconds in prop::collection::vec(1u32..20_000, 1..4)
    ) {
        let planner = planner(2, None);
        let mut request = request(&planner, count, 32);
        let before = planner.plan(&request).unwrap();
        let lost = |i: usize| gone.contains(&(i as u64));
        request.workers = request.workers.into_iter().enumerate().filter(|(i, _)| !lost(*i)).map(|(_, w)| w).collect();
        prop_assume!(request.workers.len() > 2);
        let there = ids(&request);
        let holds = before.members().into_iter().filter(|w| there.contains(w));
        request.held = holds.map(|w| (w, before.units(&request.layout, w))).collect();
        prop_assume!(!request.held.is_empty());
        request.parent = Some(before);
        let horizons: Vec<Option<f64>> = seconds.iter().map(|s| Some(f64::from(*s))).chain([None]).collect();
        let plans: Vec<Shape> = horizons.iter().map(|h| {
            let request = PlanRequest { horizon_ms: *h, ..request.clone() };
            let shape = planner.plan(&request).unwrap();
            assert_eq!(serde_json::to_string(&shape).unwrap(), serde_json::to_string(&planner.plan(&request).unwrap()).unwrap());
            shape
        }).collect();
        for (horizon, ours) in horizons.iter().zip(&plans) {
            let request = PlanRequest { horizon_ms: *horizon, ..request.clone() };
            let problem = planner.problem(&request, 1);
            let of = |s: &Shape| problem.effective_ms(&s.predicted);
            for other in &plans {
                prop_assert!(of(ours) <= of(other) * EQUAL * (1.0 + 1e-9), "{horizon:?}: {ours:?} or {other:?}");
            }
        }
    }
}

#[test]
fn the_shorter_a_plan_lasts_the_less_it_may_move() {
    let planner = planner(2, None);
    let request = request(&planner, 9, 32);
    let before = planner.plan(&request).unwrap();
    let mut request = request.after(before);
    let mut less = 0;
    for more in 100..104 {
        request.workers.push(WorkerInfo::nominal(WorkerId(more), "n"));
        let move_ms = |horizon_ms| {
            let shape = planner.plan(&PlanRequest {
                horizon_ms,
                ..request.clone()
            });
            shape.unwrap().predicted.move_ms
        };
        let (hasty, lasting) = (move_ms(Some(12.0)), move_ms(None));
        assert!(hasty <= lasting, "{more}: {hasty} {lasting}");
        less += u32::from(hasty < lasting);
    }
    assert!(less > 0, "the horizon never mattered");
}

#[test]
fn longer_warmup_is_chosen_if_it_helps_and_fits() {
    let factor = |memory: Option<u64>| {
        // Three whole blocks on the first stage, two on the second.
        let mut planner = planner_of(5, 2, memory);
        // A head with little memory, so that the kept activations decide what fits.
        planner.costs = whole_blocks(&Transformer {
            vocabulary_size: 64,
            ..sizes(5)
        });
        planner.constraints.max_depth = Some(2);
        planner.constraints.micro_batch_size = Some(1);
        planner.constraints.schedules = vec![one_f_one_b(2.0), one_f_one_b(1.0)];
        let shape = planner.plan(&request(&planner, 2, 8)).ok()?;
        let ScheduleKind::OneForwardOneBackward { warmup_factor } = shape.schedule.kind else {
            return None;
        };
        Some((warmup_factor, shape.predicted.step_ms))
    };
    let (chosen, roomy) = factor(None).unwrap();
    assert!((chosen - 2.0).abs() < f64::EPSILON);
    // The least memory into which any plan fits leaves no room for the larger stash.
    let least = (1u64..1 << 16)
        .map(|k| k << 14)
        .find(|m| factor(Some(*m)).is_some())
        .unwrap();
    let (chosen, tight) = factor(Some(least)).unwrap();
    assert!((chosen - 1.0).abs() < f64::EPSILON && tight > roomy);
}

#[test]
fn plans_with_other_workers_are_the_same_work() {
    let planner = planner(2, None);
    let mut asked = request(&planner, 4, 24);
    let first = planner.plan(&asked).unwrap();
    for worker in &mut asked.workers {
        worker.id = WorkerId(worker.id.0 + 10);
    }
    let others = planner.plan(&asked).unwrap();
    assert_ne!(first, others);
    assert!(first.same_work(&others));
    let mut cut = first.clone();
    cut.pipelines[0].stages[0].segments.end -= 1;
    cut.pipelines[0].stages[1].segments.start -= 1;
    assert!(!first.same_work(&cut));
    let mut finer = first.clone();
    finer.micro_batch_size += 1;
    assert!(!first.same_work(&finer));
}

/// Eight workers, each on its own node; the nodes alternate between two zones. Returns the zones of each pipeline's workers.
fn zones_of_pipelines(domain: impl Fn(usize) -> &'static str) -> Vec<BTreeSet<&'static str>> {
    let planner = planner(4, None);
    let mut request = request(&planner, 8, 32);
    for (i, worker) in (0..).zip(&mut request.workers) {
        // In the order of their names, neighbours would be in different zones.
        worker.node = format!("n{i}");
        worker.domain = domain(i).to_owned();
    }
    let shape = planner.plan(&request).unwrap();
    let zone_of = |id: WorkerId| {
        let at = request.workers.iter().position(|w| w.id == id).unwrap();
        ["a", "b"][at % 2]
    };
    let pipelines = shape.pipelines.iter();
    pipelines
        .map(|p| p.stages.iter().map(|s| zone_of(s.worker)).collect())
        .collect()
}

#[test]
fn a_pipeline_stays_within_a_zone_and_its_copy_is_in_another() {
    let zones = zones_of_pipelines(|i| ["a", "b"][i % 2]);
    assert_eq!(zones, [BTreeSet::from(["a"]), BTreeSet::from(["b"])]);
    // This is because of the domains: without them the zones are mixed.
    let zones = zones_of_pipelines(|_| "");
    assert!(zones.iter().all(|zones| zones.len() == 2), "{zones:?}");
}

/// For each stage, the halves of the workers that hold its copies.
fn halves_of_stages(request: &PlanRequest, shape: &Shape) -> Vec<BTreeSet<usize>> {
    let half_of = |id: WorkerId| {
        let at = request.workers.iter().position(|w| w.id == id).unwrap();
        at * 2 / request.workers.len()
    };
    let stages = 0..shape.pipelines[0].stages.len();
    let of = |j: usize| {
        let copies = shape.pipelines.iter();
        copies.map(|p| half_of(p.stages[j].worker)).collect()
    };
    stages.map(of).collect()
}

/// Four pipelines become two. Returns the halves in which each stage has its copies, and the number of bytes that are moved.
fn fewer(node: fn(usize) -> usize, domain: fn(usize) -> &'static str) -> (Vec<BTreeSet<usize>>, u64) {
    let mut planner = planner(2, None);
    planner.constraints.max_depth = Some(2);
    planner.constraints.micro_batch_size = Some(1);
    let mut request = request(&planner, 8, 32);
    for (i, worker) in (0..).zip(&mut request.workers) {
        worker.node = format!("n{}", node(i));
        worker.domain = domain(i).to_owned();
    }
    let before = planner.plan(&request).unwrap();
    assert_eq!(before.pipelines.len(), 4);
    planner.constraints.max_workers = 4;
    let request = request.after(before);
    let explained = planner.explain(&request).unwrap();
    assert_eq!(explained.shape.pipelines.len(), 2);
    let halves = halves_of_stages(&request, &explained.shape);
    (halves, explained.moved_bytes)
}

#[test]
fn copies_stay_in_each_node_and_zone_if_that_moves_no_more() {
    let (together, moved) = fewer(|i| i, |_| "");
    assert!(together.iter().all(|halves| halves.len() == 1), "{together:?}");
    let by_zone = fewer(|i| i, |i| ["a", "b"][i / 4]);
    let by_node = fewer(|i| i / 4, |_| "");
    for (apart, moved_apart) in [by_zone, by_node] {
        assert!(apart.iter().all(|halves| halves.len() == 2), "{apart:?}");
        assert_eq!(moved_apart, moved);
    }
}

#[test]
fn the_second_copy_of_a_stage_is_on_a_node_that_would_be_idle() {
    let mut planner = planner(4, None);
    planner.constraints.max_depth = Some(4);
    planner.constraints.max_workers = 8;
    let mut request = request(&planner, 16, 32);
    for (i, worker) in (0..).zip(&mut request.workers) {
        worker.node = format!("n{}", i / 8);
    }
    let shape = planner.plan(&request).unwrap();
    assert_eq!(shape.pipelines.len(), 2);
    let halves = halves_of_stages(&request, &shape);
    assert!(halves.iter().all(|halves| halves.len() == 2), "{halves:?}");
}

#[test]
fn workers_that_hold_the_same_stay_where_the_parent_has_them() {
    let planner = planner(4, None);
    let request = request(&planner, 8, 32);
    let mut parent = planner.plan(&request).unwrap();
    let [first, second] = &mut parent.pipelines[..] else {
        panic!("two pipelines: {parent:?}")
    };
    // In the order of their names, each would be in the other pipeline.
    std::mem::swap(&mut first.stages[1].worker, &mut second.stages[1].worker);
    let again = planner.plan(&request.after(parent.clone())).unwrap();
    assert_eq!(again.pipelines, parent.pipelines);
}

#[test]
fn worker_is_not_moved_only_for_its_zone() {
    let planner = planner(4, None);
    let mut request = request(&planner, 8, 32);
    let first = planner.plan(&request).unwrap();
    for (i, worker) in (0..).zip(&mut request.workers) {
        worker.domain = ["a", "b"][i % 2].to_owned();
    }
    let again = planner.plan(&request.after(first.clone())).unwrap();
    assert_eq!(again.pipelines, first.pipelines);
}
