//! Elasticity with real processes. Each case ends with the losses of the undisturbed run, and with every step once.

use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use varuna_fixtures::{JobFile, Run, assert_same_curve, event, last_of_each, signal, undisturbed};
use varuna_model::SegmentKind;
use varuna_plan::{Plan, ScheduleKind};
use varuna_protocol::Phase;

const STEPS: u64 = 60;

/// Waits for the end of a run of this job, or of one with the same losses.
fn finish(mut run: Run, job: &JobFile) {
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(job), &run.metrics(), STEPS);
}

/// A job that still trains when a new worker has joined, or the plan was changed.
fn long_steps() -> JobFile {
    JobFile {
        batch: 8,
        ..JobFile::default()
    }
}

fn two_stages() -> JobFile {
    JobFile {
        min_depth: 2,
        ..JobFile::default()
    }
}

#[test]
fn four_workers_draw_the_curve_of_one() {
    finish(Run::start(&two_stages(), 4), &JobFile::default());
}

#[test]
fn a_killed_worker_costs_no_step() {
    let mut run = Run::start(&two_stages(), 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[1].pid, Signal::SIGKILL);
    run.wait_for_workers(3);
    finish(run, &JobFile::default());
}

/// With SGD, the state of a unit has two parts instead of three: in memory, in transfers to a new worker, and in the store.
#[test]
fn sgd_draws_its_curve_through_a_kill_a_growth_and_a_restore() {
    // Enough steps that the job still trains when the new worker has joined.
    let steps = 200;
    let store = tempfile::TempDir::new().unwrap();
    let job = |min_depth, checkpoint| JobFile {
        steps,
        optimizer: ["kind: sgd", "momentum: 0.9"].map(str::to_owned).into(),
        learning_rate: 0.1,
        min_depth,
        checkpoint,
        ..long_steps()
    };
    let saved = format!("uri: {}, intervalSteps: 5", store.path().display());
    let mut run = Run::start(&job(2, Some(saved)), 4);
    run.wait_for_step(8);
    let workers = run.wait_for_workers(4);
    signal(workers[1].pid, Signal::SIGKILL);
    run.wait_for_workers(3);
    assert!(run.varuna(&["scale", "RUN", "4"]).status.success());
    let workers = run.wait_for_workers(4);
    run.wait_for("a checkpoint", |run| event(run, "checkpointed"));
    for worker in workers {
        signal(worker.pid, Signal::SIGKILL);
    }
    run.wait_for("the word that workers are missing", |run| {
        // There is one such event from the start of the run.
        let events = run.events();
        let last = |kind: &str| events.iter().rposition(|e| e["event"] == kind);
        (last("belowMinimum") > last("workerLost")).then_some(())
    });
    assert!(run.varuna(&["scale", "RUN", "2"]).status.success());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    let resumed = |e: &&serde_json::Value| e["event"] == "resumed" && e["restored"] == true;
    assert!(run.events().iter().any(|e| resumed(&e)), "{}", run.report());
    let curve = undisturbed(&job(1, None));
    let (first, last) = (curve[0].loss, curve[curve.len() - 1].loss);
    assert!(last < first - 0.5, "the loss fell from {first} to {last} alone");
    assert_same_curve(curve, &last_of_each(&run.metrics()), steps);
}

/// Steps are sent over TLS, and after the kill whole states as well.
#[test]
fn encryption_changes_no_loss_and_no_recovery() {
    let mut run = Run::start(
        &JobFile {
            encryption: "tls",
            ..two_stages()
        },
        4,
    );
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[1].pid, Signal::SIGKILL);
    run.wait_for_workers(3);
    let logs = run.logs();
    assert!(
        logs.contains("connections to other workers are encrypted"),
        "{logs}"
    );
    finish(run, &JobFile::default());
}

/// The best cut of one block is between its attention and its MLP, with two stages as well as with three.
#[test]
fn kill_under_a_plan_that_cuts_a_block_costs_no_step() {
    let job = |min_depth| JobFile {
        layers: 1,
        hidden: 128,
        min_depth,
        ..JobFile::default()
    };
    let mut run = Run::start(&job(2), 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[1].pid, Signal::SIGKILL);
    // Its steps are short, so the run may end before three workers are seen.
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(&job(1)), &run.metrics(), STEPS);
    let model = run.job().model;
    let cuts_inside = |plan: &Plan| {
        let mut stages = plan.shape.pipelines.iter().flat_map(|p| &p.stages);
        // The attention of the same block is on another worker.
        stages.any(|s| model.transformer().unwrap().kind(s.segments.start) == SegmentKind::Mlp)
    };
    let plans = run.plans();
    let inside = plans.iter().filter(|p| cuts_inside(p)).map(|p| p.generation.0);
    let inside: BTreeSet<u64> = inside.collect();
    let trained: BTreeSet<u64> = run.metrics().iter().map(|m| m.generation.0).collect();
    assert!(trained.len() > 1, "steps before and after the kill: {trained:?}");
    assert!(
        trained.is_subset(&inside),
        "generations {trained:?} trained, {inside:?} cut inside a block"
    );
}

#[test]
fn interleaved_pipeline_recovers_from_a_loss() {
    let job = JobFile {
        pipeline: vec!["schedule: interleaved".to_owned()],
        min_depth: 2,
        ..long_steps()
    };
    let mut run = Run::start(&job, 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[2].pid, Signal::SIGKILL);
    run.wait_for_workers(3);
    assert!(run.varuna(&["scale", "RUN", "4"]).status.success());
    run.wait_for_workers(4);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(&long_steps()), &run.metrics(), STEPS);
    let trained: BTreeSet<u64> = run.metrics().iter().map(|m| m.generation.0).collect();
    let plans = run.plans();
    let ran = plans.iter().filter(|p| trained.contains(&p.generation.0));
    let ran: Vec<(usize, ScheduleKind, &str)> = ran
        .map(|p| (p.members().len(), p.shape.schedule.kind, p.reason.as_str()))
        .collect();
    let is_interleaved = |plan: Option<&(usize, ScheduleKind, &str)>| plan.is_some_and(|p| p.1.chunks() > 1);
    // The plan that the missing worker ended. On a busy machine a worker may be slow and get a plan without it later.
    let grown = ran.iter().skip_while(|p| p.0 == 4).find(|p| p.0 == 4);
    assert!(is_interleaved(ran.first()) && is_interleaved(grown), "{ran:?}");
}

#[test]
fn simultaneous_kills_cost_no_step_with_holders_left() {
    let mut run = Run::start(&JobFile::default(), 4);
    run.wait_for_step(8);
    let workers = run.wait_for_workers(4);
    for worker in &workers[1..] {
        signal(worker.pid, Signal::SIGKILL);
    }
    run.wait_for_workers(1);
    finish(run, &JobFile::default());
}

#[test]
fn a_worker_killed_while_a_recovery_is_under_way_costs_no_step() {
    let mut run = Run::start(&JobFile::default(), 4);
    run.wait_for_step(8);
    let workers = run.wait_for_workers(4);
    signal(workers[0].pid, Signal::SIGKILL);
    run.wait_for("the fence of the first recovery", |run| {
        run.events().iter().any(|e| e["event"] == "fenced").then_some(())
    });
    signal(workers[2].pid, Signal::SIGKILL);
    run.wait_for_workers(2);
    finish(run, &JobFile::default());
}

#[test]
fn a_joining_worker_is_taken_in_without_a_recovery() {
    let mut run = Run::start(&long_steps(), 2);
    run.wait_for_step(8);
    let scaled = run.varuna(&["scale", "RUN", "3"]);
    assert!(
        scaled.status.success(),
        "{}",
        String::from_utf8_lossy(&scaled.stderr)
    );
    run.wait_for_workers(3);
    let fences = run.events().iter().filter(|e| e["event"] == "fenced").count();
    assert_eq!(fences, 0, "growth is a planned change\n{}", run.report());
    let followed = run.events().iter().any(|e| e["event"] == "followersCaughtUp");
    assert!(
        followed,
        "the newcomer follows the run before the switch\n{}",
        run.report()
    );
    finish(run, &long_steps());
}

#[test]
fn a_worker_with_notice_is_planned_around_before_it_goes() {
    let mut run = Run::start(&long_steps(), 3);
    run.wait_for_step(8);
    let workers = run.wait_for_workers(3);
    signal(workers[2].pid, Signal::SIGTERM);
    run.wait_for_workers(2);
    let fences = run.events().iter().filter(|e| e["event"] == "fenced").count();
    assert_eq!(fences, 0, "a drain is a planned change\n{}", run.report());
    finish(run, &long_steps());
}

#[test]
fn hung_worker_is_found_and_harmless_later() {
    let mut run = Run::start(&two_stages(), 4);
    run.wait_for_step(10);
    let workers = run.wait_for_workers(4);
    signal(workers[3].pid, Signal::SIGSTOP);
    run.wait_for("a plan of three", |run| {
        let status = run.status()?;
        let running = status
            .workers
            .iter()
            .filter(|w| w.view.phase == Some(Phase::Running) && w.pid != workers[3].pid)
            .count();
        (running == 3 && status.run.generation.0 > 1).then_some(())
    });
    signal(workers[3].pid, Signal::SIGCONT);
    finish(run, &JobFile::default());
}

#[test]
fn training_waits_below_the_minimum_of_workers() {
    let mut run = Run::start(
        &JobFile {
            min_workers: 2,
            ..JobFile::default()
        },
        2,
    );
    run.wait_for_step(8);
    let workers = run.wait_for_workers(2);
    signal(workers[0].pid, Signal::SIGKILL);
    run.wait_for("the word that workers are missing", |run| {
        let after_fence = run.events().into_iter().skip_while(|e| e["event"] != "fenced");
        after_fence
            .into_iter()
            .any(|e| e["event"] == "belowMinimum")
            .then_some(())
    });
    assert!(run.varuna(&["scale", "RUN", "2"]).status.success());
    finish(run, &JobFile::default());
}

#[test]
fn loss_of_a_last_holder_has_its_own_exit_code() {
    let mut run = Run::start(&two_stages(), 2);
    run.wait_for_step(8);
    let workers = run.wait_for_workers(2);
    signal(workers[1].pid, Signal::SIGKILL);
    assert_eq!(run.exit_code(), 4, "{}", run.report());
    let lost = run.events().into_iter().find(|e| e["event"] == "lost");
    let lost = lost.unwrap_or_else(|| panic!("no event names what was lost\n{}", run.report()));
    assert!(lost["units"].as_array().is_some_and(|u| !u.is_empty()), "{lost}");
}

#[test]
fn next_coordinator_takes_over_running_training() {
    let job = JobFile {
        min_depth: 2,
        ..long_steps()
    };
    let mut run = Run::start_apart(&job, 4);
    run.wait_for_step(10);
    run.wait_for_workers(4);
    run.kill_coordinator();
    let published = run.metrics().last().map_or(0, |m| m.step.0);
    // From now on only the workers themselves can report it.
    let start = Instant::now();
    let later = (published + 10).min(STEPS);
    while run.step_of_worker(0) < later {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "training stopped: step {published} was published, the worker is at {}\n{}",
            run.step_of_worker(0),
            run.report()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    run.restart_coordinator();
    run.wait_for_step(later);
    let events = run.events();
    let count = |kind: &str| events.iter().filter(|e| e["event"] == kind).count();
    assert_eq!((count("tookOver"), count("fenced")), (2, 0), "{}", run.report());
    // On a busy machine a slow moment may cause a planned change, because of a worker's speed. The takeover itself causes no plan.
    let not_changes = |e: &&serde_json::Value| e["event"] == "planned" && e["change"] == false;
    assert_eq!(events.iter().filter(not_changes).count(), 1, "{}", run.report());
    finish(run, &long_steps());
}

/// All addresses in the run's plans are IPv6.
fn assert_on_ipv6(run: &Run) {
    let addresses: Vec<String> = run
        .plans()
        .iter()
        .flat_map(|plan| plan.addresses.values().cloned().collect::<Vec<_>>())
        .collect();
    assert!(addresses.len() >= 2);
    assert!(addresses.iter().all(|a| a.starts_with("[::1]:")), "{addresses:?}");
}

#[test]
fn ipv6_run_survives_a_loss_and_answers_commands() {
    let mut run = Run::start_on(&two_stages(), 4, "[::1]:0");
    let workers = run.wait_for_workers(4);
    let status = run.varuna(&["status", "RUN"]);
    assert!(status.status.success(), "{}", run.report());
    run.wait_for_step(10);
    signal(workers[0].pid, Signal::SIGKILL);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert!(event(&run, "workerLost").is_some(), "{}", run.report());
    assert_same_curve(undisturbed(&JobFile::default()), &run.metrics(), STEPS);
    assert_on_ipv6(&run);
}

#[test]
fn a_run_needs_no_option_on_a_machine_without_ipv4() {
    let mut run = Run::start_without_ipv4(&JobFile::default(), 2);
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(&JobFile::default()), &run.metrics(), STEPS);
    assert_on_ipv6(&run);
}
