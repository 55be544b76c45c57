//! `varuna run --max-restarts`: workers that die while the run trains are replaced, as often as was asked and not more often.

use nix::sys::signal::Signal;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run, assert_same_curve, event, last_of_each, signal, undisturbed};
use varuna_protocol::Phase;

/// So many that the run still trains when its worker is killed.
const STEPS: u64 = 200;
/// More than any machine trains here.
const FOR_EVER: u64 = 1_000_000;
/// How long a coordinator waits at the least for members of an inherited plan, and then for holders of its state, if it knows nothing of them.
const HOLDERS_AWAITED: Duration = Duration::from_secs(33);
/// How long `varuna run` waits for workers when none is left.
const WITHOUT_WORKERS: Duration = Duration::from_secs(300);

fn job(store: &TempDir, steps: u64) -> JobFile {
    JobFile {
        steps,
        checkpoint: Some(format!("uri: {}, intervalSteps: 5", store.path().display())),
        ..JobFile::default()
    }
}

/// Kills the worker of this name once it trains.
fn kill(run: &mut Run, name: &str) {
    let pid = run.wait_for(&format!("{name} in training"), |run| {
        let workers = run.status()?.workers;
        let trains = workers.iter().find(|w| w.view.name == name)?;
        (trains.view.phase == Some(Phase::Running)).then_some(trains.pid)
    });
    signal(pid, Signal::SIGKILL);
}

/// A run whose only worker died after a checkpoint, as did the only one that might replace it.
fn without_workers(store: &TempDir) -> Run {
    let mut run = Run::start_restarting(&job(store, FOR_EVER), 1, 1);
    run.wait_for("a checkpoint", |run| event(run, "checkpointed"));
    kill(&mut run, "w0");
    kill(&mut run, "w1");
    let waits = run.wait_for("the word that no worker is left", |run| {
        run.printed("no worker is left: ")
    });
    assert!(waits.contains("varuna scale "), "{waits}");
    let ended = run.printed("worker w1 has ended: ");
    assert_eq!(
        ended.as_deref(),
        Some("worker w1 has ended: signal: 9 (SIGKILL)"),
        "{}",
        run.report()
    );
    run
}

#[test]
fn killed_run_does_not_wait_for_workers_that_died_with_it() {
    let store = TempDir::new().unwrap();
    let mut run = Run::start(&job(&store, FOR_EVER), 2);
    run.wait_for("a checkpoint", |run| event(run, "checkpointed"));
    run.kill_coordinator();
    let began = Instant::now();
    run.start_again(2);
    run.wait_for("the run to go on from the checkpoint", |run| {
        let restored = |e: &serde_json::Value| e["event"] == "resumed" && e["restored"] == true;
        run.events().iter().any(restored).then_some(())
    });
    assert!(began.elapsed() < HOLDERS_AWAITED, "{}", run.report());
}

#[test]
fn dead_worker_is_restarted_and_the_run_completes() {
    let store = TempDir::new().unwrap();
    let mut run = Run::start_restarting(&job(&store, STEPS), 1, 1);
    run.wait_for("a checkpoint", |run| event(run, "checkpointed"));
    kill(&mut run, "w0");
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let ended = run.printed("worker w0 has ended: ");
    assert_eq!(
        ended.as_deref(),
        Some("worker w0 has ended: signal: 9 (SIGKILL); another one is started in 1 s"),
        "{}",
        run.report()
    );
    assert_eq!(
        run.printed("worker w1 has ended"),
        None,
        "it ended with the run: {}",
        run.report()
    );
    let resumed = event(&run, "resumed").unwrap();
    let base = resumed["base"]["step"].as_u64();
    assert!(resumed["restored"] == true && base >= Some(5), "{resumed}");
    assert!(
        run.printed(&format!("step {STEPS}/{STEPS}  ")).is_some(),
        "{}",
        run.report()
    );
    let without_restart = JobFile {
        steps: STEPS,
        ..JobFile::default()
    };
    assert_same_curve(
        undisturbed(&without_restart),
        &last_of_each(&run.metrics()),
        STEPS,
    );
}

#[test]
fn run_without_restarts_left_waits_and_can_be_stopped() {
    let store = TempDir::new().unwrap();
    let mut run = without_workers(&store);
    signal(run.pid(), Signal::SIGTERM);
    assert_eq!(run.exit_code(), 130, "{}", run.report());
}

#[test]
#[ignore = "it waits for workers for five minutes: make nightly"]
fn run_without_workers_ends_and_names_the_command() {
    let store = TempDir::new().unwrap();
    let mut run = without_workers(&store);
    assert_eq!(run.exit_code_after(WITHOUT_WORKERS), 1, "{}", run.report());
    let said = run.report();
    let folder = run.folder().display();
    for part in [
        "there was no worker for 5 minutes".to_owned(),
        format!("--run-dir {folder}"),
    ] {
        assert!(said.contains(&part), "{part}: {said}");
    }
}
