//! What a run of real processes leaves behind for people: figures of its steps, event files, and a page about it.

use nix::sys::signal::Signal;
use std::process::Command;
use varuna_fixtures::{JobFile, Run, program, signal};

/// Tokens of the test job's step: 8 samples.
const SAMPLES: u64 = 8;

#[test]
fn a_run_that_lost_a_worker_has_figures_event_files_and_a_page() {
    let job = JobFile {
        min_depth: 2,
        ..JobFile::default()
    };
    let mut run = Run::start(&job, 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[1].pid, Signal::SIGKILL);
    run.wait_for_workers(3);
    assert_eq!(run.exit_code(), 0, "{}", run.report());

    let steps = run.metrics();
    for metric in &steps {
        let figures = &metric.figures;
        assert_eq!(figures.consumed_samples, Some(metric.step.0 * SAMPLES));
        assert_eq!(figures.consumed_tokens, Some(metric.step.0 * metric.tokens));
        assert_eq!(figures.nan_steps, Some(0));
        assert!(figures.learning_rate.is_some_and(|rate| rate > 0.0), "{metric:?}");
        assert_eq!(figures.mfu, None, "of a processor nothing is known");
    }
    let timed = steps
        .iter()
        .filter(|m| m.figures.tokens_per_second.is_some())
        .count();
    assert!(
        timed > steps.len() / 2 && timed < steps.len(),
        "{timed} of {}",
        steps.len()
    );
    let last = steps.last().unwrap();
    assert!(
        last.figures
            .peak_memory_bytes
            .is_some_and(|bytes| bytes > 10 << 20),
        "{last:?}"
    );

    let events = std::fs::read_dir(run.folder().join("tensorboard")).unwrap();
    let bytes: u64 = events.map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes > 100 * steps.len() as u64, "{bytes}");

    let page = run.folder().join("page.html");
    let made = Command::new(program("varuna"))
        .args([
            "run-report".as_ref(),
            run.folder().as_os_str(),
            "--output".as_ref(),
            page.as_os_str(),
        ])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = std::fs::read_to_string(page).unwrap();
    for part in [
        "the loss of a worker",
        "The step of the last plan",
        "Throughput",
        "steps that stayed",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert_eq!(page.matches("<tr class=\"recovery\">").count(), 1);
}
