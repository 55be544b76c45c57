//! What a run of real processes has for its user: metrics while it trains, and then figures of its steps, event files, and a report page.

use nix::sys::signal::Signal;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;
use varuna_fixtures::{JobFile, Run, program, signal};
use varuna_plan::Generation;
use varuna_plan::measured_step::measured_workers;
use varuna_run_folder::{Metric, RunFiles};

/// Number of samples in the test job's step.
const SAMPLES: u64 = 4;
/// How long a scrape may take, far longer than any does.
const PATIENCE: Duration = Duration::from_secs(60);

/// What Prometheus would get now; none before the run has said where.
fn scrape(run: &Run) -> Option<String> {
    let line = run.printed("metrics at ")?;
    let (address, path) = line.strip_prefix("metrics at http://")?.split_once('/')?;
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The value of the first line of this metric with this part among its labels.
fn figure(run: &Run, metric: &str, label: &str) -> Option<f64> {
    let text = scrape(run)?;
    let begin = format!("{metric}{{");
    let line = text
        .lines()
        .find(|l| l.starts_with(&begin) && l.contains(label))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// The run is scraped while its workers train.
fn check_scrapes(run: &mut Run, workers: f64) {
    let step = |run: &Run| figure(run, "varuna_job_step", "job_name=");
    let first = run.wait_for("a scrape with a step", |run| step(run).filter(|at| *at > 0.0));
    run.wait_for("a scrape with a later step", |run| {
        step(run).filter(|at| *at > first)
    });
    run.wait_for("a scrape with all workers", |run| {
        let members = figure(run, "varuna_job_workers", r#"state="member""#);
        members.filter(|members| *members == workers)
    });
}

#[test]
fn a_run_that_lost_a_worker_has_figures_event_files_and_a_page() {
    let job = JobFile {
        min_depth: 2,
        // It is scraped several times before a worker is lost.
        steps: 150,
        ..JobFile::default()
    };
    let mut run = Run::start_with_metrics(&job, 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    check_scrapes(&mut run, 4.0);
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

    check_measured_step(&RunFiles::new(run.folder()), &steps);

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
        "A step of plan ",
        "as its workers measured it",
        "As it was predicted",
        "Throughput",
        "steps that stayed",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert_eq!(page.matches("<tr class=\"recovery\">").count(), 1);
}

/// For the newest plan that has run several steps, all workers have reported the times of each task of one step.
#[expect(clippy::unwrap_used, reason = "a part of the test")]
fn check_measured_step(files: &RunFiles, steps: &[Metric]) {
    let ran = |g: Generation| steps.iter().filter(|m| m.generation == g).count();
    let newest = steps
        .iter()
        .rev()
        .map(|m| m.generation)
        .find(|g| ran(*g) > 3)
        .unwrap();
    let measured = files.measured_step().unwrap().unwrap();
    assert!(measured.generation >= newest, "{measured:?}");
    let plans = files.plans().unwrap();
    let plan = plans
        .iter()
        .find(|p| p.generation == measured.generation)
        .unwrap();
    let shape = &plan.shape;
    assert!(measured.workers.keys().copied().eq(measured_workers(shape)));
    let traces = measured.traces(shape);
    assert_eq!(traces.len(), shape.pipelines.len());
    for trace in &traces {
        let (stages, micro_batches) = (trace.stages.len(), trace.micro_batches as usize);
        // Forwards and backwards, and recomputed forwards.
        assert!(trace.spans.len() >= 2 * stages * micro_batches, "{trace:?}");
        assert!(
            trace
                .spans
                .iter()
                .all(|s| s.start_ms >= 0.0 && s.end_ms > s.start_ms)
        );
        for (stage, end) in trace.ends.iter().enumerate() {
            let own = trace
                .spans
                .iter()
                .filter(|s| s.stage % trace.workers == stage % trace.workers);
            let computed = own.map(|s| s.end_ms).fold(0.0, f64::max);
            assert!(
                computed <= end.rings_from_ms && end.rings_from_ms <= end.rings_to_ms,
                "{end:?}"
            );
            assert!(
                end.rings_to_ms <= end.optimizer_from_ms && end.optimizer_from_ms < end.ms,
                "{end:?}"
            );
        }
    }
}
