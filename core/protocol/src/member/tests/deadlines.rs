//! When a hang is detected, if steps are much shorter or longer than the plan expected.

use super::*;
use crate::message::{Lack, MemoryShortage};

const MS: Duration = Duration::from_millis(1);

fn suspects(effects: &[MemberEffect]) -> bool {
    effects
        .iter()
        .any(|e| matches!(e, MemberEffect::Report(Report::Suspect { .. })))
}

/// Runs steps of generation 1 alone, under a plan with this deadline. `took` has the duration of each step.
fn after_steps(deadline: StepDeadline, took: &[Duration]) -> Rig {
    let mut rig = Rig::new();
    let mut alone = (*plan(1, fixed(StateId::INITIAL, None), &[ME], &[])).clone();
    alone.deadline = deadline;
    rig.ready_in(Arc::new(alone));
    rig.go(1);
    for (step, took) in (0..).zip(took) {
        rig.now = rig.now.after(*took);
        let decision = apply(&rig.prepare(step)).expect("a step that is prepared alone is committed");
        rig.put(MemberInput::Applied { id: decision.id });
    }
    rig
}

#[test]
fn early_hang_is_noticed_despite_an_overestimate() {
    let deadline = StepDeadline {
        step_ns: 4 * 50_000_000_000,
        floor_ns: 400_000_000,
        doublings: 0,
        evaluation: None,
    };
    let mut rig = after_steps(deadline, &[MS * 50; 5]);
    assert!(!suspects(&rig.put(MemberInput::Tick)));
    rig.now = rig.now.after(MS * 790);
    assert!(!suspects(&rig.put(MemberInput::Tick)), "16 steps have not passed");
    rig.now = rig.now.after(MS * 20);
    assert!(suspects(&rig.put(MemberInput::Tick)));
}

#[test]
fn long_steps_have_time_after_some_commits() {
    let mut rig = after_steps(StepDeadline::of_ms(400), &[MS * 300; 9]);
    rig.now = rig.now.after(MS * 1_190);
    assert!(!suspects(&rig.put(MemberInput::Tick)));
    rig.now = rig.now.after(MS * 20);
    assert!(suspects(&rig.put(MemberInput::Tick)));
}

/// On a busy machine the engine may take longer to make the initial state of a large unit than a link may be silent.
#[test]
fn nobody_is_suspected_while_the_engine_makes_the_initial_state() {
    let mut rig = Rig::new();
    let alone = plan(1, fixed(StateId::INITIAL, None), &[ME], &[]);
    rig.order(Order::Prepare(alone));
    rig.now = rig.now.after(Duration::from_secs(20));
    assert!(!suspects(&rig.put(MemberInput::Tick)));
    for unit in [Unit(0), Unit(1)] {
        let id = StateId::INITIAL;
        rig.put(MemberInput::Loaded { unit, id });
    }
    assert_eq!(rig.member.status().phase, Phase::Ready);
}

/// A store that queues, throttles or retries requests may be silent for seconds. If the member also waits for a peer, the link may be dead.
#[test]
fn store_is_awaited_longer_than_a_link() {
    let old = StateId {
        run_gen: Generation(1),
        step: Step(5),
        chain: varuna_plan::state::Chain(77),
    };
    let silent_for = |sources: &[WorkerId], connects: bool| {
        let mut rig = Rig::new();
        let restore = plan(2, fixed(old, None), &[ME, PEER], sources);
        rig.order(Order::Prepare(restore));
        if connects {
            rig.connect(2, PEER);
        }
        let began = rig.now;
        while !suspects(&rig.put(MemberInput::Tick)) {
            rig.now = rig.now.after(MS * 100);
            assert!(rig.now.since(began) < Duration::from_secs(60));
        }
        rig.now.since(began)
    };
    let link = Rig::config().timing.connect_deadline;
    let store = link * STORE_PATIENCE;
    assert!(silent_for(&[], true) > store);
    assert!(silent_for(&[PEER], true) < store / 2);
    assert!(silent_for(&[], false) < store / 2);
}

#[test]
fn what_trickles_in_from_the_store_is_progress() {
    let old = StateId {
        run_gen: Generation(1),
        step: Step(5),
        chain: varuna_plan::state::Chain(77),
    };
    let mut rig = Rig::new();
    rig.order(Order::Prepare(plan(2, fixed(old, None), &[ME, PEER], &[])));
    rig.connect(2, PEER);
    for _ in 0..100 {
        rig.now = rig.now.after(Duration::from_secs(10));
        assert!(!suspects(&rig.put(MemberInput::Tick)));
        rig.put(MemberInput::FetchProgress {
            generation: Generation(2),
            from: ME,
            unit: Unit(1),
        });
    }
}

#[test]
fn member_reports_its_shortage_in_any_case() {
    let shortage = MemoryShortage {
        needed_bytes: Some(7 << 20),
        free_bytes: None,
    };
    reports_shortage(Lack::Data, Suspicion::NoData);
    reports_shortage(Lack::Memory(shortage), Suspicion::NoMemory(shortage));
}

fn reports_shortage(lack: Lack, why: Suspicion) {
    let lacks = |generation| MemberInput::StepLacks(Generation(generation), lack);
    let said = [MemberEffect::Report(Report::Suspect {
        generation: Generation(1),
        about: ME,
        why,
    })];
    let mut rig = Rig::running();
    assert_eq!(rig.put(lacks(7)), []);
    assert_eq!(rig.put(lacks(1)), said);
    assert!(rig.order(FENCE).contains(&MemberEffect::Abort));
    assert!(inventory(&rig.put(MemberInput::Stopped { prepared: vec![] })).is_some());
    let mut rig = Rig::running();
    assert!(rig.order(FENCE).contains(&MemberEffect::Abort));
    let failed = MemberInput::StepFailed {
        generation: Generation(1),
        about: None,
    };
    assert_eq!(rig.put(failed), [], "the fence has come first");
    assert_eq!(rig.put(lacks(7)), []);
    assert_eq!(rig.put(lacks(1)), said);
    assert!(inventory(&rig.put(MemberInput::Stopped { prepared: vec![] })).is_some());
    assert_eq!(rig.put(lacks(1)), [], "it has left the plan");
}
