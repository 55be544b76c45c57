//! Sharded optimizer state with real processes. Losing any one of four pipelines loses no state, and jobs with and without sharding can
//! read each other's checkpoints.

use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run, assert_same_curve, undisturbed};

const STEPS: u64 = 120;

/// Pipelines with one stage each.
fn side_by_side(sharding: &str) -> JobFile {
    JobFile {
        steps: STEPS,
        layers: 2,
        batch: 8,
        pipeline: vec!["maxDepth: 1".to_owned()],
        optimizer: vec![format!("sharding: {sharding}")],
        // Sums in another order differ in their last bits, and at twice this learning rate the difference grows.
        learning_rate: 0.001,
        ..JobFile::default()
    }
}

#[test]
fn sharded_job_keeps_its_curve_through_kills_and_growth() {
    let mut run = Run::start(&side_by_side("zero1"), 4);
    run.wait_for_step(10);
    for lost in [1, 0] {
        run.kill_and_replace(lost, 4);
    }
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let curve = undisturbed(&side_by_side("none"));
    let (first, last) = (curve[0].loss, curve[curve.len() - 1].loss);
    assert!(last < first - 0.5, "the loss fell from {first} to {last} alone");
    assert_same_curve(curve, &run.metrics(), STEPS);
    assert!(
        run.plans()
            .iter()
            .any(|plan| plan.layout.ranges == 12 && plan.shape.pipelines.len() == 4),
        "{}",
        run.report()
    );
    let events = run.events();
    let count = |kind: &str| events.iter().filter(|e| e["event"] == kind).count();
    assert!(count("fenced") >= 2, "{}", run.report());
    assert_eq!(count("lost"), 0, "{}", run.report());
    // The first plan is restored, from the seed.
    let restored = events
        .iter()
        .filter(|e| e["event"] == "resumed" && e["restored"] == true);
    assert_eq!(restored.count(), 1, "{}", run.report());
}

/// A run with three workers that ends with this step, with its checkpoints in the folder `store`.
fn checkpointed(store: &Path, sharding: &str, steps: u64, from: &str) -> Run {
    let job = JobFile {
        steps,
        decay_steps: Some(STEPS),
        checkpoint: Some(format!("uri: {}, intervalSteps: 1000{from}", store.display())),
        ..side_by_side(sharding)
    };
    let mut run = Run::start(&job, 3);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    run
}

/// The held-out loss of a run's last checkpoint.
fn evaluated(run: &Run, store: &Path) -> f64 {
    let text = |path: &Path| path.to_str().expect("temporary folders are UTF-8").to_owned();
    let data = text(&run.folder().with_file_name("data"));
    let found = run.varuna(&[
        "evaluate",
        &text(&store.join("elastic")),
        &data,
        "--json",
        "--validation-fraction",
        "0.1",
    ]);
    assert!(
        found.status.success(),
        "{}",
        String::from_utf8_lossy(&found.stderr)
    );
    let found: Value = serde_json::from_slice(&found.stdout).expect("JSON");
    found["loss"].as_f64().expect("a number")
}

#[test]
fn checkpoints_are_read_with_and_without_sharding() {
    let [whole, shared, longer, third, fourth] = std::array::from_fn(|_| TempDir::new().unwrap());
    let without = checkpointed(whole.path(), "none", 20, "");
    let sharded = checkpointed(shared.path(), "zero1", 20, "");
    let close = |a: f64, b: f64, what: &str| assert!((a - b).abs() < 1e-5 * b, "{what}: {a} and {b}");
    let loss = evaluated(&without, whole.path());
    close(evaluated(&sharded, shared.path()), loss, "step 20");
    // Each job continues with the state of the other kind.
    let undisturbed = evaluated(&checkpointed(longer.path(), "none", 30, ""), longer.path());
    for (store, sharding, from) in [(&third, "zero1", &whole), (&fourth, "none", &shared)] {
        let from = format!(", from: {{job: elastic, uri: {}}}", from.path().display());
        let run = checkpointed(store.path(), sharding, 30, &from);
        assert_eq!(run.metrics()[0].step.0, 21, "{}", run.report());
        close(evaluated(&run, store.path()), undisturbed, sharding);
    }
}
