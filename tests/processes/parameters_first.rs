//! A loss with real processes after which a worker lacks all its state: it computes the first step with the parameters of others, while its
//! state comes.

use nix::sys::signal::Signal;
use varuna_fixtures::{JobFile, Run, assert_same_curve, event, signal};
use varuna_plan::{Base, Plan, WorkerId};

const STEPS: u64 = 120;
/// What a worker logs.
const BEGUN: &str = "the first step begins before Go";

/// Pipelines of two stages, so that of five workers one has no stage.
fn job(precision: &str) -> JobFile {
    JobFile {
        steps: STEPS,
        min_depth: 2,
        pipeline: vec!["maxDepth: 2".into()],
        training: vec![format!("precision: {precision}")],
        ..JobFile::default()
    }
}

/// The plan of the newest step.
fn plan_in_force(run: &Run) -> Option<Plan> {
    let generation = run.metrics().last()?.generation;
    run.plans().into_iter().find(|p| p.generation == generation)
}

/// Kills a member, whose place the fifth worker takes. Returns the plan that goes on.
fn kill_member(run: &mut Run) -> Plan {
    let before = plan_in_force(run).expect("steps were committed under a plan");
    let victim: WorkerId = before.members()[1];
    let workers = run.status().into_iter().flat_map(|s| s.workers);
    let pid = workers.into_iter().find(|w| w.view.id == victim).map(|w| w.pid);
    signal(pid.expect("a member is in the status"), Signal::SIGKILL);
    run.wait_for("a step without the killed worker", |run| {
        plan_in_force(run).filter(|plan| !plan.has(victim))
    })
}

/// Loses a worker, whose place one without any state takes. The losses are those of an undisturbed run.
fn survive(precision: &str) {
    let mut undisturbed = Run::start(&job(precision), 4);
    assert_eq!(undisturbed.exit_code(), 0, "{}", undisturbed.report());
    let mut run = Run::start(&job(precision), 5);
    run.wait_for("five workers", |run| {
        (run.status()?.workers.len() == 5).then_some(())
    });
    run.wait_for_step(8);
    let plan = kill_member(&mut run);
    assert!(plan.parameters_first, "{}", plan.reason);
    let Base::Fixed { id, .. } = plan.base else {
        panic!("{}", run.report())
    };
    let lacks = |w: &&WorkerId| {
        let units = plan.units(**w);
        units
            .iter()
            .all(|unit| plan.parameters_sender(**w, *unit, id.step).is_some())
    };
    let lacking = plan.members().iter().find(lacks).copied();
    let lacking = lacking.unwrap_or_else(|| panic!("all members had state: {}", run.report()));
    let workers = run.status().into_iter().flat_map(|s| s.workers);
    let name = workers
        .into_iter()
        .find(|w| w.view.id == lacking)
        .map(|w| w.view.name);
    let name = name.expect("a member is in the status");
    assert_eq!(run.exit_code(), 0, "{}", run.report());
    assert_same_curve(&undisturbed.metrics(), &run.metrics(), STEPS);
    assert!(run.log_of(&name).contains(BEGUN), "{}", run.report());
    // No step hung, and none was given up.
    let fences = run.events().iter().filter(|e| e["event"] == "fenced").count();
    assert_eq!(fences, 1, "{}", run.report());
    assert!(event(&run, "lost").is_none(), "{}", run.report());
}

#[test]
fn worker_without_state_computes_the_first_step() {
    survive("fp32");
}

/// Parameters are sent in 16 bits, and the state in 32.
#[test]
fn worker_without_state_computes_in_16_bits() {
    survive("bf16");
}
