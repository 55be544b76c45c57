//! `make bench-plan`: the whole call of the planner, on one core: cutting, scoring, simulation of the short list and
//! placement, with memory limits, micro-batch size and warm-up left to the planner.

#![expect(missing_docs, reason = "criterion's macros make undocumented functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use varuna_model::{Transformer, gpt2};
use varuna_plan::device::DeviceKind;
use varuna_plan::{
    Constraints, CostPlanner, Costs, PlanRequest, Planner, Recompute, ScheduleKind, ScheduleSpec, WorkerId,
    WorkerInfo,
};

/// A GPT of so many segments that needs several devices, on H100s.
fn planner(segments: u32) -> CostPlanner {
    let gpt = Transformer {
        layers: (segments - 2) / 2,
        hidden_size: 4096,
        sequence_length: 2048,
        vocabulary_size: 50_304,
        ..gpt2::SMALL
    };
    let device = DeviceKind::named("h100-80g").expect("it stands in the table");
    CostPlanner {
        costs: Costs::estimate(&gpt.spec(), device.device(false, 2)),
        constraints: Constraints {
            min_workers: 1,
            max_workers: u32::MAX,
            micro_batch_size: None,
            min_depth: 1,
            max_depth: None,
            schedules: [2.0, 1.0]
                .map(|warmup_factor| ScheduleSpec {
                    kind: ScheduleKind::OneForwardOneBackward { warmup_factor },
                    recompute: Recompute::None,
                })
                .to_vec(),
            device_memory_bytes: Some(device.usable_bytes()),
        },
    }
}

/// A request with this many workers, eight to a node, and 4 samples for each.
fn request(planner: &CostPlanner, workers: u64) -> PlanRequest {
    let worker = |i| WorkerInfo::nominal(WorkerId(i), format!("node-{:05}", i / 8));
    let all = (1..=workers).map(worker).collect();
    PlanRequest::first(all, planner.costs.layout(), workers * 4)
}

/// The same after one worker of a running plan is gone.
fn after_a_loss(planner: &CostPlanner, workers: u64) -> PlanRequest {
    let request = request(planner, workers);
    let shape = planner.plan(&request).expect("a plan exists");
    let mut request = request.after(shape);
    request.workers.remove(0);
    request
}

fn search(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    group.sample_size(10);
    for workers in [64, 1_000, 10_000] {
        for segments in [24, 50, 96] {
            let planner = planner(segments);
            let first = request(&planner, workers);
            group.bench_function(format!("{workers}/{segments}/first"), |b| {
                b.iter(|| planner.plan(black_box(&first)));
            });
            let loss = after_a_loss(&planner, workers);
            group.bench_function(format!("{workers}/{segments}/loss"), |b| {
                b.iter(|| planner.plan(black_box(&loss)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, search);
criterion_main!(benches);
