//! fp16 with real processes: the loss scale and the skipped steps equal those of an undisturbed run, whichever workers die or join.

use nix::sys::signal::Signal;
use std::path::Path;
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Metric, Run, assert_curve_within, event, last_of_each, signal, undisturbed};

const STEPS: u64 = 60;
/// Far more than fp16 can represent: the first steps overflow, and each halves the scale. After every eight steps it is doubled, until it
/// is too large again.
const SCALE: &str = "lossScale: {initial: 4294967296, window: 8}";

/// Relative difference of losses that is allowed. Sums in another order change the last digits of the master parameters, and sometimes
/// their copies in fp16.
const OFF: f64 = 1e-3;

fn fp16(min_depth: u32) -> JobFile {
    JobFile {
        min_depth,
        hidden: 32,
        batch: 8,
        training: vec!["precision: fp16".into(), SCALE.into()],
        ..JobFile::default()
    }
}

fn saving(store: &Path, min_depth: u32) -> JobFile {
    JobFile {
        checkpoint: Some(format!("uri: {}, intervalSteps: 3", store.display())),
        ..fp16(min_depth)
    }
}

fn assert_same(undisturbed: &[Metric], run: &[Metric]) {
    assert_curve_within(OFF, undisturbed, run, STEPS);
    let counted = |of: &[Metric]| -> Vec<(u64, bool, u64, Option<u64>)> {
        of.iter()
            .map(|m| (m.step.0, m.overflow, m.skipped_steps, m.loss_scale))
            .collect()
    };
    assert_eq!(counted(undisturbed), counted(run));
    let falls = run.iter().take_while(|m| m.overflow).count();
    let skipped = run.last().map_or(0, |m| m.skipped_steps);
    assert!(
        falls >= 3 && skipped > falls as u64,
        "{falls} of {skipped} skipped steps are the first ones"
    );
}

#[test]
fn kill_and_join_do_not_change_the_loss_scale() {
    let mut run = Run::start(&fp16(2), 4);
    let workers = run.wait_for_workers(4);
    run.wait_for_step(2);
    signal(workers[1].pid, Signal::SIGKILL);
    run.wait_for_workers(3);
    assert!(run.varuna(&["scale", "RUN", "4"]).status.success());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let trained: std::collections::BTreeSet<u64> = run.metrics().iter().map(|m| m.generation.0).collect();
    assert!(trained.len() > 1, "steps before and after the kill: {trained:?}");
    assert_same(undisturbed(&fp16(1)), &run.metrics());
}

#[test]
fn restored_run_continues_with_its_loss_scale() {
    let store = TempDir::new().unwrap();
    let mut run = Run::start(&saving(store.path(), 1), 3);
    let workers = run.wait_for_workers(3);
    run.wait_for("a checkpoint", |run| {
        let log = run.events();
        log.iter().any(|e| e["event"] == "checkpointed").then_some(())
    });
    for worker in workers {
        signal(worker.pid, Signal::SIGKILL);
    }
    run.wait_for("the word that workers are missing", |run| {
        event(run, "belowMinimum").filter(|_| event(run, "fenced").is_some())
    });
    assert!(run.varuna(&["scale", "RUN", "2"]).status.success());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let resumed = event(&run, "resumed").unwrap();
    assert_eq!(resumed["restored"], true, "{resumed}");
    assert!(resumed["base"]["step"].as_u64() > Some(0), "{resumed}");
    assert_same(undisturbed(&fp16(1)), &last_of_each(&run.metrics()));
    let status = run.varuna(&["status", "RUN"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let last = run.metrics().pop().unwrap();
    let shown = format!(
        "scale {}  {} skipped",
        last.loss_scale.unwrap(),
        last.skipped_steps
    );
    assert!(status.contains(&shown), "{status}");
}

#[test]
fn diverged_run_ends_and_names_the_step() {
    let job = JobFile {
        training: vec![
            "precision: fp16".into(),
            "lossScale: {static: 4294967296}".into(),
            "skipLimit: 4".into(),
        ],
        ..fp16(2)
    };
    let mut run = Run::start(&job, 2);
    assert_eq!(run.exit_code(), 5, "{}", run.report());
    let report = run.report();
    let expected = "at step 5 the gradient or the loss was not finite for the 5. time in a row under the loss scale 4294967296, which \
                    cannot fall: more than spec.training.skipLimit allows";
    assert!(report.contains(expected), "{report}");
    let told = event(&run, "diverged").unwrap();
    assert_eq!(
        (told["step"].as_u64(), told["failedInARow"].as_u64()),
        (Some(5), Some(5))
    );
    let metrics = run.metrics();
    assert!(metrics.len() >= 5 && metrics.iter().all(|m| m.overflow));
    assert_eq!(metrics[4].skipped_steps, 5);
}
