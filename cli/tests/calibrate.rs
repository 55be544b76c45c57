//! `varuna plan calibrate`: runs that show that a profile is wrong by a factor correct it.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use varuna_model::presets;
use varuna_plan::profile::Profile;
use varuna_plan::{Costs, Device};

const JOB: &str = "
apiVersion: varuna.dev/v1alpha1
kind: VarunaJob
metadata: {name: calibrate}
spec:
  model: {preset: gpt2-tiny}
  data: {path: not-read}
  training: {globalBatchSize: 8, steps: 5, seed: 1, optimizer: {learningRate: 0.001}}
  elasticity: {maxWorkers: 8}
";

/// The JSON output of the command.
fn json_of(arguments: &[&Path]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_varuna"));
    let output = command.args(arguments).arg("--json").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A line of `metrics.jsonl`.
fn published(step: u32, generation: u32, time_ms: f64) -> String {
    format!(
        "{{\"step\": {step}, \"generation\": {generation}, \"timeMs\": {time_ms:.0}, \"loss\": 1, \"gradientNorm\": 1, \
         \"overflow\": false, \"workers\": 1, \"plan\": \"P1xD1\", \"tokens\": 1, \"stepMs\": 1, \
         \"state\": {{\"run_gen\": {generation}, \"step\": {step}, \"chain\": \"0000000000000000\"}}}}\n"
    )
}

#[test]
fn calibrate_refuses_a_plan_with_too_few_steps() {
    let folder = tempfile::tempdir().unwrap();
    let [profile, run] = ["profile.json", "run"].map(|name| folder.path().join(name));
    let costs = Costs::estimate(&presets::preset("gpt2-tiny").unwrap().spec(), Device::CPU_CORE);
    let measured = Profile::of_costs(&costs, "gpt2-tiny".into(), "cpu-core".into());
    std::fs::write(&profile, serde_json::to_string(&measured).unwrap()).unwrap();
    std::fs::create_dir(&run).unwrap();
    let lines = (1..=9).map(|i| published(i, if i < 9 { 1 } else { 2 }, 10.0 * f64::from(i)));
    std::fs::write(run.join("metrics.jsonl"), lines.collect::<String>()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_varuna"))
        .args(["plan", "calibrate", "--profile"])
        .arg(&profile)
        .arg("--run")
        .arg(&run)
        .output()
        .unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{why}");
    assert!(
        why.contains("generation 2 has 1 steps, at least 4 are needed"),
        "{why}"
    );
}

#[test]
fn runs_that_take_twice_as_long_double_the_factor_on_compute() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    std::fs::write(file("job.yaml"), JOB).unwrap();
    let model = presets::preset("gpt2-tiny").unwrap();
    let costs = Costs::estimate(&model.spec(), Device::CPU_CORE);
    let profile = Profile::of_costs(&costs, "gpt2-tiny".into(), "cpu-core".into());
    std::fs::write(file("profile.json"), serde_json::to_string(&profile).unwrap()).unwrap();

    let [job, profile, fitted] = ["job.yaml", "profile.json", "fitted.json"].map(file);
    let runs = ["1", "2", "3"].map(|workers| {
        let plan = json_of(&[
            "plan".as_ref(),
            &job,
            "--profile".as_ref(),
            &profile,
            "-n".as_ref(),
            workers.as_ref(),
        ]);
        let run = file(&format!("run-{workers}"));
        std::fs::create_dir_all(run.join("plans")).unwrap();
        std::fs::write(run.join("plans/g000001.json"), plan.to_string()).unwrap();
        let step_ms = 2.0 * plan["predicted"]["stepMs"].as_f64().unwrap();
        let metrics = (0..8).map(|i| {
            let time_ms = f64::from(i) * step_ms;
            published(i, 1, time_ms)
        });
        std::fs::write(run.join("metrics.jsonl"), metrics.collect::<String>()).unwrap();
        run
    });
    let mut arguments: Vec<&Path> = vec![
        "plan".as_ref(),
        "calibrate".as_ref(),
        "--profile".as_ref(),
        &profile,
    ];
    arguments.extend(["-o".as_ref(), fitted.as_path()]);
    for run in &runs {
        arguments.extend(["--run".as_ref(), run.as_path()]);
    }
    let found = json_of(&arguments);
    let compute = found["calibration"]["compute"].as_f64().unwrap();
    assert!((1.9..2.2).contains(&compute), "{found}");
    let fitted_on: Vec<_> = found["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["fitted"])
        .collect();
    assert_eq!(fitted_on, [false, true, false], "{found}");
    assert!(found["worstError"].as_f64().unwrap() < 0.05, "{found}");
    let text = std::fs::read_to_string(&fitted).unwrap();
    let written = Profile::read("fitted", &text, None).unwrap();
    assert_eq!(json!(written.calibration), found["calibration"]);

    let other = presets::preset("gpt2-small").unwrap();
    let costs = Costs::estimate(&other.spec(), Device::CPU_CORE);
    let other = Profile::of_costs(&costs, "gpt2-small".into(), "cpu-core".into());
    std::fs::write(&profile, serde_json::to_string(&other).unwrap()).unwrap();
    let refused = Command::new(env!("CARGO_BIN_EXE_varuna"))
        .args(&arguments)
        .output()
        .unwrap();
    let why = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{why}");
    assert!(why.contains("run-1: not of the profile's model"), "{why}");
}
