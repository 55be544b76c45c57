//! Planned changes with real processes: those who get units by one follow the run until then, so that nothing of their state moves while training
//! stands.

use std::sync::OnceLock;
use varuna_fixtures::{JobFile, Metric, Run, assert_same_curve};
use varuna_plan::Plan;

const STEPS: u64 = 120;

fn job() -> JobFile {
    JobFile {
        steps: STEPS,
        ..JobFile::default()
    }
}

/// The curve of an undisturbed run with one worker.
fn undisturbed() -> &'static [Metric] {
    static CURVE: OnceLock<Vec<Metric>> = OnceLock::new();
    CURVE.get_or_init(|| {
        let mut run = Run::start(&job(), 1);
        assert_eq!(run.exit_code(), 0, "{}", run.report());
        run.metrics()
    })
}

fn count(run: &Run, kind: &str) -> usize {
    run.events().iter().filter(|e| e["event"] == kind).count()
}

/// Has the run use this many workers; the plan that trains with them.
fn grow(run: &mut Run, workers: usize) -> Plan {
    let scaled = run.varuna(&["scale", "RUN", &workers.to_string()]);
    let said = String::from_utf8_lossy(&scaled.stderr);
    assert!(scaled.status.success(), "{said}");
    run.wait_for_workers(workers);
    run.wait_for("a step of the plan with the newcomer", |run| {
        let generation = run.metrics().last()?.generation;
        let plan = run.plans().into_iter().find(|p| p.generation == generation)?;
        (plan.members().len() == workers).then_some(plan)
    })
}

#[test]
fn where_a_worker_leaves_following_out_a_change_is_made_without_it_and_no_loss_is_another() {
    let settings = [("VARUNA_WITHOUT".to_owned(), "following".to_owned())];
    let mut run = Run::start_with(&job(), 1, &settings);
    run.wait_for_step(8);
    let plan = grow(&mut run, 2);
    assert!(!plan.following, "{}", run.report());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(), &run.metrics(), STEPS);
    assert_eq!(count(&run, "switched"), 1, "{}", run.report());
    for never in ["followersCaughtUp", "followersLate", "fenced"] {
        assert_eq!(count(&run, never), 0, "{never}\n{}", run.report());
    }
}
