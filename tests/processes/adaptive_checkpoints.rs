//! Checkpoints beyond those of the job's interval, after a loss that cost steps.

use nix::sys::signal::Signal;
use std::path::Path;
use tempfile::TempDir;
use varuna_fixtures::{JobFile, Run, event, signal};

/// The steps of the complete checkpoints.
fn complete(store: &Path) -> impl Iterator<Item = u64> {
    let folders = std::fs::read_dir(store.join("elastic"))
        .into_iter()
        .flatten()
        .flatten();
    let complete = folders.filter(|folder| folder.path().join("manifest.json").exists());
    complete.map(|folder| {
        let name = folder.file_name().into_string().expect("a checkpoint's name");
        name[5..13].parse().expect("a step")
    })
}

#[test]
fn a_loss_of_state_makes_checkpoints_more_frequent() {
    let mut steps_to_checkpoint = 0;
    for (more, is_adaptive) in [("", true), (", adaptive: false", false)] {
        let store = TempDir::new().unwrap();
        let job = JobFile {
            steps: 20_000,
            min_depth: 2,
            // An interval of hours: where the job saves as often itself, nothing is added.
            checkpoint: Some(format!(
                "uri: {}, intervalSteps: 1000000{more}",
                store.path().display()
            )),
            ..JobFile::default()
        };
        let mut run = Run::start(&job, 3);
        run.wait_for_step(20);
        let saved = run.varuna(&["checkpoint", "save", "RUN"]);
        assert!(saved.status.success(), "{saved:?}");
        // Each stage has one worker, so that the loss of any member is one of state.
        let member = run.plans().last().unwrap().members()[0];
        let workers = run.status().unwrap().workers;
        let victim = workers.iter().find(|w| w.view.id == member).unwrap();
        signal(victim.pid, Signal::SIGKILL);
        let resumed = run.wait_for("the end of the recovery", |run| {
            event(run, "resumed")
                .filter(|resumed| resumed["restored"] == true && resumed["base"]["step"] != 0)
        });
        let from = resumed["base"]["step"].as_u64().unwrap();
        let later = |_: &Run| complete(store.path()).find(|step| *step > from);
        if is_adaptive {
            let saved = run.wait_for("a checkpoint before that of the interval", later);
            steps_to_checkpoint = saved - from;
            run.wait_for("the word that there are more", |run| {
                event(run, "checkpointInterval")
            });
        } else {
            run.wait_for_step(from + 2 * steps_to_checkpoint);
            assert_eq!(later(&run), None);
        }
    }
}
