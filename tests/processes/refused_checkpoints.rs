//! Runs that do not begin, because the checkpoints at their location are another run's, or of another model or other data.

use nix::sys::signal::Signal;
use std::path::Path;
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run, event, signal};

fn job(folder: &Path) -> JobFile {
    JobFile {
        checkpoint: Some(format!("uri: {}, intervalSteps: 5", folder.display())),
        ..JobFile::default()
    }
}

#[test]
fn location_of_another_model_is_refused_early() {
    let store = TempDir::new().unwrap();
    let mut first = Run::start(&job(store.path()), 1);
    first.wait_for("a checkpoint", |run| event(run, "checkpointed"));
    drop(first);
    let mut second = Run::start(
        &JobFile {
            hidden: 32,
            ..job(store.path())
        },
        1,
    );
    assert_eq!(second.exit_code(), 2, "{}", second.report());
    assert!(
        second.report().contains("this job's model is another one: "),
        "{}",
        second.report()
    );
    assert!(second.metrics().is_empty());
}

/// Another dataset, in the folder of this run.
fn other_data(run: &Run) -> String {
    let text = run.folder().with_file_name("other.txt");
    let lines: Vec<String> = (0..10_000).map(|number| format!("{number} bottles\n")).collect();
    std::fs::write(&text, lines.concat()).expect("a writable folder");
    let data = run.folder().with_file_name("other");
    let [text, data] = [&text, &data].map(|path| path.to_str().expect("temporary folders are UTF-8"));
    let built = run.varuna(&["data", "build", "--tokenizer", "byte", "--output", data, text]);
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    data.to_owned()
}

#[test]
fn a_job_refuses_other_data_and_says_other_settings() {
    let store = TempDir::new().unwrap();
    let mut first = Run::start(
        &JobFile {
            steps: 10,
            ..job(store.path())
        },
        1,
    );
    assert_eq!(first.exit_code(), 0, "{}", first.report());
    let mut second = Run::start(
        &JobFile {
            steps: 20,
            data_path: Some(other_data(&first)),
            ..job(store.path())
        },
        1,
    );
    assert_eq!(second.exit_code(), 2, "{}", second.report());
    let said = "it was trained on other data than spec.data names";
    assert!(second.report().contains(said), "{}", second.report());
    assert!(second.metrics().is_empty());
    // A dataset at another path with the same content is the same.
    let mut third = Run::start(
        &JobFile {
            steps: 20,
            ..job(store.path())
        },
        1,
    );
    assert_eq!(third.exit_code(), 0, "{}", third.report());
    assert_eq!(third.metrics()[0].step.0, 11);
    let said = "newest checkpoint was trained with other settings";
    assert!(third.report().contains(said), "{}", third.report());
    assert!(!first.report().contains(said), "{}", first.report());
}

#[test]
fn second_run_on_a_location_is_refused() {
    let store = TempDir::new().unwrap();
    let job = JobFile {
        steps: 2_000,
        ..job(store.path())
    };
    let mut first = Run::start(&job, 1);
    first.wait_for_step(1);
    let mut second = Run::start(&job, 1);
    assert_eq!(second.exit_code(), 3, "{}", second.report());
    let owner = format!("run {} writes its checkpoints there", first.folder().display());
    assert!(second.report().contains(&owner), "{}", second.report());
    assert!(second.metrics().is_empty());
    // A killed run cannot release the location, but its process has certainly ended.
    signal(first.pid(), Signal::SIGKILL);
    drop(first);
    let mut third = Run::start(&job, 1);
    third.wait_for_step(1);
}
