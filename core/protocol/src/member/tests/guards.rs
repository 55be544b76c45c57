//! What a member refuses: late, repeated and foreign messages, and state and gradients that do not fit.

use super::checkpoints::step;
use super::*;
use varuna_plan::state::Chain;

const NON_MEMBER: WorkerId = WorkerId(3);

/// A state of another history.
fn other_state(run_gen: u64, step: u64) -> StateId {
    StateId {
        run_gen: Generation(run_gen),
        step: Step(step),
        chain: Chain(77),
    }
}

fn switch_from(generation: u64) -> Base {
    Base::AtSwitch {
        from: Generation(generation),
    }
}

/// The decision of a step with the gradients of two units as in [`Rig::units`].
fn decide(parent: StateId, run_gen: u64) -> Decision {
    let parts: Vec<UnitNorm> = Rig::units().into_iter().map(|(_, n)| n).collect();
    Decision::conclude(parent, Generation(run_gen), &parts, None)
}

fn accepts(effects: &[MemberEffect]) -> bool {
    effects.iter().any(|e| matches!(e, MemberEffect::Accepted(_)))
}

fn serves(effects: &[MemberEffect]) -> bool {
    effects.iter().any(|e| matches!(e, MemberEffect::Serve { .. }))
}

#[test]
fn step_is_not_applied_without_all_units() {
    let mut rig = Rig::new();
    // The peer is the first holder of all units.
    rig.ready_in(plan(1, fixed(StateId::INITIAL, None), &[PEER, ME], &[]));
    rig.go(1);
    rig.prepare(0);
    assert_eq!(apply(&rig.peer_norm(0, 0)), None);
    let norms = |units| Norms {
        save: false,
        store_busy: false,
        step: Step(0),
        units,
        armed: Generation(0),
    };
    let some = Rig::units()[..1].to_vec();
    assert_eq!(apply(&rig.hear(1, PEER, PeerMessage::Norm(norms(some)))), None);
    let all = PeerMessage::Norm(norms(Rig::units()));
    assert!(apply(&rig.hear(1, PEER, all)).is_some());
}

#[test]
fn other_workers_cannot_stop_a_checkpoint() {
    let mut rig = Rig::running();
    rig.member.config.checkpoint_every = Some(1);
    let busy = Norms {
        save: false,
        store_busy: true,
        step: Step(0),
        units: vec![],
        armed: Generation(0),
    };
    rig.hear(1, NON_MEMBER, PeerMessage::Norm(busy));
    let (_, put) = step(&mut rig, 0, false);
    assert_eq!(put, [(Unit(0), Step(1))]);
}

#[test]
fn old_or_fenced_plan_is_not_entered() {
    let mut rig = Rig::running();
    let first = plan(1, fixed(StateId::INITIAL, None), &[ME, PEER], &[]);
    let effects = rig.order(Order::Prepare(first.clone()));
    assert!(
        !accepts(&effects) && !effects.contains(&MemberEffect::Abort),
        "{effects:?}"
    );
    rig.order(FENCE);
    rig.put(MemberInput::Stopped { prepared: vec![] });
    assert!(!accepts(&rig.order(Order::Prepare(first))));
    assert_eq!(rig.member.status().phase, Phase::Idle);
}

#[test]
fn late_or_repeated_change_is_ignored() {
    let mut rig = Rig::running();
    let change = |g| Order::Prepare(plan(g, switch_from(1), &[ME, PEER], &[ME, PEER]));
    rig.order(change(3));
    rig.connect(3, PEER);
    for late in [2, 3] {
        rig.order(change(late));
        let status = rig.member.status();
        assert_eq!((status.next, status.next_connected), (Generation(3), true));
    }
}

#[test]
fn training_member_ignores_changes_of_other_generations() {
    let mut rig = Rig::running();
    let other = plan(6, switch_from(5), &[ME, PEER], &[PEER]);
    assert_eq!(rig.order(Order::Prepare(other)), []);
    rig.prepare(0);
    assert!(apply(&rig.peer_norm(0, 0)).is_some(), "it trains on");
}

/// Whether a worker that is prepared for step 0 of generation 1 applies this decision.
fn rolls_forward_by(decision: Decision) -> bool {
    let mut rig = Rig::running();
    rig.prepare(0);
    rig.order(FENCE);
    let base = fixed(decision.id, Some(decision));
    let effects = rig.order(Order::Prepare(plan(3, base, &[ME, PEER], &[PEER])));
    apply(&effects).is_some()
}

#[test]
fn gradient_needs_its_state_and_generation() {
    assert!(rolls_forward_by(decide(StateId::INITIAL, 1)));
    assert!(
        !rolls_forward_by(decide(other_state(0, 0), 1)),
        "of another parent"
    );
    assert!(
        !rolls_forward_by(decide(StateId::INITIAL, 2)),
        "run once more without it"
    );
}

#[test]
fn a_late_go_does_not_start_the_next_generation() {
    let mut rig = Rig::new();
    rig.ready_in(plan(2, fixed(StateId::INITIAL, None), &[ME, PEER], &[]));
    assert_eq!(rig.go(1), []);
    assert_eq!(rig.member.status().phase, Phase::Ready);
}

#[test]
fn worker_without_state_does_not_report_its_last_step() {
    let mut rig = Rig::running();
    rig.prepare(0);
    rig.order(FENCE);
    assert_eq!(rig.go(2), [MemberEffect::Free { keep: vec![] }]);
    assert!(rig.member.prepared().is_empty(), "the engine has freed them");
    let effects = rig.order(Order::Fence { upto: Generation(3) });
    let inventory = inventory(&effects).unwrap();
    assert!(inventory.prepared.is_empty());
    assert_eq!(inventory.ran, None);
}

#[test]
fn state_is_not_sent_any_more_once_training_may_change_it() {
    let source = || plan(1, fixed(StateId::INITIAL, None), &[ME, PEER], &[ME]);
    let mut rig = Rig::new();
    rig.ready_in(source());
    assert!(serves(&rig.asked_for(1, 0)));
    let mut rig = Rig::new();
    rig.ready_in(source());
    rig.go(1);
    assert!(!serves(&rig.asked_for(1, 0)));
}

#[test]
fn a_peer_is_sent_the_base_and_no_other_state() {
    let (mut rig, base) = (Rig::running(), other_state(1, 5));
    rig.order(FENCE);
    rig.put(MemberInput::Stopped { prepared: vec![] });
    let both = plan(2, fixed(base, None), &[ME, PEER], &[ME, PEER]);
    rig.order(Order::Prepare(both));
    rig.connect(2, PEER);
    assert!(!serves(&rig.asked_for(2, 0)), "it holds the initial state");
    rig.fetched(2, 0, base, None);
    assert!(serves(&rig.loaded(0, base)));
}

#[test]
fn nothing_more_is_taken_over_once_a_fence_waits() {
    let (mut rig, base) = (Rig::new(), other_state(1, 5));
    rig.loading(base);
    rig.fetched(2, 0, base, None);
    rig.order(Order::Fence { upto: Generation(2) });
    assert_eq!(rig.fetched(2, 1, base, None), []);
    let effects = rig.loaded(0, base);
    assert_eq!(
        inventory(&effects).unwrap().units,
        BTreeMap::from([(Unit(0), base)])
    );
}

#[test]
fn state_that_is_being_overwritten_is_not_sent_to_peers() {
    let mut rig = Rig::running();
    rig.order(FENCE);
    rig.put(MemberInput::Stopped { prepared: vec![] });
    let base = other_state(1, 5);
    rig.loading(base);
    let adopts = |unit, id| vec![MemberEffect::Adopt { unit: Unit(unit), id }];
    assert_eq!(rig.fetched(2, 0, base, None), adopts(0, base));
    // Meanwhile it has to join a switch to a plan whose base is the state that unit 0 had before.
    let joined = plan(4, switch_from(3), &[ME, PEER], &[ME, PEER]);
    assert!(accepts(&rig.order(Order::Prepare(joined))));
    rig.connect(4, PEER);
    rig.fetched(4, 1, StateId::INITIAL, None);
    assert!(rig.member.status().based);
    assert!(!serves(&rig.asked_for(4, 0)));
}

#[test]
fn who_fetched_state_can_tell_the_decision_that_led_to_it() {
    let (mut rig, decision) = (Rig::new(), decide(other_state(1, 5), 1));
    rig.loading(decision.id);
    for unit in 0..2 {
        rig.fetched(2, unit, decision.id, Some(decision));
        rig.loaded(unit, decision.id);
    }
    let effects = rig.order(Order::Fence { upto: Generation(2) });
    assert_eq!(inventory(&effects).unwrap().decision, Some(decision));
}

#[test]
fn member_switches_only_to_the_agreed_change() {
    let mut rig = Rig::running();
    let change = |g| Order::Prepare(plan(g, switch_from(1), &[ME, PEER], &[ME, PEER]));
    rig.order(change(2));
    rig.connect(2, PEER);
    rig.order(Order::Arm {
        generation: Generation(2),
    });
    rig.prepare(0);
    let decision = apply(&rig.peer_norm(0, 2)).unwrap();
    assert_eq!(decision.switch, Some(Generation(2)));
    rig.order(change(3));
    rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(rig.member.generation(), Generation(1));
}

#[test]
fn earlier_failed_fetch_does_not_count() {
    let mut rig = Rig::new();
    rig.loading(other_state(1, 5));
    let failed = |generation, from| MemberInput::FetchFailed {
        generation: Generation(generation),
        from,
        unit: Unit(0),
    };
    for from in [ME, PEER] {
        assert_eq!(rig.put(failed(1, from)), []);
        assert_ne!(rig.put(failed(2, from)), []);
    }
}

#[test]
fn joiner_learns_its_base_from_requested_state() {
    let mut rig = Rig::new();
    rig.order(Order::Prepare(plan(4, switch_from(3), &[ME, PEER], &[PEER])));
    rig.connect(4, PEER);
    assert_eq!(rig.fetched(2, 0, other_state(1, 5), None), []);
    assert!(!rig.member.status().based);
    rig.fetched(4, 0, other_state(3, 9), None);
    assert!(rig.member.status().based);
}

#[test]
fn plan_is_entered_once_the_engine_has_stopped() {
    let mut rig = Rig::running();
    let next = plan(2, fixed(StateId::INITIAL, None), &[ME, PEER], &[ME]);
    assert_eq!(rig.order(Order::Prepare(next.clone())), [MemberEffect::Abort]);
    let effects = rig.put(MemberInput::Stopped { prepared: vec![] });
    assert!(effects.contains(&MemberEffect::Accepted(next)));
    assert_eq!(rig.member.generation(), Generation(2));
}

/// The requests and reports of a worker that has to load from these sources, after this many of them have sent damaged states.
fn asks_after_damage(sources: &[WorkerId], damaged: usize) -> (Vec<WorkerId>, Vec<Report>) {
    let mut rig = Rig::new();
    let id = StateId {
        run_gen: Generation(1),
        step: Step(5),
        chain: StateId::INITIAL.chain,
    };
    let base = fixed(id, None);
    let mut effects = rig.order(Order::Prepare(plan(2, base, &[ME, PEER], sources)));
    for peer in [PEER, WorkerId(3)] {
        effects.extend(rig.connect(2, peer));
    }
    let (mut asked, mut reports) = (Vec::new(), Vec::new());
    for _ in 0..=damaged {
        let mut last = None;
        for effect in effects.drain(..) {
            match effect {
                MemberEffect::Send {
                    to,
                    message: PeerMessage::Fetch { unit: Unit(0) },
                    ..
                } => last = Some(to),
                MemberEffect::Report(report @ Report::Suspect { .. }) => reports.push(report),
                _ => {}
            }
        }
        let Some(from) = last else { break };
        asked.push(from);
        effects = rig.put(MemberInput::FetchFailed {
            generation: Generation(2),
            from,
            unit: Unit(0),
        });
    }
    (asked, reports)
}

#[test]
fn a_source_that_sends_damaged_states_is_not_asked_for_ever() {
    let (asked, reports) = asks_after_damage(&[PEER], 10);
    assert_eq!(asked, [PEER; 3]);
    let suspected = Report::Suspect {
        generation: Generation(2),
        about: PEER,
        why: Suspicion::Damaged,
    };
    assert_eq!(reports, [suspected], "nobody else has it");
    let (asked, reports) = asks_after_damage(&[PEER, WorkerId(3)], 10);
    assert_eq!(asked.len(), 6, "{asked:?}");
    assert_eq!(reports.len(), 1, "{reports:?}");
}

#[test]
fn a_peer_that_sends_damaged_frames_is_named_for_that() {
    let mut rig = Rig::running();
    for (generation, named) in [(2, false), (1, true)] {
        let generation = Generation(generation);
        let effects = rig.put(MemberInput::Damaged {
            generation,
            from: PEER,
        });
        let suspected = MemberEffect::Report(Report::Suspect {
            generation,
            about: PEER,
            why: Suspicion::Damaged,
        });
        assert_eq!(effects.contains(&suspected), named);
    }
}
