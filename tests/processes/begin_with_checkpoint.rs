//! A job that begins with another job's checkpoint, with real processes.

use nix::sys::signal::Signal;
use std::path::Path;
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run, assert_same_curve, event, last_of_each, signal, undisturbed};

const STEPS: u64 = 60;

fn job(folder: &Path) -> JobFile {
    JobFile {
        checkpoint: Some(format!("uri: {}, intervalSteps: 5", folder.display())),
        ..JobFile::default()
    }
}

/// Kills all workers, and starts two others.
fn replace_workers(run: &mut Run) {
    for worker in run.wait_for_workers(3) {
        signal(worker.pid, Signal::SIGKILL);
    }
    run.wait_for("the word that workers are missing", |run| {
        event(run, "belowMinimum").filter(|_| event(run, "fenced").is_some())
    });
    assert!(run.varuna(&["scale", "RUN", "2"]).status.success());
}

#[test]
fn job_starts_from_another_jobs_checkpoint() {
    let (base, own) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut first = Run::start(
        &JobFile {
            steps: 20,
            decay_steps: Some(STEPS),
            ..job(base.path())
        },
        2,
    );
    assert_eq!(first.exit_code(), 0, "{}", first.report());
    drop(first);
    let from = |step: u64, more: &str| JobFile {
        checkpoint: Some(format!(
            "uri: {}, from: {{job: elastic, uri: {}, step: {step}{more}}}, intervalSteps: 1000",
            own.path().display(),
            base.path().display()
        )),
        ..JobFile::default()
    };
    let mut missing = Run::start(&from(7, ""), 1);
    assert_eq!(missing.exit_code(), 2, "{}", missing.report());
    let said = "spec.checkpoint.from: the checkpoint of job elastic in ";
    assert!(missing.report().contains(said), "{}", missing.report());
    let mut second = Run::start(&from(20, ""), 3);
    second.wait_for_step(25);
    replace_workers(&mut second);
    assert_eq!(second.exit_code(), 0, "{}", second.report());
    let events = second.events();
    let resumed = events.iter().filter(|e| e["event"] == "resumed");
    let bases: Vec<u64> = resumed.filter_map(|e| e["base"]["step"].as_u64()).collect();
    assert_eq!(bases.first(), Some(&20), "{}", second.report());
    // The other job's is not told as its own.
    let saved = events.iter().filter(|e| e["event"] == "checkpointed");
    let saved: Vec<u64> = saved.filter_map(|e| e["step"].as_u64()).collect();
    assert!(saved.first() > Some(&20), "{saved:?} {}", second.report());
    assert_eq!(
        bases.last(),
        Some(&20),
        "it had none of its own: {}",
        second.report()
    );
    assert!(bases.len() > 1, "{}", second.report());
    let mut whole = undisturbed(&JobFile::default())[..20].to_vec();
    whole.extend(last_of_each(&second.metrics()));
    assert_same_curve(undisturbed(&JobFile::default()), &whole, STEPS);
    // The job has its own checkpoint of its last step. So it has nothing left to do, although the other job's checkpoint is gone.
    drop(second);
    std::fs::remove_dir_all(base.path().join("elastic")).unwrap();
    let mut third = Run::start(&from(20, ""), 2);
    assert_eq!(third.exit_code(), 0, "{}", third.report());
    assert!(third.metrics().is_empty());
}

#[test]
fn weights_only_start_begins_at_step_zero() {
    let base = TempDir::new().unwrap();
    let mut first = Run::start(&job(base.path()), 1);
    assert_eq!(first.exit_code(), 0, "{}", first.report());
    let learned = first.metrics();
    let (seed, last) = (learned[0].loss, learned[learned.len() - 1].loss);
    drop(first);
    let tuned = |own: &TempDir, min_depth: u32| JobFile {
        steps: 20,
        min_depth,
        checkpoint: Some(format!(
            "uri: {}, from: {{job: elastic, uri: {}, weightsOnly: true}}, intervalSteps: 1000",
            own.path().display(),
            base.path().display()
        )),
        ..JobFile::default()
    };
    let own = TempDir::new().unwrap();
    let mut second = Run::start(&tuned(&own, 1), 1);
    assert_eq!(second.exit_code(), 0, "{}", second.report());
    let curve = second.metrics();
    drop(second);
    let steps: Vec<u64> = curve.iter().map(|m| m.step.0).collect();
    assert_eq!(steps, (1..=20).collect::<Vec<_>>());
    let begun = curve[0].loss;
    assert!(
        begun < f64::midpoint(seed, last),
        "{begun} with trained weights, {seed} from the seed, {last} at their last step"
    );
    // The job has another plan, and all workers die before it has a checkpoint of its own.
    let own = TempDir::new().unwrap();
    let mut third = Run::start(&tuned(&own, 2), 3);
    third.wait_for_step(5);
    let files: Vec<_> = own.path().join("elastic").read_dir().unwrap().flatten().collect();
    let states = files
        .iter()
        .filter(|f| f.file_name().to_string_lossy().starts_with("step-"));
    assert_eq!(states.count(), 0);
    replace_workers(&mut third);
    assert_eq!(third.exit_code(), 0, "{}", third.report());
    let again = last_of_each(&third.metrics());
    assert_eq!(again.len(), curve.len());
    for (a, b) in curve.iter().zip(&again) {
        let off = (a.loss - b.loss).abs() / a.loss;
        assert!(off <= 1e-5, "step {}: {} and {}", a.step, a.loss, b.loss);
    }
}
