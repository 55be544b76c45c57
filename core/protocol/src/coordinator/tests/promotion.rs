//! A planned change that has taken place is recorded with the next write.

use super::*;

const SECOND: Generation = Generation(2);

/// A trains, B joins, and both train under plan 2.
fn switched() -> Rig {
    let mut rig = Rig::training(&[A]);
    rig.wait(100);
    rig.join(B);
    let connected = |next: u64, generation: u64, phase| Status {
        generation: Generation(generation),
        phase,
        next: Generation(next),
        next_connected: true,
        connected: true,
        ..idle()
    };
    rig.say(B, Report::Status(connected(0, 2, Phase::Loading)));
    rig.say(A, Report::Status(connected(2, 1, Phase::Running)));
    for (phase, at) in [
        (Phase::Loading, StateId::INITIAL),
        (Phase::Ready, StateId::INITIAL),
        (Phase::Running, state(2, 2)),
    ] {
        rig.status(A, 2, phase, state(1, 1));
        rig.status(B, 2, phase, at);
    }
    rig
}

fn number(plan: Option<&Arc<Plan>>) -> Option<Generation> {
    plan.map(|plan| plan.generation)
}

fn stored(rig: &Rig) -> (u64, Option<Generation>, Option<Generation>) {
    let record = &rig.store;
    (
        record.version,
        number(record.plan.as_ref()),
        number(record.next.as_ref()),
    )
}

fn switches(rig: &Rig) -> usize {
    let switched = Event::Switched { generation: SECOND };
    rig.events.iter().filter(|e| **e == switched).count()
}

#[test]
fn promotion_is_written_after_a_while() {
    let mut rig = switched();
    assert_eq!(rig.plan().generation, SECOND);
    let (version, ..) = stored(&rig);
    assert_eq!(stored(&rig), (version, Some(Generation(1)), Some(SECOND)));
    assert_eq!(switches(&rig), 1);
    let promotion = u64::try_from(Timing::model().promotion.as_millis()).unwrap();
    rig.wait(promotion / 2);
    for worker in [A, B] {
        rig.status(worker, 2, Phase::Running, state(2, 3));
    }
    assert_eq!(stored(&rig).0, version, "not yet");
    rig.wait(promotion / 2);
    assert_eq!(stored(&rig), (version + 1, Some(SECOND), None));
    rig.wait(promotion / 2);
    assert_eq!(stored(&rig).0, version + 1, "once");
    assert_eq!(switches(&rig), 1);
}

#[test]
fn the_plan_that_follows_brings_the_change_before_it_along() {
    let mut rig = switched();
    let (version, ..) = stored(&rig);
    let drains = Status {
        generation: SECOND,
        phase: Phase::Running,
        at: state(2, 2),
        based: true,
        connected: true,
        draining: true,
        ..idle()
    };
    rig.say(B, Report::Status(drains));
    rig.wait(Timing::model().change_delay.as_millis().try_into().unwrap());
    assert_eq!(stored(&rig), (version + 1, Some(SECOND), Some(Generation(3))));
}

#[test]
fn takeover_before_that_keeps_the_plan_in_force() {
    let mut rig = Rig::with(config(), switched().store);
    for worker in [A, B] {
        rig.join(worker);
        rig.status(worker, 2, Phase::Running, state(2, 2));
    }
    assert_eq!(rig.plan().generation, SECOND);
    assert_eq!(switches(&rig), 1);
    let fenced = rig
        .sent
        .iter()
        .any(|(_, order)| matches!(order, Order::Fence { .. }));
    assert!(!fenced, "{:?}", rig.sent);
}
