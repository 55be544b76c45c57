//! Whole runs with a stand-in for NCCL that has one process for each rank. Workers are killed during sums and transfers of boundaries.
//!
//! The workers are `worker/examples/worker_separate_memory`: the shipped program with a device whose memory is not the host's, and with a driver and
//! an NCCL that run late. Without a GPU, this is the closest to a node with several GPUs.

use nix::sys::signal::Signal;
use std::sync::OnceLock;
use varuna_fixtures::{JobFile, Metric, Run, assert_curve_within, signal};

const STEPS: u64 = 60;
/// Relative difference that is allowed: sums of three holders have another order over NCCL than over a ring.
const ROUNDING: f64 = 1e-5;

fn job(transport: &str) -> JobFile {
    JobFile {
        steps: STEPS,
        batch: 8,
        min_depth: 2,
        spec: vec![format!("workers: {{device: auto, transport: {transport}}}")],
        ..JobFile::default()
    }
}

fn start(transport: &str) -> Run {
    // Each operation takes a few milliseconds longer, so that a kill happens while operations are running.
    let slow = ("VARUNA_FAKE_NCCL_FAULT".to_owned(), "slow:2".to_owned());
    Run::start_workers(&job(transport), 4, "examples/worker_separate_memory", &[slow])
}

fn undisturbed_over_tcp() -> &'static [Metric] {
    static METRICS: OnceLock<Vec<Metric>> = OnceLock::new();
    METRICS.get_or_init(|| {
        let mut run = start("tcp");
        assert_eq!(run.exit_code(), 0, "{}", run.report());
        let logs = run.logs();
        assert!(!logs.contains("tensors go over NCCL"), "{logs}");
        run.metrics()
    })
}

#[test]
fn nccl_survivors_keep_the_losses_of_tcp() {
    let mut run = start("nccl");
    for step in [8, 25] {
        run.wait_for_step(step);
        let workers = run.wait_for_workers(4);
        signal(workers[1].pid, Signal::SIGKILL);
        run.wait_for_workers(3);
        if step == 8 {
            // Each segment has two holders again, so the next kill costs no step either.
            assert!(run.varuna(&["scale", "RUN", "4"]).status.success());
        }
    }
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let logs = run.logs();
    assert!(logs.contains("tensors go over NCCL"), "{logs}");
    assert!(logs.contains("attention=flash"), "{logs}");
    assert_curve_within(ROUNDING, undisturbed_over_tcp(), &run.metrics(), STEPS);
    let generations: std::collections::BTreeSet<u64> = run.metrics().iter().map(|m| m.generation.0).collect();
    assert!(generations.len() >= 3, "steps under each plan: {generations:?}");
}

/// Parameters and partial sums are sent from device to device when a worker is killed.
#[test]
fn state_that_four_pipelines_share_out_survives_kills_over_nccl() {
    // Enough steps to scale up twice.
    let steps = 120;
    let job = |transport: &str, sharding: &str| JobFile {
        steps,
        layers: 2,
        min_depth: 1,
        pipeline: vec!["maxDepth: 1".to_owned()],
        optimizer: vec![format!("sharding: {sharding}")],
        learning_rate: 0.001,
        ..job(transport)
    };
    let slow = ("VARUNA_FAKE_NCCL_FAULT".to_owned(), "slow:2".to_owned());
    let mut run = Run::start_workers(
        &job("nccl", "zero1"),
        4,
        "examples/worker_separate_memory",
        &[slow],
    );
    for step in [8, 25] {
        run.wait_for_step(step);
        run.kill_and_replace(1, 4);
    }
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let logs = run.logs();
    assert!(logs.contains("tensors go over NCCL"), "{logs}");
    let events = run.events();
    let count = |kind: &str| events.iter().filter(|e| e["event"] == kind).count();
    assert!(count("fenced") >= 2, "{logs}");
    assert_eq!(count("lost"), 0, "{logs}");
    let mut undisturbed = Run::start_workers(&job("tcp", "none"), 1, "examples/worker_separate_memory", &[]);
    assert_eq!(undisturbed.exit_code(), 0, "{}", undisturbed.report());
    assert_curve_within(ROUNDING, &undisturbed.metrics(), &run.metrics(), steps);
}

#[test]
fn worker_without_nccl_trains_over_tcp_with_others() {
    let without = ("VARUNA_APART_WITHOUT_NCCL".to_owned(), "w2".to_owned());
    let mut run = Run::start_workers(&job("auto"), 4, "examples/worker_separate_memory", &[without]);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let logs = run.logs();
    let said = |what: &str| logs.lines().filter(|line| line.contains(what)).count();
    assert_eq!(said("tensors go over TCP"), 1, "{logs}");
    assert_eq!(said("NCCL is not here; tried"), 1, "{logs}");
    // At least the pipeline that the worker is not part of is connected by NCCL.
    assert!(said("tensors go over NCCL") >= 2, "{logs}");
    assert_eq!(said("training is stopped"), 0, "{logs}");
    assert_curve_within(ROUNDING, undisturbed_over_tcp(), &run.metrics(), STEPS);
}

#[test]
fn gpu_profile_has_device_times_and_estimated_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = varuna_fixtures::prepare(folder.path(), &job("auto"));
    let done = std::process::Command::new(varuna_fixtures::program("varuna"))
        .arg("profile")
        .arg(&path)
        .args([
            "--device",
            "cuda:0",
            "--repeats",
            "1",
            "--micro-batch-sizes",
            "1",
            "--json",
        ])
        .arg("--worker-binary")
        .arg(varuna_fixtures::program("examples/worker_separate_memory"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let profile: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(profile["device"], "cpu (separate memory)");
    assert_eq!(profile["host"], serde_json::Value::Null);
    let told = profile["measured"].as_str().unwrap();
    assert!(told.contains("attention flash; memory estimated"), "{told}");
    for segment in profile["segments"].as_array().unwrap() {
        assert!(
            segment["rows"][0]["forwardMs"].as_f64().unwrap() > 0.0,
            "{segment}"
        );
        assert!(segment["savedBytes"].as_u64().unwrap() > 0, "{segment}");
    }
}
