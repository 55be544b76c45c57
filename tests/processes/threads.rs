//! The threads with which a worker computes.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use varuna_fixtures::{JobFile, Run};

/// The names of a process's threads. A thread of libtorch has the name of the thread that caused its start; the first thread has the
/// program's name.
fn threads(pid: u32) -> Vec<String> {
    let folders = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |folder: std::io::Result<std::fs::DirEntry>| {
        // A thread that ends meanwhile has no file.
        std::fs::read_to_string(folder.ok()?.path().join("comm")).ok()
    };
    folders
        .filter_map(name)
        .map(|name| name.trim().to_owned())
        .collect()
}

/// On a machine with one core libtorch starts no threads, so there this test cannot fail.
#[test]
fn only_the_engine_has_threads_of_libtorch_to_compute_with() {
    let job = JobFile {
        steps: 1_000_000,
        // Wide enough that libtorch divides operators among threads.
        hidden: 256,
        spec: vec!["workers: {threads: 2}".into()],
        ..JobFile::default()
    };
    let mut run = Run::start(&job, 1);
    let pid = run.wait_for_workers(1)[0].pid;
    run.wait_for_step(2);
    let all = threads(pid);
    let named = |name: &str| all.iter().filter(|n| *n == name).count();
    assert!(named("engine") >= 2, "{all:?}");
    assert_eq!(named("varuna-worker"), 1, "{all:?}");
}

/// Training has all processors, so copies, digests and writes of checkpoints have one thread each, beside that of their runtime. Threads that
/// have nothing to do stay for ten seconds, so those of earlier checkpoints are seen.
#[test]
fn checkpoints_take_no_more_threads_than_processors_are_idle() {
    let processors = std::thread::available_parallelism().unwrap();
    let store = tempfile::tempdir().unwrap();
    let job = JobFile {
        steps: 1_000_000,
        hidden: 256,
        checkpoint: Some(format!("uri: {}, intervalSteps: 1", store.path().display())),
        spec: vec![format!("workers: {{threads: {processors}}}")],
        ..JobFile::default()
    };
    let mut run = Run::start(&job, 1);
    let pid = run.wait_for_workers(1)[0].pid;
    run.wait_for("a complete checkpoint", |_| {
        let states = std::fs::read_dir(store.path().join("elastic")).ok()?;
        states
            .flatten()
            .find(|state| state.path().join("manifest.json").exists())
    });
    let all = threads(pid);
    let named = |name: &str| all.iter().filter(|n| *n == name).count();
    assert_eq!(
        [named("checkpoints"), named("checkpoint-copy")],
        [2, 2],
        "{all:?}"
    );
}
