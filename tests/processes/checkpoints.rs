//! Checkpoints with real processes. A run resumes from what was saved, under any plan, and a failing store does not stop training.

use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run, assert_same_curve, event, last_of_each, signal, undisturbed};

const STEPS: u64 = 60;

fn job(folder: &Path) -> JobFile {
    JobFile {
        checkpoint: Some(format!("uri: {}, intervalSteps: 5", folder.display())),
        ..JobFile::default()
    }
}

/// Starts `varuna run` again in the run's folder, with another number of steps in its job file. Returns the exit code and standard error.
fn run_again(run: &Run, from: u64, to: u64) -> (Option<i32>, String) {
    let file = run.folder().with_file_name("job.yaml");
    let text = std::fs::read_to_string(&file).expect("the job file");
    let (from, to) = (format!("steps: {from}\n"), format!("steps: {to}\n"));
    assert!(text.contains(&from), "{text}");
    std::fs::write(&file, text.replace(&from, &to)).expect("a writable folder");
    let file = file.to_str().expect("temporary folders are UTF-8");
    let output = run.varuna(&["run", file, "--workers", "2", "--run-dir", "RUN"]);
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn complete_run_continues_with_more_steps() {
    let store = TempDir::new().unwrap();
    let begun = JobFile {
        steps: 20,
        ..job(store.path())
    };
    let mut run = Run::start(&begun, 2);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let (code, said) = run_again(&run, 20, 40);
    assert_eq!(code, Some(0), "{said}");
    let whole = JobFile {
        steps: 40,
        decay_steps: Some(20),
        ..JobFile::default()
    };
    assert_same_curve(undisturbed(&whole), &last_of_each(&run.metrics()), 40);
    let resumed = event(&run, "resumed").unwrap();
    assert_eq!(resumed["base"]["step"], 20, "{resumed}");
    let (code, said) = run_again(&run, 40, 30);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("spec.training.steps: 30 — at least 40"), "{said}");
    let (code, said) = run_again(&run, 30, 10);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("spec.training.steps: 10 — at least 20, as the run began"),
        "{said}"
    );
}

/// Names of the complete checkpoints, oldest first.
fn complete(store: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(store.join("elastic"))
        .into_iter()
        .flatten()
        .flatten();
    let mut found: Vec<PathBuf> = folders
        .map(|f| f.path())
        .filter(|f| f.join("manifest.json").exists())
        .collect();
    found.sort();
    found
}

#[test]
fn new_workers_resume_from_the_newest_checkpoint() {
    let store = TempDir::new().unwrap();
    let mut run = Run::start(&job(store.path()), 3);
    run.wait_for("two checkpoints", |_| {
        (complete(store.path()).len() >= 2).then_some(())
    });
    for worker in run.wait_for_workers(3) {
        signal(worker.pid, Signal::SIGKILL);
    }
    run.wait_for("the word that workers are missing", |run| {
        event(run, "belowMinimum").filter(|_| event(run, "fenced").is_some())
    });
    let newest = step_of(complete(store.path()).last().unwrap());
    let trained = run.metrics().last().map(|m| m.step.0);
    assert!(run.varuna(&["scale", "RUN", "2"]).status.success());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let resumed = event(&run, "resumed").unwrap();
    assert_eq!(resumed["restored"], true, "{resumed}");
    // The age of the newest checkpoint depends on the speed of uploads, which have a lower priority than training.
    assert_eq!(resumed["base"]["step"].as_u64(), Some(newest), "{resumed}");
    assert!(newest >= 10 && newest.is_multiple_of(5), "{resumed}");
    let lost = trained.map(|step| step - newest);
    assert_eq!(resumed["stepsLost"].as_u64(), lost, "{resumed}");
    assert_same_curve(
        undisturbed(&JobFile::default()),
        &last_of_each(&run.metrics()),
        STEPS,
    );
}

#[test]
fn later_run_resumes_under_another_plan() {
    let store = TempDir::new().unwrap();
    let mut first = Run::start(
        &JobFile {
            min_depth: 2,
            ..job(store.path())
        },
        4,
    );
    first.wait_for("a checkpoint", |_| {
        (!complete(store.path()).is_empty()).then_some(())
    });
    signal(first.pid(), Signal::SIGKILL);
    drop(first);
    let mut second = Run::start(
        &JobFile {
            min_depth: 3,
            ..job(store.path())
        },
        3,
    );
    assert_eq!(second.exit_code(), 0, "{}", second.report());
    let resumed = event(&second, "resumed").unwrap();
    let base = resumed["base"]["step"].as_u64().unwrap();
    assert!(base > 0, "{resumed}");
    let metrics = second.metrics();
    assert_eq!(metrics.first().map(|m| m.step.0), Some(base + 1));
    let mut whole = undisturbed(&JobFile::default())[..usize::try_from(base).unwrap()].to_vec();
    whole.extend(metrics);
    assert_same_curve(undisturbed(&JobFile::default()), &whole, STEPS);
    // The second run has saved a checkpoint at its end, so a third run has nothing left to do.
    let mut third = Run::start(&job(store.path()), 2);
    assert_eq!(third.exit_code(), 0, "{}", third.report());
    assert!(third.metrics().is_empty());
}

#[test]
fn checkpoint_without_manifest_is_completed() {
    let store = TempDir::new().unwrap();
    let mut first = Run::start(&job(store.path()), 2);
    first.wait_for("two checkpoints", |_| {
        (complete(store.path()).len() >= 2).then_some(())
    });
    signal(first.pid(), Signal::SIGKILL);
    drop(first);
    // The state of the store as if the worker had died between the last shard and the manifest.
    let newest = complete(store.path()).pop().unwrap();
    std::fs::remove_file(newest.join("manifest.json")).unwrap();
    let mut second = Run::start(&job(store.path()), 2);
    assert_eq!(second.exit_code(), 0, "{}", second.report());
    let resumed = event(&second, "resumed").unwrap();
    let base = resumed["base"]["step"].as_u64().unwrap();
    assert!(base >= step_of(&newest), "{resumed}");
    let mut whole = undisturbed(&JobFile::default())[..usize::try_from(base).unwrap()].to_vec();
    whole.extend(second.metrics());
    assert_same_curve(undisturbed(&JobFile::default()), &whole, STEPS);
}

#[test]
fn damaged_checkpoint_is_skipped() {
    let store = TempDir::new().unwrap();
    let mut first = Run::start(&job(store.path()), 2);
    first.wait_for("two checkpoints", |_| {
        (complete(store.path()).len() >= 2).then_some(())
    });
    signal(first.pid(), Signal::SIGKILL);
    drop(first);
    let whole = complete(store.path());
    let [.., before, newest] = whole.as_slice() else {
        panic!("{whole:?}")
    };
    let shard = newest.join("segment-002.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&shard, bytes).unwrap();
    let mut second = Run::start(&job(store.path()), 2);
    assert_eq!(second.exit_code(), 0, "{}", second.report());
    let bases: Vec<u64> = second
        .events()
        .iter()
        .filter(|e| e["event"] == "resumed")
        .filter_map(|e| e["base"]["step"].as_u64())
        .collect();
    // Another worker that was reading it may have tried once more before it was marked as damaged.
    assert_eq!(bases.first(), Some(&step_of(newest)), "{}", second.report());
    assert_eq!(bases.last(), Some(&step_of(before)), "{}", second.report());
    assert_eq!(second.metrics().last().map(|m| m.step.0), Some(STEPS));
}

#[test]
fn a_store_that_fails_stops_nobody_and_the_run_says_so() {
    let store = TempDir::new().unwrap();
    let mut run = Run::start(&job(store.path()), 2);
    run.wait_for("a checkpoint", |_| {
        (!complete(store.path()).is_empty()).then_some(())
    });
    let (place, away) = (store.path().join("elastic"), store.path().join("away"));
    std::fs::rename(&place, &away).unwrap();
    std::fs::write(&place, "not a folder").unwrap();
    run.wait_for_step(STEPS);
    let stale = run.wait_for("the word that checkpoints fall behind", |run| {
        event(run, "checkpointStale")
    });
    assert!(stale["stepsBehind"].as_u64().is_some_and(|n| n > 15), "{stale}");
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&away, &place).unwrap();
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let last = complete(store.path()).pop().unwrap();
    assert!(
        last.to_str().unwrap().contains("step-00000060"),
        "{}",
        last.display()
    );
}

fn rarely(folder: &Path, more: &str) -> JobFile {
    JobFile {
        steps: 2_000,
        checkpoint: Some(format!("uri: {}, {more}", folder.display())),
        ..JobFile::default()
    }
}

/// The step in a checkpoint's name.
fn step_of(checkpoint: &Path) -> u64 {
    let name = checkpoint
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    name[5..13].parse().expect("a checkpoint's name")
}

#[test]
fn a_checkpoint_is_made_on_demand_on_notice_and_by_the_clock() {
    let store = TempDir::new().unwrap();
    let mut run = Run::start(&rarely(store.path(), "intervalSteps: 100000"), 2);
    run.wait_for_step(3);
    let output = run.varuna(&["checkpoint", "save", "RUN"]);
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", run.report());
    let [first] = complete(store.path()).try_into().unwrap();
    assert_eq!(told.trim(), first.file_name().unwrap().to_str().unwrap());
    assert!(step_of(&first) > 3);
    // One of the two workers gets a notice.
    let workers = run.wait_for_workers(2);
    signal(workers[1].pid, Signal::SIGTERM);
    run.wait_for("a checkpoint on notice", |_| {
        (complete(store.path()).len() >= 2).then_some(())
    });
    drop(run);
    let clock = TempDir::new().unwrap();
    let mut run = Run::start(&rarely(clock.path(), "intervalSeconds: 1"), 2);
    run.wait_for("checkpoints by the clock", |_| {
        (complete(clock.path()).len() >= 2).then_some(())
    });
}

#[test]
fn a_run_without_a_checkpoint_location_refuses_to_save() {
    let mut run = Run::start(&JobFile::default(), 1);
    run.wait_for_step(1);
    let output = run.varuna(&["checkpoint", "save", "RUN"]);
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("names no location for checkpoints"), "{words}");
}

/// The checkpoints are on a small disk in the run's mount namespace. The test accesses it through the run's process.
#[test]
fn full_disk_stops_nobody() {
    let disk = TempDir::new().unwrap();
    // The disk has room for several states without the ballast, because an older one may still be uploading when the ballast is deleted.
    let mut run = Run::start_on_small_disk(&job(disk.path()), 2, disk.path(), "16m");
    let seen = PathBuf::from(format!("/proc/{}/root{}", run.pid(), disk.path().display()));
    run.wait_for("the word that checkpoints fall behind", |run| {
        event(run, "checkpointStale")
    });
    let is_told = |why: &serde_json::Value| {
        let why = why["why"].as_str().unwrap_or_default();
        let by_worker = format!(" cannot upload to {}: ", disk.path().display());
        assert!(
            why.starts_with('w') && why.contains(&by_worker) && why.contains("No space left"),
            "{why}"
        );
    };
    is_told(&run.wait_for("the word that uploads fail", |run| event(run, "checkpointsFail")));
    run.wait_for_step(STEPS);
    is_told(&run.wait_for("what the end waits for", |run| {
        event(run, "lastCheckpointAwaited")
    }));
    let status = run.varuna(&["status", "RUN"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(
        status.contains("all steps are done") && status.contains("No space left"),
        "{status}"
    );
    std::fs::remove_file(seen.join("ballast")).unwrap();
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert!(event(&run, "checkpointsWork").is_some(), "{}", run.report());
    // The disk was unmounted when the run ended, but the run has checked the checkpoint before.
    let saved = event(&run, "checkpointed").unwrap_or_else(|| panic!("{}", run.report()));
    assert_eq!(saved["step"], STEPS, "{}", run.report());
    assert_same_curve(
        undisturbed(&JobFile::default()),
        &last_of_each(&run.metrics()),
        STEPS,
    );
}
