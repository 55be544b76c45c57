//! Plans that are prepared in advance, and changes that consider the future.

use super::*;

/// Three workers train, and every 100 ms a plan is prepared for a loss.
fn warmed() -> Rig {
    let mut config = config();
    config.timing.prepare_plans_every = Duration::from_millis(100);
    let mut rig = Rig::training_with(config, &[A, B, C]);
    for _ in 0..6 {
        rig.wait(100);
        for worker in [A, B, C] {
            rig.status(worker, 1, Phase::Running, StateId::INITIAL);
        }
    }
    assert_eq!(
        rig.machine.shared.prepared_plans.len(),
        3,
        "one for the loss of each"
    );
    rig
}

/// B dies; the others hold everything.
fn recover_without_b(rig: &mut Rig) -> Shape {
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    rig.say(A, suspect(1, B));
    for worker in [A, C] {
        rig.answer(
            worker,
            &[(Unit(0), StateId::INITIAL), (Unit(1), StateId::INITIAL)],
        );
    }
    rig.wait(200);
    assert_eq!(rig.plan().generation, Generation(2));
    rig.plan().shape.clone()
}

#[test]
fn recovery_uses_the_prepared_plan() {
    let mut rig = warmed();
    let made = MADE.get();
    let shape = recover_without_b(&mut rig);
    assert_eq!(MADE.get(), made, "nothing was planned after the loss");
    let mut cold = Rig::training(&[A, B, C]);
    let made = MADE.get();
    assert_eq!(recover_without_b(&mut cold), shape);
    assert_eq!(MADE.get(), made + 1);
}

#[test]
fn workers_are_checked_again_after_a_change_or_a_while() {
    let mut rig = warmed();
    let is_complete = |rig: &Rig, later_ms| {
        let shared = &rig.machine.shared;
        let now = rig.now.after(Duration::from_millis(later_ms));
        shared
            .prepared_plans
            .is_complete(Generation(1), shared.roster.changes(), now)
    };
    rig.wait(200);
    assert!(is_complete(&rig, 0));
    assert!(
        !is_complete(&rig, 1_000),
        "a horizon or a bad link may have changed"
    );
    rig.join(WorkerId(4));
    assert!(!is_complete(&rig, 0));
}

/// Whether this hello of the worker is a change, after which the plan is considered again.
fn is_change(rig: &mut Rig, from: WorkerId, hello: &Hello) -> bool {
    let before = rig.machine.shared.roster.changes();
    let hello = hello.clone();
    rig.put(CoordinatorInput::StreamUp { from, hello });
    rig.machine.shared.roster.changes() != before
}

#[test]
fn repeated_hello_is_no_change_of_the_workers() {
    let mut rig = Rig::training(&[A, B]);
    let known = rig.machine.shared.roster.hello(B).cloned();
    let known = known.expect("it has joined");
    assert!(!is_change(&mut rig, B, &known), "it says the same");
    let equipped = Hello {
        memory_bytes: Some(1 << 30),
        ..known
    };
    assert!(is_change(&mut rig, B, &equipped), "it knows its memory");
    assert!(!is_change(&mut rig, B, &equipped), "it says so again");
    rig.put(CoordinatorInput::StreamDown { from: B });
    assert!(is_change(&mut rig, B, &equipped), "it is back");
}

#[test]
fn plans_made_before_are_dropped_when_the_world_is_another() {
    // Another worker has joined, so a plan that was prepared without it is not used.
    let mut rig = warmed();
    rig.join(WorkerId(4));
    let made = MADE.get();
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    rig.say(A, suspect(1, B));
    for worker in [A, C, WorkerId(4)] {
        rig.answer(
            worker,
            &[(Unit(0), StateId::INITIAL), (Unit(1), StateId::INITIAL)],
        );
    }
    rig.wait(200);
    assert_eq!(rig.plan().members(), [A, C, WorkerId(4)]);
    assert!(MADE.get() > made);
    // One of the survivors has lost a part of its state, so the plan that assumes complete survivors is not used.
    let mut rig = warmed();
    let made = MADE.get();
    rig.put(CoordinatorInput::ProcessEnded { worker: B });
    rig.say(A, suspect(1, B));
    rig.answer(A, &[(Unit(0), StateId::INITIAL), (Unit(1), StateId::INITIAL)]);
    rig.answer(C, &[(Unit(0), StateId::INITIAL)]);
    rig.wait(200);
    assert_eq!(rig.plan().members(), [A, C]);
    assert_eq!(MADE.get(), made + 1);
}

#[test]
fn a_change_that_does_not_repay_its_way_is_not_made() {
    for (stay_s, wanted) in [(3_600, true), (12, false)] {
        let mut config = config();
        config.timing.stay = Duration::from_secs(stay_s);
        let mut rig = Rig::training_with(config, &[A, B]);
        MOVE_MS.set(5_000.0);
        rig.wait(200);
        rig.join(C);
        rig.wait(200);
        // Three workers instead of two train 1.5 times as fast. That is worth 5 s without training within an hour, but not within 12 s.
        assert_eq!(rig.machine.record().next.is_some(), wanted, "{stay_s} s");
        MOVE_MS.set(0.0);
    }
}

/// A trains in generation 2. Before that, the workers have changed 20 times in ten minutes.
fn rig_with_many_changes() -> Rig {
    let mut rig = Rig::training(&[A]);
    rig.machine.shared.config.last_step = Step(1_000_000);
    let churn = &mut rig.machine.shared.roster.churn;
    churn.skip(Duration::from_secs(600));
    for change in 1..=20 {
        churn.observe(rig.now.after(Duration::from_secs(30) * change));
    }
    rig.say(A, suspect(1, A));
    rig.answer(A, &[Unit(0), Unit(1)].map(|unit| (unit, state(1, 1))));
    for phase in [Phase::Ready, Phase::Running] {
        rig.status(A, 2, phase, state(1, 1));
    }
    let expected = rig.machine.shared.roster.churn.horizon().as_secs();
    assert_eq!(expected, (1_800 + 600) / 21);
    rig
}

/// A continues to train, and B is attached. Returns whether a plan with B was made in this time.
fn is_growing(rig: &mut Rig, time: Duration) -> bool {
    for _ in 0..time.as_millis() / 100 {
        rig.wait(100);
        rig.status(A, 2, Phase::Running, state(2, rig.now.0 / 100_000_000));
        rig.say(B, Report::Status(idle()));
        if rig.store.next.as_ref().is_some_and(|next| next.has(B)) {
            return true;
        }
    }
    false
}

/// A plan that is twice as fast costs 80 s without training, so it pays after 160 s. The workers change every two minutes at first, and
/// then no more.
#[test]
fn growth_is_reconsidered_after_a_quiet_time() {
    let mut rig = rig_with_many_changes();
    MOVE_MS.set(80_000.0);
    assert!(!is_growing(&mut rig, Duration::from_millis(200)));
    rig.join(B);
    assert!(!is_growing(&mut rig, Duration::from_secs(1)));
    let made = MADE.get();
    assert!(!is_growing(&mut rig, Duration::from_secs(3)));
    assert_eq!(MADE.get(), made, "the planner is not asked before that");
    let in_secs = |rig: &Rig| {
        let again = rig.machine.time_to_reconsider(rig.now);
        again.expect("a change was refused").as_secs()
    };
    // 21 times 160 s, of which 40 minutes have passed. B has joined before the last of the changes.
    assert!((950..970).contains(&in_secs(&rig)), "{} s", in_secs(&rig));
    rig.put(CoordinatorInput::TimeSkipped(Duration::from_secs(900)));
    assert!(!is_growing(&mut rig, Duration::from_secs(3)));
    rig.put(CoordinatorInput::TimeSkipped(Duration::from_secs(2_700)));
    let grows = is_growing(&mut rig, Duration::from_secs(3));
    MOVE_MS.set(0.0);
    assert!(grows, "{:?}", rig.events);
    assert_eq!(rig.machine.time_to_reconsider(rig.now), None);
}
