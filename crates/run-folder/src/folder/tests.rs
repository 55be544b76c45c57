use super::*;
use crate::metric::example as metric;
use varuna_plan::StateId;

/// The first event of a run in this folder.
fn begin(path: &Path, job: &str) {
    let mut folder = RunFolder::open(path, job).unwrap();
    folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 1 }), None);
}

#[test]
fn a_run_that_never_began_does_not_occupy_its_folder() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    LockedFolder::lock(&path, "job a").unwrap().give_up();
    assert!(!path.exists());
    // As a coordinator leaves it that was refused later, or that an older release was.
    drop(RunFolder::open(&path, "job a").unwrap());
    let locked = LockedFolder::lock(&path, "job b").unwrap();
    assert!(matches!(
        LockedFolder::lock(&path, "job a"),
        Err(FolderError::Held(_))
    ));
    locked.give_up();
    assert!(path.exists(), "it is not this command's");
    begin(&path, "job b");
    let job = RunFiles::new(&path).job_path();
    assert_eq!(std::fs::read_to_string(job).unwrap(), "job b");
    assert!(LockedFolder::lock(&path, "job a").is_err());
}

#[test]
fn a_lock_file_that_is_removed_locks_nobody_out() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("lock");
    let file = File::create(&path).unwrap();
    assert!(is_at(&file, &path));
    std::fs::remove_file(&path).unwrap();
    assert!(!is_at(&file, &path));
    File::create(&path).unwrap();
    assert!(!is_at(&file, &path), "another file");
}

#[test]
fn a_folder_belongs_to_one_coordinator_and_one_job() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("run");
    let held = RunFolder::open(&path, "job a").unwrap();
    assert!(matches!(
        RunFolder::open(&path, "job a"),
        Err(FolderError::Held(_))
    ));
    drop(held);
    begin(&path, "job a");
    assert!(matches!(
        RunFolder::open(&path, "job b"),
        Err(FolderError::OtherJob(_))
    ));
    assert!(RunFolder::open(&path, "job a").is_ok());
}

#[test]
fn step_is_published_once_across_coordinators() {
    let temp = tempfile::tempdir().unwrap();
    let mut first = RunFolder::open(temp.path(), "job").unwrap();
    for step in [1, 2, 2, 1, 3] {
        first.append_metric(metric(step));
    }
    let file = first.files().metrics_path();
    drop(first);
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{whole}{{\"step\":4,\"lo")).unwrap();
    let read = || RunFiles::new(temp.path()).metrics().unwrap();
    assert_eq!(read().len(), 3, "half a line is left out");
    let mut second = RunFolder::open(temp.path(), "job").unwrap();
    assert_eq!(second.last_metric().map(|m| m.step), Some(Step(3)));
    second.append_metric(metric(3));
    second.append_metric(metric(4));
    let steps = || -> Vec<u64> { read().iter().map(|m| m.step.0).collect() };
    assert_eq!(steps(), [1, 2, 3, 4]);
    // Steps 3 and 4 were given up, and 3 is run again.
    let again = Metric {
        loss: 0.5,
        state: StateId {
            run_gen: Generation(2),
            ..metric(3).state
        },
        ..metric(3)
    };
    second.append_metric(again);
    assert_eq!(steps(), [1, 2, 3]);
    assert_eq!(read()[2].loss.to_bits(), 0.5f64.to_bits());
}

#[test]
fn a_diverged_step_is_published_and_remembered_like_any_other() {
    let temp = tempfile::tempdir().unwrap();
    let mut first = RunFolder::open(temp.path(), "job").unwrap();
    first.append_metric(metric(1));
    first.append_metric(Metric {
        loss: f64::NAN,
        gradient_norm: f64::INFINITY,
        overflow: true,
        ..metric(2)
    });
    drop(first);
    let second = RunFolder::open(temp.path(), "job").unwrap();
    assert_eq!(second.last_metric().map(|m| m.state), Some(metric(2).state));
}

#[test]
fn skipped_steps_are_counted_across_coordinators() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::open(temp.path(), "job").unwrap();
    let run = |step, generation, loss| Metric {
        loss,
        state: StateId {
            run_gen: Generation(generation),
            ..metric(step).state
        },
        ..metric(step)
    };
    for (step, loss) in [(1, 1.0), (2, f64::NAN), (3, 1.0), (4, f64::INFINITY)] {
        folder.append_metric(run(step, 1, loss));
    }
    let counts = |folder: &RunFolder| [1, 2, 3, 4, 5].map(|step| folder.nan_steps_before(Step(step)));
    assert_eq!(counts(&folder), [0, 0, 1, 1, 2]);
    drop(folder);
    let mut successor = RunFolder::open(temp.path(), "job").unwrap();
    assert_eq!(counts(&successor), [0, 0, 1, 1, 2]);
    // A step without targets has no loss that could be finite.
    successor.append_metric(Metric {
        no_targets: true,
        ..run(5, 1, f64::NAN)
    });
    assert_eq!(successor.nan_steps_before(Step(6)), 2);
    // From step 2 on the steps are run again, and succeed.
    successor.append_metric(run(2, 2, 1.0));
    assert_eq!(counts(&successor), [0; 5]);
    drop(successor);
    assert_eq!(counts(&RunFolder::open(temp.path(), "job").unwrap()), [0; 5]);
}

#[test]
fn workers_of_earlier_coordinators_are_known_by_name() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::open(temp.path(), "job").unwrap();
    assert!(folder.worker_names().is_empty());
    for (id, name) in [(3, "w0"), (1, "w1")] {
        let (worker, name) = (WorkerId(id), name.to_owned());
        let address = String::new();
        let joined = Event::WorkerJoined {
            worker,
            name,
            address,
        };
        folder.append_event(LoggedEvent::Protocol(joined), None);
        folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 2 }), None);
    }
    drop(folder);
    let folder = RunFolder::open(temp.path(), "job").unwrap();
    let names = [(1, "w1"), (3, "w0")].map(|(id, name)| (WorkerId(id), name.to_owned()));
    assert_eq!(folder.worker_names(), &BTreeMap::from(names));
}

#[test]
fn only_the_newest_plans_are_kept() {
    let temp = tempfile::tempdir().unwrap();
    let folder = RunFolder::open(temp.path(), "job").unwrap();
    let plans = folder.files().plans_path();
    std::fs::write(plans.join("notes.json"), "{}").unwrap();
    for generation in [1, 2, 9, 1_000_000, 10, 1_000_001] {
        folder.keep_plan(Generation(generation), "{}", 3).unwrap();
    }
    let left = std::fs::read_dir(plans).unwrap();
    let mut left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    left.sort_unstable();
    assert_eq!(
        left,
        ["g000010.json", "g1000000.json", "g1000001.json", "notes.json"]
    );
}

#[test]
fn the_step_that_was_measured_last_is_the_one_that_is_read() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::open(temp.path(), "job").unwrap();
    let files = folder.files().clone();
    assert_eq!(files.measured_step().unwrap(), None);
    let step = |generation| MeasuredStep {
        generation: Generation(generation),
        step: Step(9),
        workers: BTreeMap::new(),
    };
    folder.write_measured_step(&step(1));
    folder.write_measured_step(&step(2));
    assert_eq!(files.measured_step().unwrap(), Some(step(2)));
    std::fs::write(files.measured_step_path(), "{").unwrap();
    let error = files.measured_step().unwrap_err().to_string();
    assert!(error.contains("measured-step.json, line 1: "), "{error}");
}

#[test]
fn a_line_that_is_no_entry_is_told_by_its_file_and_number() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::open(temp.path(), "job").unwrap();
    folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 2 }), None);
    let files = folder.files().clone();
    let events = files.events().unwrap();
    assert_eq!(
        events[0].event,
        LoggedEvent::Protocol(Event::TookOver { term: 2 })
    );
    let text = std::fs::read_to_string(files.events_path()).unwrap();
    std::fs::write(files.events_path(), format!("{text}nonsense\n")).unwrap();
    let error = files.events().unwrap_err().to_string();
    assert!(error.contains("events.jsonl, line 2: "), "{error}");
}

#[test]
fn torn_character_ends_a_log_line() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder = RunFolder::open(temp.path(), "job").unwrap();
    folder.append_event(LoggedEvent::Protocol(Event::TookOver { term: 2 }), None);
    let files = folder.files().clone();
    let whole = std::fs::read(files.events_path()).unwrap();
    let half = &"{\"why\": \"é".as_bytes()[..10];
    std::fs::write(files.events_path(), [&whole[..], half].concat()).unwrap();
    assert_eq!(files.events().unwrap().len(), 1);
    std::fs::write(files.events_path(), [&whole[..], half, b"\n"].concat()).unwrap();
    let error = files.events().unwrap_err().to_string();
    assert!(error.contains("events.jsonl, line 2: "), "{error}");
}

#[test]
fn the_token_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let temp = tempfile::tempdir().unwrap();
    let folder = RunFolder::open(temp.path(), "job").unwrap();
    let contact = Contact {
        address: "a:1".into(),
        token: "t".into(),
        certificate: Some("c".into()),
        pid: 1,
    };
    folder.write_contact(&contact).unwrap();
    let path = folder.files().contact_path();
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(folder.files().contact().unwrap(), contact);
}
