//! Plans for any number of workers: compared with Varuna's rule, and never slower with one more worker.

#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::cast_precision_loss, reason = "counts are small")]

use varuna_model::{Transformer, gpt2};
use varuna_plan::cost::SegmentKind;
use varuna_plan::device::DeviceKind;
use varuna_plan::profile::Profile;
use varuna_plan::{
    Calibration, Constraints, CostPlanner, Costs, PlanRequest, Planner, Recompute, ScheduleKind,
    ScheduleSpec, SegmentRange, Shape, Speeds, Topology, WorkerId, WorkerInfo, predict,
};
use varuna_published::grid::Grid;

fn planner(costs: Costs, micro: Option<u32>, min_depth: u32, memory: Option<u64>) -> CostPlanner {
    CostPlanner {
        costs,
        constraints: Constraints {
            min_workers: 1,
            max_workers: 1 << 20,
            micro_batch_size: micro,
            min_depth,
            max_depth: None,
            schedules: vec![ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            }],
            device_memory_bytes: memory,
        },
    }
}

fn plan(planner: &CostPlanner, workers: u64, batch: u64) -> Option<Shape> {
    let workers = (1..=workers).map(|id| WorkerInfo::nominal(WorkerId(id), ""));
    let request = PlanRequest::first(workers.collect(), planner.costs.layout(), batch);
    planner.plan(&request).ok()
}

/// The costs of GPT-2 1.5B, measured on V100s at 10 Gb/s and calibrated with these measurements.
fn gpt2_1_5b() -> Costs {
    let profile = include_str!("../../data/measured/gpt-1.5b-v100-profile.json");
    let links = include_str!("../../data/measured/p2p-10gbps.csv");
    let mut costs = Profile::read("profile", profile, Some(("links", links)))
        .unwrap()
        .costs();
    costs.calibration = Calibration {
        compute: 0.283,
        transfer: 0.87,
    };
    costs
}

/// GPT-2 8.3B (Megatron: 72 layers, width 3072) on A100s.
fn gpt2_8_3b() -> (Costs, u64) {
    let gpt = Transformer {
        layers: 72,
        hidden_size: 3072,
        sequence_length: 1024,
        vocabulary_size: 50_304,
        ..gpt2::SMALL
    };
    let device = DeviceKind::named("a100-80g").unwrap();
    (
        Costs::estimate(&gpt.spec(), device.device(false, 2)),
        device.usable_bytes(),
    )
}

/// The step time of a shape on workers of nominal speed, in milliseconds.
fn step_ms(costs: &Costs, shape: &Shape) -> f64 {
    predict(costs, shape, &Speeds::nominal(), Topology::ONE_NODE).step_ms
}

/// Varuna's rule with the same cost model: P divides the number of blocks, D = N / P, equal numbers of blocks, and the remaining workers
/// are idle; the best P and micro-batch size. If D does not divide the batch, Varuna would drop samples; here each pipeline takes as many
/// as are needed for the whole batch. Returns samples per millisecond.
fn varuna(planner: &CostPlanner, workers: usize, batch: u64) -> Option<f64> {
    let costs = &planner.costs;
    // Segments of a block: two halves in an estimate, one in the measured profile. Varuna's cut points are between blocks.
    let halves = if costs.segments[1].kind == SegmentKind::Block {
        1
    } else {
        2
    };
    let blocks = (costs.layout().segments - 2) / halves;
    let c = &planner.constraints;
    let micros = c
        .micro_batch_size
        .map_or_else(|| vec![1, 2, 4, 8, 16, 32], |m| vec![m]);
    let mut best: Option<f64> = None;
    for p in (c.min_depth..=blocks).filter(|p| blocks.is_multiple_of(*p)) {
        let d = workers / p as usize;
        if d == 0 {
            continue;
        }
        let each = blocks / p * halves;
        let cut = |s: u32| SegmentRange {
            start: if s == 0 { 0 } else { 1 + s * each },
            end: if s + 1 == p {
                blocks * halves + 2
            } else {
                1 + (s + 1) * each
            },
        };
        let stages: Vec<SegmentRange> = (0..p).map(cut).collect();
        for m in &micros {
            let fits = |(s, r): (u32, &SegmentRange)| {
                let need = costs.memory_bytes(*r, p - s, *m, Recompute::None);
                c.device_memory_bytes.is_none_or(|has| need <= has)
            };
            if batch < u64::from(*m) * d as u64 || !(0..).zip(&stages).all(fits) {
                continue;
            }
            let grid = Grid {
                data_parallel: d,
                pipeline_parallel: p as usize,
                global_batch_size: batch,
                micro_batch_size: *m,
            };
            let rate = batch as f64 / step_ms(costs, &grid.shape(&stages));
            best = Some(best.map_or(rate, |b| b.max(rate)));
        }
    }
    best
}

/// Makes plans for 1..=most workers, and asserts that an additional worker never makes a step longer. Returns (workers, step).
fn steps(planner: &CostPlanner, most: u64, batch: u64) -> Vec<(u64, f64)> {
    let mut steps: Vec<(u64, f64)> = Vec::new();
    for n in 1..=most {
        let Some(shape) = plan(planner, n, batch) else {
            continue;
        };
        let step = shape.predicted.step_ms;
        if let Some((before, least)) = steps.last() {
            assert!(
                step <= least * (1.0 + 1e-9),
                "{n} workers ({}): {step} ms, {before} workers: {least} ms",
                shape.summary()
            );
        }
        steps.push((n, step));
    }
    steps
}

fn against_varuna(name: &str, planner: &CostPlanner, batch: u64) -> f64 {
    let mut ratios = Vec::new();
    for (n, step) in steps(planner, 128, batch) {
        let ours = batch as f64 / step;
        if let Some(theirs) = varuna(planner, usize::try_from(n).unwrap(), batch) {
            assert!(
                ours >= theirs * (1.0 - 1e-9),
                "{name}, {n} workers: {ours} against {theirs}"
            );
            ratios.push(ours / theirs);
        }
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    println!("{name}: {} sizes, mean {mean:.3} of Varuna's rule", ratios.len());
    mean
}

#[test]
fn plans_beat_varunas_rule_at_every_size_and_never_fall() {
    let small = planner(gpt2_1_5b(), Some(1), 6, None);
    let (costs, memory) = gpt2_8_3b();
    let large = planner(costs, None, 1, Some(memory));
    let means = [
        against_varuna("gpt2-1.5b", &small, 128),
        against_varuna("gpt2-8.3b", &large, 512),
    ];
    let mean = f64::midpoint(means[0], means[1]);
    println!("against Varuna's rule: mean {mean:.4}");
    assert!(mean >= 1.1, "{means:?}");
}
