//! User-defined models (worker/tests/data/exported): whole runs with kills and growth, and the files that they leave.

#![expect(clippy::unwrap_used, reason = "a test")]

use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use varuna_fixtures::{JobFile, Run, assert_same_curve, event, own_model_path, signal};

const STEPS: u64 = 120;

fn job(model: &str, min_depth: u32) -> JobFile {
    JobFile {
        steps: STEPS,
        min_depth,
        ..JobFile::own_model(model)
    }
}

/// The losses of a run with one worker. They must decrease, because otherwise a difference could remain hidden.
fn alone(model: &str) -> Run {
    let mut alone = Run::start(&job(model, 1), 1);
    assert_eq!(alone.exit_code(), 0, "{}", alone.report());
    let curve = alone.metrics();
    let (first, last) = (curve[0].loss, curve[curve.len() - 1].loss);
    assert!(last < 0.7 * first, "the loss fell from {first} to {last} alone");
    alone
}

#[test]
fn exported_transformer_trains_through_kill_and_growth() {
    let alone = alone("decoder");
    let folder = tempfile::tempdir().unwrap();
    let (checkpoints, exported) = (folder.path().join("checkpoints"), folder.path().join("exported"));
    let job = JobFile {
        checkpoint: Some(format!("uri: {checkpoints:?}, intervalSteps: 50")),
        ..job("decoder", 2)
    };
    let mut run = Run::start(&job, 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[1].pid, Signal::SIGKILL);
    run.wait_for_workers(3);
    assert!(run.varuna(&["scale", "RUN", "4"]).status.success());
    run.wait_for_workers(4);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(&alone.metrics(), &run.metrics(), STEPS);

    // The loss of the checkpoint that was saved before the last evaluation.
    let data = own_model_path("decoder-data");
    let place = checkpoints.join("elastic");
    let told = run.varuna(&[
        "evaluate",
        place.to_str().unwrap(),
        data.to_str().unwrap(),
        "--validation-fraction",
        "0.1",
        "--step",
        "100",
        "--steps",
        "1",
        "--json",
    ]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let found: Value = serde_json::from_slice(&told.stdout).unwrap();
    let metrics = run.metrics();
    let of_run = metrics
        .iter()
        .find(|m| m.step.0 == 101)
        .unwrap()
        .eval_loss
        .unwrap();
    let of_checkpoint = found["loss"].as_f64().unwrap();
    assert!(
        (of_run - of_checkpoint).abs() < 1e-5 * of_run,
        "{of_run} and {of_checkpoint}"
    );
    assert!(
        found.get("perplexity").is_none() && found["windows"] == 8,
        "{found}"
    );

    // The export for PyTorch has the names and shapes of the user's model.
    let place = checkpoints.join("elastic");
    let told = run.varuna(&[
        "checkpoint",
        "export",
        place.to_str().unwrap(),
        exported.to_str().unwrap(),
    ]);
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let bytes = std::fs::read(exported.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let found: BTreeMap<String, Vec<usize>> = file
        .tensors()
        .into_iter()
        .map(|(name, tensor)| (name, tensor.shape().to_vec()))
        .collect();
    assert_eq!(found, parameters(&own_model_path("decoder")));
}

/// Names and shapes of all parameters of an exported model.
fn parameters(folder: &Path) -> BTreeMap<String, Vec<usize>> {
    let manifest = std::fs::read(folder.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let segments = manifest["segments"].as_array().unwrap();
    let all = segments.iter().chain([&manifest["shared"]]);
    let all = all.flat_map(|of| of["parameters"].as_array().unwrap());
    all.map(|p| {
        let shape = serde_json::from_value(p["shape"].clone()).unwrap();
        (p["name"].as_str().unwrap().to_owned(), shape)
    })
    .collect()
}

#[test]
fn a_run_with_another_folder_than_the_job_means_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    let job = varuna_fixtures::prepare(folder.path(), &job("mlp", 1));
    let text = std::fs::read_to_string(&job).unwrap();
    let refused = |from: &str, to: &str| {
        std::fs::write(&job, text.replace(from, to)).unwrap();
        let mut varuna = Command::new(varuna_fixtures::program("varuna"));
        let run = varuna
            .arg("run")
            .arg(&job)
            .arg("--run-dir")
            .arg(folder.path().join("run"));
        let done = run.output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{to}");
        String::from_utf8(done.stderr).unwrap()
    };
    let found = refused("exported/mlp\"", "exported/none\"");
    assert!(found.contains("spec.model.exported.path: cannot read"), "{found}");
    let found = refused("exported/mlp\"", "exported/decoder\"");
    assert!(
        found.contains("spec.model.exported.digest:") && found.contains("exported anew"),
        "{found}"
    );
    assert!(!folder.path().join("run").exists(), "no run folder is made");
}

/// Each record is one sample, including the last one.
#[test]
fn layers_on_records_draw_the_curve_of_one_through_a_kill() {
    let alone = alone("mlp");
    let mut run = Run::start(&job("mlp", 2), 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[2].pid, Signal::SIGKILL);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert!(event(&run, "workerLost").is_some(), "{}", run.report());
    assert_same_curve(&alone.metrics(), &run.metrics(), STEPS);
}
