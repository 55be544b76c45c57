//! `make bench-protocol`: what a launch, a step, a recovery and a growth cost with many workers, on simulated time.

mod meter;

use meter::RealMeter;
use peak_alloc::PeakAlloc;
use std::time::Duration;
use varuna_model::{Transformer, gpt2};
use varuna_plan::device::DeviceKind;
use varuna_plan::{Constraints, CostPlanner, Recompute, ScheduleKind, ScheduleSpec};
use varuna_sim::scale::{Cost, Costs, Setup, measure};

/// Two counters beside each allocation: they are in the processor times, and small there.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// A GPT of 96 units that needs pipelines of about eight H100s.
fn planner() -> CostPlanner {
    let gpt = Transformer {
        layers: 47,
        hidden_size: 8192,
        sequence_length: 2048,
        vocabulary_size: 50_304,
        ..gpt2::SMALL
    };
    let device = DeviceKind::named("h100-80g").expect("it stands in the table");
    CostPlanner {
        costs: varuna_plan::Costs::estimate(&gpt.spec(), device.device(false, 2)),
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

fn kb(bytes: u64) -> f64 {
    bytes as f64 / 1e3
}

fn row(workers: u64, phase: &str, cost: Cost) {
    println!(
        "| {workers} | {phase} | {:.1} | {:.2} | {} | {:.1} | {} | {:.1} | {} | {:.1} | {} |",
        ms(cost.simulated),
        ms(cost.coordinator),
        cost.reports,
        kb(cost.report_bytes),
        cost.orders,
        kb(cost.order_bytes),
        cost.peer_messages,
        kb(cost.peer_bytes),
        cost.connections
    );
}

fn phases(costs: &Costs) -> [(&'static str, &'static str, Cost); 5] {
    [
        ("launch", "launch", costs.launch),
        ("step", "step", costs.step),
        ("recovery decided", "recovery_decided", costs.decision),
        ("recovery", "recovery", costs.recovery),
        ("growth", "growth", costs.growth),
    ]
}

/// The lines that are compared from one day to the next.
fn results(workers: u64, costs: &Costs) -> Vec<String> {
    let seconds = |cost: Cost| (cost.simulated + cost.coordinator).as_secs_f64();
    let mut results = vec![
        format!("step_cpu_ms_{workers} {:.3}", ms(costs.step.coordinator)),
        format!("launch_s_{workers} {:.3}", seconds(costs.launch)),
        format!("recovery_ms_{workers} {:.1}", seconds(costs.decision) * 1e3),
    ];
    for (_, name, cost) in phases(costs) {
        let bytes = cost.report_bytes + cost.order_bytes;
        results.push(format!("{name}_coordinator_bytes_{workers} {bytes}"));
    }
    results.push(format!("record_bytes_{workers} {}", costs.record_bytes));
    results.push(format!("memory_bytes_{workers} {}", costs.coordinator_bytes));
    results
}

/// What is missed of the goals that `docs/benchmarks.md` states for 1,000 workers.
fn missed(costs: &Costs) -> Vec<String> {
    let decided = costs.decision.simulated + costs.decision.coordinator;
    let launched = costs.launch.simulated + costs.launch.coordinator;
    let goals = [
        ("coordinator's CPU for a step", ms(costs.step.coordinator), 2.0),
        ("launch", ms(launched), 2_000.0),
        ("recovery until it is decided", ms(decided), 250.0),
    ];
    let above = goals.into_iter().filter(|(_, took, goal)| took > goal);
    above
        .map(|(name, took, goal)| format!("{name}: {took:.2} ms, the goal is {goal} ms"))
        .collect()
}

fn main() {
    let mut goals = false;
    let mut given = Vec::new();
    for argument in std::env::args().skip(1) {
        match (argument.as_str(), argument.parse::<u64>()) {
            ("--goals", _) => goals = true,
            (_, Ok(workers)) => given.push(workers),
            (other, Err(_)) => {
                eprintln!(
                    "{other:?}: allowed are numbers of workers, and --goals (exit code 1 where 1,000 workers miss one)"
                );
                std::process::exit(2);
            }
        }
    }
    let sizes = if given.is_empty() {
        vec![64, 256, 1_000, 4_000]
    } else {
        given
    };
    println!(
        "| workers | phase | simulated ms | coordinator CPU ms | reports | kB | orders | kB | peer messages | kB | connections |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut measured = Vec::new();
    for workers in sizes {
        let setup = Setup {
            planner: planner(),
            workers,
            global_batch_size: workers * 4,
        };
        let meter = RealMeter::default();
        let costs = measure(&setup, &meter).unwrap_or_else(|error| {
            eprintln!("{error}");
            std::process::exit(1)
        });
        for (phase, _, cost) in phases(&costs) {
            row(workers, phase, cost);
        }
        measured.push((workers, costs, meter.text_bytes.get()));
    }
    println!(
        "\n| workers | record as text, kB | as it is stored, kB | coordinator's machine, kB of memory |\n|---|---|---|---|"
    );
    for (workers, costs, text_bytes) in &measured {
        let (record, memory) = (kb(costs.record_bytes), kb(costs.coordinator_bytes));
        println!(
            "| {workers} | {:.0} | {record:.0} | {memory:.0} |",
            kb(*text_bytes)
        );
    }
    for (workers, costs, _) in &measured {
        for result in results(*workers, costs) {
            println!("RESULT protocol.{result}");
        }
    }
    let thousand = measured.iter().filter(|(workers, ..)| goals && *workers == 1_000);
    let missed: Vec<String> = thousand.flat_map(|(_, costs, _)| missed(costs)).collect();
    if !missed.is_empty() {
        eprintln!("{}", missed.join("\n"));
        std::process::exit(1);
    }
}
