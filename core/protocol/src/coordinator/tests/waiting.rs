//! How long the coordinator waits for holders, and what it does about damaged data.

use super::*;
use crate::member::MemberTiming;

/// The state that A gets from B is damaged during the transfer, or in the memory of one of them.
#[test]
fn damaged_link_is_named_and_avoided() {
    let mut rig = Rig::training(&[A, B]);
    let why = Suspicion::Damaged;
    rig.say(
        A,
        Report::Suspect {
            generation: Generation(1),
            about: B,
            why,
        },
    );
    let because = "what w1 gets from w2 is damaged";
    let named = |e: &Event| matches!(e, Event::Fenced { because: b, .. } if b == because);
    assert!(rig.events.iter().any(named), "{:?}", rig.events);
    for worker in [A, B] {
        rig.answer(worker, &[(Unit(0), state(1, 1)), (Unit(1), state(1, 1))]);
    }
    assert_eq!(rig.plan().members().len(), 1);
}

/// The coordinator waits for holders much longer than workers take to find another coordinator.
fn patient() -> CoordinatorConfig {
    let mut config = config();
    config.timing.restore = Duration::from_secs(4);
    config
}

/// Only B has the second unit, and B is gone; there is a checkpoint. A answers each of these coordinators.
fn waits_for_b(store: Record) -> Rig {
    let mut rig = Rig::with(patient(), store);
    rig.complete = vec![state(1, 3)];
    rig.join(A);
    rig
}

/// A coordinator is killed before its wait for holders ends, and so is each later one.
#[test]
fn wait_for_holders_continues_after_a_takeover() {
    let mut rig = Rig::training_with(patient(), &[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.complete = vec![state(1, 3)];
    rig.put(CoordinatorInput::StreamDown { from: B });
    let waits = |rig: &mut Rig, time_ms: u64| {
        for _ in 0..time_ms / 100 {
            rig.wait_with(A, 100);
            rig.answer(A, &[(Unit(0), state(1, 4))]);
        }
    };
    waits(&mut rig, 500);
    let mut coordinators = 1;
    while rig
        .store
        .plan
        .as_ref()
        .is_some_and(|p| p.generation == Generation(1))
    {
        assert!(coordinators < 20, "waited {} ms", rig.store.waited_ms);
        rig = waits_for_b(rig.store);
        // Less than the wait, but more than a takeover takes and workers need to come back.
        waits(&mut rig, 1_500);
        coordinators += 1;
    }
    assert!(coordinators > 2, "{coordinators}");
    let base = Base::Fixed {
        id: state(1, 3),
        decision: None,
        checkpoint: true,
    };
    assert_eq!(rig.plan().base, base);
    assert_eq!(rig.store.waited_ms, 0, "the next recovery waits anew");
}

#[test]
fn new_coordinator_always_gives_holders_time() {
    let mut before = Rig::training(&[A, B]).store;
    before.waited_ms = 100_000;
    let timing = Timing::model();
    let mut rig = waits_for_b(before);
    let start = rig.now;
    while rig
        .store
        .plan
        .as_ref()
        .is_some_and(|p| p.generation == Generation(1))
    {
        rig.wait_with(A, 50);
        rig.answer(A, &[(Unit(0), state(1, 4))]);
        assert!(rig.now.since(start) < Duration::from_secs(5));
    }
    let waited = rig.now.since(start);
    assert!(waited >= timing.settle + timing.silent, "{waited:?}");
}

#[test]
fn run_that_may_begin_anew_waits_as_long() {
    let mut rig = Rig::training(&[A, B]);
    rig.machine.shared.config.timing.lost = Duration::from_secs(5);
    rig.put(CoordinatorInput::MayBeginAnew(true));
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.answer(A, &[(Unit(1), state(1, 4))]);
    rig.wait_with(A, 4_000);
    assert_eq!(rig.plan().generation, Generation(1));
    rig.wait_with(A, 2_000);
    let base = Base::Fixed {
        id: StateId::INITIAL,
        decision: None,
        checkpoint: true,
    };
    assert_eq!((rig.plan().base.clone(), rig.finished), (base, None));
}

/// New workers, which hold nothing, find a new coordinator of a run that A and B train. The store has these checkpoints.
fn found_by_newcomers(complete: &[StateId]) -> Rig {
    let store = Rig::training_with(patient(), &[A, B]).store;
    let mut rig = Rig::with(patient(), store);
    rig.complete = complete.to_vec();
    for newcomer in [C, WorkerId(4)] {
        rig.join(newcomer);
    }
    rig
}

/// Lets time pass, in which the new workers answer.
fn newcomers_answer(rig: &mut Rig, time: Duration) {
    for _ in 0..time.as_millis() / 100 {
        for newcomer in [C, WorkerId(4)] {
            rig.answer(newcomer, &[]);
        }
        rig.wait(100);
    }
}

/// The minimum time for which a new coordinator waits: for members that come back, for members that are away, and for answers.
fn settled() -> Duration {
    let timing = Timing::model();
    timing.settle + timing.grace + timing.collect + Duration::from_millis(300)
}

/// Two lists of checkpoints: only the seed, and a checkpoint that is newer than the base of the plan in the record.
const KNOWN: [&[StateId]; 2] = [
    &[StateId::INITIAL],
    &[
        StateId::INITIAL,
        StateId {
            run_gen: Generation(1),
            step: Step(3),
            chain: Chain(103),
        },
    ],
];

/// Workers that train without a coordinator may take longer to find the next one than new workers, and may have done many steps. No later
/// plan and no report shows that, and a checkpoint shows little of it.
#[test]
fn empty_newcomers_cost_no_steps() {
    for complete in KNOWN {
        let mut rig = found_by_newcomers(complete);
        newcomers_answer(&mut rig, settled());
        assert_eq!(rig.plan().generation, Generation(1), "holders may still come");
        for holder in [A, B] {
            rig.join(holder);
            rig.answer(holder, &[Unit(0), Unit(1)].map(|unit| (unit, state(1, 4))));
        }
        newcomers_answer(&mut rig, Duration::from_millis(200));
        let base = Base::Fixed {
            id: state(1, 4),
            decision: None,
            checkpoint: false,
        };
        assert_eq!(rig.plan().base, base);
    }
}

#[test]
fn new_coordinator_waits_no_longer_than_stated() {
    for complete in KNOWN {
        let mut rig = found_by_newcomers(complete);
        let began = rig.now;
        let restore = patient().timing.restore;
        while rig.plan().generation == Generation(1) {
            assert!(rig.now.since(began) < restore + settled(), "it waits for ever");
            newcomers_answer(&mut rig, Duration::from_millis(100));
        }
        assert!(rig.now.since(began) >= restore);
        let base = Base::Fixed {
            id: *complete.last().unwrap(),
            decision: None,
            checkpoint: true,
        };
        assert_eq!(rig.plan().base, base);
    }
}

/// The members have put a checkpoint of the last state that they have reported, as workers with a notice do, and end.
#[test]
fn informed_coordinator_does_not_wait() {
    let store = Rig::training_with(patient(), &[A, B]).store;
    let mut rig = Rig::with(patient(), store);
    rig.complete = vec![state(1, 4)];
    for worker in [A, B] {
        rig.join(worker);
        rig.status(worker, 1, Phase::Running, state(1, 4));
    }
    for from in [A, B] {
        rig.put(CoordinatorInput::StreamDown { from });
    }
    for newcomer in [C, WorkerId(4)] {
        rig.join(newcomer);
    }
    newcomers_answer(&mut rig, settled());
    let base = Base::Fixed {
        id: state(1, 4),
        decision: None,
        checkpoint: true,
    };
    assert_eq!(rig.plan().base, base);
}

/// One of the two members had nothing when the plan began, and has not run a step of it. So nobody has.
#[test]
fn answer_of_one_member_bounds_the_progress() {
    let mut rig = found_by_newcomers(KNOWN[1]);
    rig.join(A);
    let began = rig.now;
    while rig.plan().generation == Generation(1) {
        assert!(rig.now.since(began) < settled(), "the other one is waited for");
        rig.answer(A, &[]);
        rig.wait(100);
    }
}

/// A recovery was begun, and its coordinator died before any worker knew of it. The run continued.
#[test]
fn wait_of_an_aborted_recovery_does_not_count() {
    let mut before = Rig::training(&[A]).store;
    before.waited_ms = 600;
    let mut rig = Rig::with(config(), before);
    rig.join(A);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.wait(200);
    rig.join(B);
    rig.wait(50);
    assert!(rig.store.next.is_some());
    assert_eq!(rig.store.waited_ms, 0);
}

/// A worker that has just joined holds nothing. Its answer says nothing about holders that take longer to answer.
#[test]
fn slow_holder_is_awaited_if_only_newcomers_answered() {
    let mut rig = Rig::training_with(patient(), &[A, B]);
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.complete = vec![state(1, 3)];
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.say(A, suspect(1, B));
    rig.join(C);
    rig.answer(C, &[]);
    let collected = patient().timing.collect.as_millis().try_into().unwrap();
    rig.wait_with(C, collected);
    rig.wait_with(C, 200);
    assert_eq!(rig.plan().generation, Generation(1), "no step is given up yet");
    let held = [Unit(0), Unit(1)].map(|unit| (unit, state(1, 4)));
    rig.answer(A, &held);
    rig.wait_with(C, 100);
    let base = Base::Fixed {
        id: state(1, 4),
        decision: None,
        checkpoint: false,
    };
    assert_eq!(rig.plan().base, base);
}

/// The worker is connected, but its engine does not finish its work. Its process ends within [`MemberTiming::engine`].
#[test]
fn connected_silent_holder_is_awaited_for_a_limited_time() {
    let timing = Timing::model();
    let mut rig = Rig::training(&[A, B]);
    for w in [A, B] {
        rig.status(w, 1, Phase::Running, state(1, 4));
    }
    rig.complete = vec![state(1, 3)];
    rig.say(A, suspect(1, B));
    rig.answer(A, &[(Unit(0), state(1, 4))]);
    let start = rig.now;
    while rig.plan().generation == Generation(1) {
        rig.wait_with(A, 50);
        rig.status(B, 1, Phase::Running, state(1, 4));
        assert!(rig.now.since(start) < timing.restore * 10);
    }
    let waited = rig.now.since(start);
    let longest = timing.unanswered + Duration::from_millis(200);
    assert!(waited >= timing.unanswered && waited < longest, "{waited:?}");
    let shipped = (MemberTiming::default().engine, Timing::default().unanswered);
    assert!(shipped.0 < shipped.1, "{shipped:?}");
}

/// The write of a recovery's plan fails but takes effect later, after the record was read back.
#[test]
fn late_plan_in_the_record_is_fenced_first() {
    let mut rig = Rig::training_with(patient(), &[A, B]);
    rig.status(A, 1, Phase::Running, state(1, 4));
    rig.complete = vec![state(1, 3)];
    rig.manual = true;
    rig.say(A, suspect(1, B));
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.answer(A, &[(Unit(0), state(1, 4)), (Unit(1), state(1, 4))]);
    rig.wait(100);
    let late = rig.written.take().expect("the recovery's plan");
    assert_eq!(late.plan.as_ref().unwrap().generation, Generation(2));
    let failed = |rig: &mut Rig, record: Record| rig.put(CoordinatorInput::Written { ok: false, record });
    failed(&mut rig, late.clone());

    // The coordinator recovers again, and records how long it has waited for the holder of the other unit.
    let waits = |rig: &mut Rig| {
        for _ in 0..60 {
            rig.wait_with(A, 100);
            rig.answer(A, &[(Unit(0), state(1, 4))]);
            if let Some(note) = rig.written.take() {
                return note;
            }
        }
        panic!("it wrote nothing: {:?}", rig.events);
    };
    let note = waits(&mut rig);
    assert_eq!(note.highest, Generation(1), "the wait, and no plan: {note:?}");
    rig.store = late;
    rig.sent.clear();
    failed(&mut rig, note);
    let fence = (A, Order::Fence { upto: Generation(2) });
    assert!(rig.sent.contains(&fence), "{:?}", rig.sent);
    let because = "a write of the record has happened late";
    let named = |e: &Event| matches!(e, Event::Fenced { because: b, .. } if b == because);
    assert!(rig.events.iter().any(named), "{:?}", rig.events);
}
