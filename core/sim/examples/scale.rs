//! `make bench-protocol`: what a launch, a step, a recovery and a growth cost with many workers.

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;
use varuna_model::{Model, gpt2};
use varuna_plan::device::DeviceKind;
use varuna_plan::{Constraints, CostPlanner, Recompute, ScheduleKind, ScheduleSpec};
use varuna_sim::scale::{Cost, Setup, measure};

/// A GPT of 96 units that needs pipelines of about eight H100s.
fn planner() -> CostPlanner {
    let gpt = Model {
        layers: 47,
        hidden_size: 8192,
        sequence_length: 2048,
        vocabulary_size: 50_304,
        ..gpt2::SMALL
    };
    let device = DeviceKind::named("h100-80g").expect("it stands in the table");
    CostPlanner {
        costs: varuna_plan::Costs::estimate(&gpt.spec(), device.device(false)),
        constraints: Constraints {
            min_workers: 1,
            max_workers: u32::MAX,
            micro_batch_size: Some(1),
            min_depth: 8,
            max_depth: Some(16),
            schedules: vec![ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::Full,
            }],
            device_memory_bytes: None,
        },
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn row(workers: u64, phase: &str, cost: Cost) {
    println!(
        "| {workers} | {phase} | {:.1} | {:.2} | {} | {} | {} | {} |",
        ms(cost.simulated),
        ms(cost.coordinator),
        cost.reports,
        cost.orders,
        cost.peer_messages,
        cost.connections
    );
}

/// Processor time of this thread: other programs on the machine do not count.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn main() {
    let given: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let sizes = if given.is_empty() {
        vec![64, 256, 1_000, 4_000]
    } else {
        given
    };
    println!(
        "| workers | phase | simulated ms | coordinator CPU ms | reports | orders | peer messages | connections |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for workers in sizes {
        let setup = Setup {
            planner: planner(),
            workers,
            global_batch_size: workers * 4,
        };
        let costs = measure(&setup, &cpu_time).unwrap_or_else(|error| {
            eprintln!("{error}");
            std::process::exit(1)
        });
        for (phase, cost) in [
            ("launch", costs.launch),
            ("step", costs.step),
            ("recovery decided", costs.decision),
            ("recovery", costs.recovery),
            ("growth", costs.growth),
        ] {
            row(workers, phase, cost);
        }
        let seconds = |cost: Cost| (cost.simulated + cost.coordinator).as_secs_f64();
        println!(
            "RESULT protocol.step_cpu_ms_{workers} {:.3}",
            ms(costs.step.coordinator)
        );
        println!("RESULT protocol.launch_s_{workers} {:.3}", seconds(costs.launch));
        println!(
            "RESULT protocol.recovery_ms_{workers} {:.1}",
            seconds(costs.decision) * 1e3
        );
        println!("RESULT protocol.record_bytes_{workers} {}", costs.record_bytes);
    }
}
