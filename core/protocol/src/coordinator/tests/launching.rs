//! The time that a generation may take to start.

use super::*;
use varuna_plan::deadline::RecentSteps;

/// The deadline of the first step, which is added to the time for the start. Nothing was observed yet, so the minimum is doubled twice.
const STEP_MS: u64 = 1_600;
const LAUNCH_MS: u64 = 1_500;

/// Two workers have got their first plan.
fn launching() -> Rig {
    let mut rig = Rig::with(config(), Record::default());
    for worker in [A, B] {
        rig.join(worker);
        rig.answer(worker, &[]);
    }
    rig.wait(60);
    let plan = rig.plan();
    assert_eq!(plan.generation, Generation(1));
    let step = plan.deadline.of(Step(0), &RecentSteps::default());
    let allowed = (step, Timing::model().launch);
    assert_eq!(
        allowed,
        (Duration::from_millis(STEP_MS), Duration::from_millis(LAUNCH_MS))
    );
    rig
}

/// The members load and never become ready, until the generation is given up and the next one is planned. Returns the milliseconds until
/// then.
fn given_up_after(rig: &mut Rig) -> u64 {
    let generation = rig.store.highest.0;
    let began = rig.now;
    rig.sent.clear();
    while !rig.sent.iter().any(|(_, o)| matches!(o, Order::Fence { .. })) {
        assert!(rig.now.since(began) < Duration::from_secs(120), "for ever");
        rig.wait(100);
        for worker in [A, B] {
            rig.status(worker, generation, Phase::Loading, StateId::INITIAL);
        }
    }
    let took = rig.now.since(began);
    for worker in [A, B] {
        rig.answer(worker, &[]);
    }
    assert_eq!(rig.store.highest, Generation(generation + 1));
    u64::try_from(took.as_millis()).unwrap()
}

/// Compares with a tolerance: the coordinator checks every 100 ms, and the first plan is a little older than its members.
fn is_about(took_ms: u64, expected_ms: u64) -> bool {
    (expected_ms - 100..expected_ms + 200).contains(&took_ms)
}

#[test]
fn start_deadline_includes_the_state_transfer() {
    MOVE_MS.set(4_000.0);
    let mut rig = launching();
    let took = given_up_after(&mut rig);
    MOVE_MS.set(0.0);
    let expected = STEP_MS + LAUNCH_MS + 3 * 4_000;
    assert!(is_about(took, expected), "{took} ms instead of {expected}");
}

#[test]
fn late_launches_double_the_next_start_deadline() {
    let mut rig = launching();
    for times in [1, 2, 4, 8, 16, 16] {
        let took = given_up_after(&mut rig);
        let expected = STEP_MS + LAUNCH_MS * times;
        assert!(is_about(took, expected), "{took} ms instead of {expected}");
    }
    let generation = rig.store.highest.0;
    for phase in [Phase::Ready, Phase::Running] {
        for worker in [A, B] {
            rig.status(worker, generation, phase, StateId::INITIAL);
        }
    }
    rig.say(A, suspect(generation, B));
    for worker in [A, B] {
        rig.answer(worker, &[]);
    }
    let took = given_up_after(&mut rig);
    assert!(is_about(took, STEP_MS + LAUNCH_MS), "{took} ms");
}
