//! Digests, in `tests/golden`, of the plans for the examples and for jobs that use other features.
//!
//! Each line is for one number of workers. It has the predicted step, and `shape:figures` for three plans: from scratch, after the loss of
//! a worker, and after a worker has joined; first without nodes, then with eight workers on each node. So a review shows the effect of a
//! change of the planner on plans. `VARUNA_WRITE_GOLDEN=1` writes the files again.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use varuna_model::{ModelSpec, Transformer, gpt2};
use varuna_plan::cost::Host;
use varuna_plan::device::DeviceKind;
use varuna_plan::profile::Profile;
use varuna_plan::{
    Calibration, Constraints, CostPlanner, Costs, Device, PlanRequest, Planner, Recompute, ScheduleKind,
    ScheduleSpec, Shape, WorkerId, WorkerInfo,
};

const WORKERS_PER_NODE: u64 = 8;
const MIB: u64 = 1 << 20;

/// A job, and the numbers of workers for which plans are made.
struct Case {
    planner: CostPlanner,
    global_batch_size: u64,
    workers: Vec<u64>,
    /// Speed and memory of a worker, by its number.
    worker: fn(u64) -> (f64, Option<u64>),
}

fn alike(_: u64) -> (f64, Option<u64>) {
    (1.0, None)
}

fn gpt(layers: u32, hidden_size: u32, sequence_length: u32, vocabulary_size: u32) -> ModelSpec {
    let model = Transformer {
        layers,
        hidden_size,
        sequence_length,
        vocabulary_size,
        ..gpt2::SMALL
    };
    model.spec()
}

/// The settings of `pipeline.schedule: 1f1b`, which leave the warm-up factor to the planner.
fn one_f_one_b(recompute: &[Recompute]) -> Vec<ScheduleSpec> {
    let kind = |warmup_factor| ScheduleKind::OneForwardOneBackward { warmup_factor };
    let kinds = [2.0, 1.0].map(kind);
    let of = |kind| {
        recompute
            .iter()
            .map(move |r| ScheduleSpec { kind, recompute: *r })
    };
    kinds.into_iter().flat_map(of).collect()
}

fn constraints(costs: &Costs, min_depth: u32, micro_batch_size: Option<u32>) -> Constraints {
    Constraints {
        min_workers: min_depth,
        max_workers: u32::MAX,
        micro_batch_size,
        min_depth,
        max_depth: Some(costs.layout().segments),
        schedules: one_f_one_b(&[Recompute::None]),
        device_memory_bytes: None,
    }
}

fn case(costs: Costs, min_depth: u32, micro_batch_size: Option<u32>, batch: u64, most: u64) -> Case {
    Case {
        planner: CostPlanner {
            constraints: constraints(&costs, min_depth, micro_batch_size),
            costs,
        },
        global_batch_size: batch,
        workers: (1..=most).collect(),
        worker: alike,
    }
}

/// The job of `examples/demo.yaml`.
fn demo() -> Case {
    let costs = Costs::estimate(&gpt(4, 128, 128, 320), Device::CPU_CORE);
    let mut case = case(costs, 2, None, 16, 128);
    case.planner.constraints.max_workers = 8;
    case.planner.constraints.device_memory_bytes = Some(300 * MIB);
    case
}

/// The job of `examples/gpt2-tiny.yaml`.
fn gpt2_tiny(most: u64) -> Case {
    let costs = Costs::estimate(&gpt(6, 384, 256, 320), Device::CPU_CORE);
    case(costs, 1, None, 16, most)
}

/// The job of `bench/data/gpt2-1.5b.yaml` with its measured and calibrated profile.
fn gpt2_xl_measured() -> Case {
    let profile = include_str!("../../../bench/data/measured/gpt-1.5b-v100-profile.json");
    let links = include_str!("../../../bench/data/measured/p2p-10gbps.csv");
    let mut costs = Profile::read("profile", profile, Some(("links", links)))
        .unwrap()
        .costs();
    costs.calibration = Calibration {
        compute: 0.283,
        transfer: 0.87,
    };
    costs.calibrated = true;
    let costs = costs.with_halves(&gpt(48, 1600, 1024, 50_257)).unwrap();
    let mut case = case(costs, 6, Some(1), 128, 0);
    // Each plan takes a while.
    case.workers = (1..=32).chain((40..=128).step_by(8)).collect();
    case
}

/// Deep pipelines with few micro-batches on fast links.
fn interleaved() -> Case {
    let device = DeviceKind::named("h100-80g").unwrap();
    let costs = Costs::estimate(&gpt(48, 1600, 1024, 50_257), device.device(true, 2));
    let mut case = case(costs, 4, None, 32, 0);
    case.workers = vec![4, 8, 12, 17];
    let interleaved = [2, 3, 4].map(|chunks| ScheduleSpec {
        kind: ScheduleKind::Interleaved { chunks },
        recompute: Recompute::None,
    });
    let constraints = &mut case.planner.constraints;
    constraints.schedules.extend(interleaved);
    constraints.device_memory_bytes = Some(device.usable_bytes());
    case
}

/// The state is larger than a device's memory, and the planner may choose to recompute.
fn recompute() -> Case {
    let device = DeviceKind::named("a100-40g").unwrap();
    let costs = Costs::estimate(&gpt(32, 4096, 1024, 50_304), device.device(false, 2));
    let mut case = case(costs, 1, None, 96, 0);
    case.workers = (13..=24).collect();
    let constraints = &mut case.planner.constraints;
    constraints.schedules = one_f_one_b(&[Recompute::None, Recompute::Selective, Recompute::Full]);
    constraints.device_memory_bytes = Some(device.usable_bytes());
    case
}

/// Workers with different speeds and memory.
fn uneven() -> Case {
    let mut case = gpt2_tiny(24);
    case.worker = |id| {
        let speed = [1.0, 0.6, 1.0, 1.3, 1.0, 0.9, 0.3][usize::try_from(id % 7).unwrap()];
        (speed, id.is_multiple_of(5).then_some(60 * MIB))
    };
    case
}

/// Interleaved pipelines with slow workers.
fn uneven_interleaved() -> Case {
    let mut case = interleaved();
    case.workers = vec![8];
    case.worker = |id| ([1.0, 0.7, 1.0, 1.0][usize::try_from(id % 4).unwrap()], None);
    case
}

/// Workers that share the cores of their node.
fn shared_cores() -> Case {
    let mut case = gpt2_tiny(24);
    case.planner.costs.host = Some(Host {
        cores: 4,
        threads: 1,
        slowdown: vec![1.0, 1.05, 1.1, 1.2],
    });
    case
}

/// The same with workers of different speeds.
fn shared_cores_uneven() -> Case {
    let mut case = shared_cores();
    case.workers = (1..=10).collect();
    case.worker = |id| ([1.0, 0.7, 1.0][usize::try_from(id % 3).unwrap()], None);
    case
}

fn request(case: &Case, ids: &[u64], per_node: Option<u64>, parent: Option<&Shape>) -> PlanRequest {
    let layout = case.planner.costs.layout();
    let worker = |id: &u64| {
        let (speed, memory_bytes) = (case.worker)(*id);
        WorkerInfo {
            id: WorkerId(*id),
            memory_bytes,
            speed,
            node: per_node.map_or(String::new(), |n| format!("node-{:03}", (id - 1) / n)),
            domain: String::new(),
        }
    };
    let held = parent.iter().flat_map(|p| p.members());
    let held = held.map(|w| (w, parent.unwrap().units(&layout, w)));
    PlanRequest {
        workers: ids.iter().map(worker).collect(),
        layout,
        global_batch_size: case.global_batch_size,
        held: held.filter(|(w, _)| ids.contains(&w.0)).collect(),
        parent: parent.cloned(),
        horizon_ms: parent.map(|_| 1_800_000.0),
        following: false,
        departure: None,
    }
}

/// The FNV-1a hash of a text, with 32 bits.
fn digest(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Digests of the plan without its reasons, and of its prediction, rounded to nine digits.
fn digests(shape: &Shape) -> String {
    let spares: Vec<WorkerId> = shape.spares.iter().map(|s| s.worker).collect();
    let work = (&shape.pipelines, spares, shape.micro_batch_size, shape.schedule);
    let p = &shape.predicted;
    let figures = format!(
        "{:.8e} {:.9} {:.8e} {}",
        p.step_ms, p.bubble, p.move_ms, p.calibrated
    );
    if std::env::var_os("VARUNA_SHOW_PLANS").is_some() {
        println!("{} {figures}", shape.summary());
    }
    let work = serde_json::to_string(&work).unwrap();
    format!("{:08x}:{:08x}", digest(&work), digest(&figures))
}

fn line(case: &Case, workers: u64) -> String {
    let plan = |ids: &[u64], per_node, parent: Option<&Shape>| {
        case.planner.plan(&request(case, ids, per_node, parent)).ok()
    };
    let ids: Vec<u64> = (1..=workers).collect();
    let more: Vec<u64> = (1..=workers + 1).collect();
    let first = plan(&ids, None, None);
    let mut line = format!("{workers:>3}");
    match &first {
        Some(shape) => write!(line, " {:.8e}", shape.predicted.step_ms).unwrap(),
        None => line.push_str(" none"),
    }
    for per_node in [None, Some(WORKERS_PER_NODE)] {
        let first = match per_node {
            None => first.clone(),
            some => plan(&ids, some, None),
        };
        let larger = plan(&more, per_node, None);
        let smaller = plan(&ids[1..], per_node, None);
        // The lost worker has a place in the middle of a pipeline as often as at its end.
        let gone = more[more.len() / 2];
        let left: Vec<u64> = more.iter().copied().filter(|id| *id != gone).collect();
        let after_loss = larger.as_ref().and_then(|p| plan(&left, per_node, Some(p)));
        let after_growth = smaller.as_ref().and_then(|p| plan(&ids, per_node, Some(p)));
        for shape in [first, after_loss, after_growth] {
            line.push(' ');
            line.push_str(&shape.as_ref().map_or_else(|| "-".to_owned(), digests));
        }
    }
    line
}

fn check(name: &str, case: &Case) {
    let lines: BTreeMap<u64, String> = std::thread::scope(|scope| {
        let halves = [0, 1].map(|odd| {
            let of = case.workers.iter().copied().filter(move |n| n % 2 == odd);
            scope.spawn(move || of.map(|n| (n, line(case, n))).collect::<Vec<_>>())
        });
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    let now: String = lines.values().map(|line| format!("{line}\n")).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("VARUNA_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    let pairs = now.lines().zip(golden.lines());
    let differs: Vec<_> = pairs.filter(|(now, then)| now != then).take(5).collect();
    assert!(
        now == golden,
        "{name}: {differs:#?}\nif this is meant, write it anew with VARUNA_WRITE_GOLDEN=1"
    );
}

macro_rules! golden {
    ($($name:ident: $case:expr;)*) => {
        $(#[test] fn $name() { check(stringify!($name), &$case); })*
    };
}

golden! {
    plans_of_the_demo: demo();
    plans_of_gpt2_tiny: gpt2_tiny(128);
    plans_of_the_measured_gpt2_xl: gpt2_xl_measured();
    plans_of_interleaved_pipelines: interleaved();
    plans_with_recompute: recompute();
    plans_for_uneven_workers: uneven();
    plans_for_uneven_workers_interleaved: uneven_interleaved();
    plans_on_shared_cores: shared_cores();
    plans_on_shared_cores_of_uneven_workers: shared_cores_uneven();
}
