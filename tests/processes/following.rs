//! Planned changes with real processes. Workers that get units by a change follow the run until the switch, so no state is moved while
//! training stands still.

use nix::sys::signal::Signal;
use varuna_fixtures::{JobFile, Run, assert_same_curve, signal, undisturbed};
use varuna_plan::{Plan, WorkerId};

const STEPS: u64 = 240;

fn job() -> JobFile {
    JobFile {
        steps: STEPS,
        batch: 8,
        ..JobFile::default()
    }
}

fn count(run: &Run, kind: &str) -> usize {
    run.events().iter().filter(|e| e["event"] == kind).count()
}

/// Scales the run to this many workers. Returns the plan that trains with them.
fn grow(run: &mut Run, workers: usize) -> Plan {
    let scaled = run.varuna(&["scale", "RUN", &workers.to_string()]);
    let said = String::from_utf8_lossy(&scaled.stderr);
    assert!(scaled.status.success(), "{said}");
    run.wait_for_workers(workers);
    run.wait_for("a step of the plan with the newcomer", |run| {
        plan_in_force(run).filter(|plan| plan.members().len() == workers)
    })
}

/// The plan of the newest step.
fn plan_in_force(run: &Run) -> Option<Plan> {
    let generation = run.metrics().last()?.generation;
    run.plans().into_iter().find(|p| p.generation == generation)
}

/// A pipeline of three stages whose second worker ends at a known time. The others get its segments, and train meanwhile.
#[test]
fn gaining_members_follow_while_training() {
    let noticed = JobFile {
        min_depth: 2,
        spec: vec!["disruption: {noticeSeconds: 4}".into()],
        ..job()
    };
    let mut run = Run::start(&noticed, 3);
    run.wait_for_workers(3);
    run.wait_for_step(8);
    let before = plan_in_force(&run).expect("steps were committed under a plan");
    let [pipeline] = &before.shape.pipelines[..] else {
        panic!("one pipeline is planned: {before:?}");
    };
    let goes = pipeline.stages[1].worker;
    let workers = run.status().into_iter().flat_map(|s| s.workers);
    let worker = workers.into_iter().find(|w| w.view.id == goes);
    signal(worker.expect("it is attached").pid, Signal::SIGTERM);
    let after = run.wait_for("a step of a plan without it", |run| {
        plan_in_force(run).filter(|plan| !plan.has(goes))
    });
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(&job()), &run.metrics(), STEPS);
    let gains = |w: &WorkerId| after.units(*w).iter().any(|u| !before.units(*w).contains(u));
    let gain: Vec<WorkerId> = after.members().iter().copied().filter(gains).collect();
    let stay = after.members().iter().all(|w| before.has(*w));
    assert!(stay && !gain.is_empty(), "{}", run.report());
    // Only events of this plan count: on a busy machine a slow moment may cause another change, because of a worker's speed.
    let events = run.events().into_iter();
    let mut of_plan = events.filter(|e| e["generation"] == after.generation.0);
    let caught_up = of_plan.find(|e| e["event"] == "followersCaughtUp");
    let caught_up = caught_up.map(|e| serde_json::from_value::<Vec<WorkerId>>(e["workers"].clone()));
    let caught_up = caught_up.unwrap_or_else(|| panic!("nobody followed\n{}", run.report()));
    assert_eq!(caught_up.expect("workers"), gain, "{}", run.report());
    for never in ["followersLate", "fenced"] {
        assert_eq!(count(&run, never), 0, "{never}\n{}", run.report());
    }
}

#[test]
fn change_without_following_keeps_the_losses() {
    let settings = [("VARUNA_WITHOUT".to_owned(), "following".to_owned())];
    let mut run = Run::start_with(&job(), 1, &settings);
    run.wait_for_step(8);
    let plan = grow(&mut run, 2);
    assert!(!plan.following, "{}", run.report());
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(undisturbed(&job()), &run.metrics(), STEPS);
    // On a busy machine a slow moment may cause another change, because of a worker's speed. That change is made without following, too.
    let events = run.events();
    let switched = |e: &&serde_json::Value| e["event"] == "switched" && e["generation"] == plan.generation.0;
    assert_eq!(events.iter().filter(switched).count(), 1, "{}", run.report());
    for never in ["followersCaughtUp", "followersLate", "fenced"] {
        assert_eq!(count(&run, never), 0, "{never}\n{}", run.report());
    }
}
