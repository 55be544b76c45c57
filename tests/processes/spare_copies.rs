//! Spare copies with real processes: if each segment has one holder, killing that holder with SIGKILL costs no step, and no store is read.

use nix::sys::signal::Signal;
use std::time::Duration;
use varuna_fixtures::{JobFile, Run, assert_same_curve, signal, undisturbed};
use varuna_plan::WorkerId;
use varuna_protocol::coordinator::RunView;

const STEPS: u64 = 200;

fn without_copies() -> JobFile {
    JobFile {
        steps: STEPS,
        batch: 8,
        ..JobFile::default()
    }
}

fn stages(min_depth: u32) -> JobFile {
    JobFile {
        min_depth,
        spare_copies: "1",
        ..without_copies()
    }
}

/// Waits until every unit that only one worker holds has a spare copy that is in step with the run. Returns the members of the only
/// pipeline, by stage.
fn wait_for_copies(run: &mut Run) -> Vec<WorkerId> {
    run.wait_for("spare copies that are in step", |run| {
        let RunView {
            generation,
            spare_copies,
            ..
        } = run.status()?.run;
        let copies = spare_copies.unwrap_or_default();
        let plan = run.plans().into_iter().find(|p| p.generation == generation)?;
        let [pipeline] = &plan.shape.pipelines[..] else {
            return None;
        };
        let members: Vec<WorkerId> = pipeline.stages.iter().map(|s| s.worker).collect();
        (copies.units > 0 && copies.in_step == copies.units).then_some(members)
    })
}

/// Kills a worker. Returns once the run has noticed it.
fn kill(run: &mut Run, worker: WorkerId) {
    let workers = run.status().into_iter().flat_map(|s| s.workers);
    let victim = workers.into_iter().find(|w| w.view.id == worker);
    let victim = victim.unwrap_or_else(|| panic!("{worker} is not in the status\n{}", run.report()));
    signal(victim.pid, Signal::SIGKILL);
    run.wait_for("the word that a worker is gone", |run| {
        let mut workers = run.status()?.workers.into_iter();
        workers.all(|w| w.view.id != worker || !w.view.up).then_some(())
    });
}

/// Every step is published once, with the undisturbed losses, and the events mention neither the store nor a lost step.
fn finish(mut run: Run, kills: usize) {
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(&without_copies()), &run.metrics(), STEPS);
    let events = run.events();
    let count = |kind: &str| events.iter().filter(|e| e["event"] == kind).count();
    assert!(count("fenced") >= kills, "{}", run.report());
    assert_eq!(count("lost"), 0, "{}", run.report());
    assert!(count("spareCopies") >= 1, "{}", run.report());
    // The first plan is restored, from the seed.
    let restored = events
        .iter()
        .filter(|e| e["event"] == "resumed" && e["restored"] == true);
    assert_eq!(restored.count(), 1, "{}", run.report());
}

/// What `varuna status` prints about copies that are in step.
fn said(run: &Run) -> String {
    let status = run.varuna(&["status", "RUN"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    let line = text.lines().find(|l| l.starts_with("spare copies: "));
    line.unwrap_or_else(|| panic!("no word of spare copies:\n{text}"))
        .to_owned()
}

#[test]
fn each_stage_can_be_killed_without_losing_a_step() {
    let mut run = Run::start(&stages(2), 2);
    let kills = [(0, 0), (1, 3), (0, 11), (1, 23)];
    for (stage, late_ms) in kills {
        let members = wait_for_copies(&mut run);
        let line = said(&run);
        assert!(line.contains("in step with the run"), "{line}");
        // The kill happens at another moment of a step each time.
        std::thread::sleep(Duration::from_millis(late_ms));
        kill(&mut run, members[stage]);
        assert!(run.varuna(&["scale", "RUN", "2"]).status.success());
        let lost = members[stage];
        run.wait_for("a plan without the killed worker", |run| {
            let status = run.status()?;
            let plan = run
                .plans()
                .into_iter()
                .find(|p| p.generation == status.run.generation)?;
            (!plan.has(lost) && run.metrics().last()?.generation == plan.generation).then_some(())
        });
    }
    finish(run, kills.len());
}

/// The middle stage keeps its neighbour's units, and another worker keeps the middle stage's.
#[test]
fn death_of_keeper_and_holder_costs_no_step() {
    let mut run = Run::start(&stages(3), 4);
    let members = wait_for_copies(&mut run);
    let generation = run.status().map(|s| s.run.generation);
    let plans = run.plans();
    let plan = plans.iter().find(|p| Some(p.generation) == generation);
    let first = plan.and_then(|p| p.units(members[0]).into_iter().find_map(|u| p.keeper(u)));
    let keeper = first.unwrap_or_else(|| panic!("nobody keeps the first stage's units\n{}", run.report()));
    kill(&mut run, keeper);
    run.wait_for("a plan without the keeper", |run| {
        let status = run.status()?;
        let plan = run
            .plans()
            .into_iter()
            .find(|p| p.generation == status.run.generation)?;
        (!plan.has(keeper)).then_some(())
    });
    let members = wait_for_copies(&mut run);
    kill(&mut run, members[0]);
    assert!(run.varuna(&["scale", "RUN", "3"]).status.success());
    finish(run, 2);
}
