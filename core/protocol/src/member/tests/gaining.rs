//! Members that get other units by a planned change: they follow them while they train.

use super::*;
use crate::message::Following;
use crate::message::PeerMessage::Follow;

const MINE: Unit = Unit(1);
const GAINED: Unit = Unit(0);
const NEXT: Generation = Generation(2);

/// A plan with one pipeline, in which the peer holds the unit that this worker will get.
fn halves() -> Arc<Plan> {
    let mut plan = Arc::unwrap_or_clone(plan(1, fixed(StateId::INITIAL, None), &[ME], &[]));
    plan.shape.pipelines[0].stages = two_stages();
    Arc::new(plan)
}

/// A plan in which both hold everything.
fn both() -> Arc<Plan> {
    let base = Base::AtSwitch { from: Generation(1) };
    let mut plan = Arc::unwrap_or_clone(plan(2, base, &[ME, PEER], &[]));
    plan.sources = vec![vec![PEER], vec![ME]];
    plan.following = true;
    Arc::new(plan)
}

fn asks(effects: &[MemberEffect]) -> Vec<PeerMessage> {
    let ask = |e: &MemberEffect| match e {
        MemberEffect::Send { message, .. } => Some(message.clone()),
        _ => None,
    };
    let fetches = |m: &PeerMessage| matches!(m, Follow { .. } | PeerMessage::Fetch { .. });
    effects.iter().filter_map(ask).filter(fetches).collect()
}

fn applied(effects: &[MemberEffect]) -> Vec<StateId> {
    let apply = |e: &MemberEffect| match e {
        MemberEffect::ApplyForwarded {
            unit: GAINED,
            decision,
        } => Some(decision.id),
        _ => None,
    };
    effects.iter().filter_map(apply).collect()
}

impl Rig {
    /// A member that runs step 0 with half of the model, and is connected in the next plan; and the messages that it has sent there.
    fn gaining() -> (Rig, Vec<PeerMessage>) {
        let mut rig = Rig::new();
        rig.order(Order::Prepare(halves()));
        rig.connect(1, PEER);
        rig.loaded(MINE.0, StateId::INITIAL);
        rig.go(1);
        rig.order(Order::Prepare(both()));
        let effects = rig.connect(2, PEER);
        (rig, asks(&effects))
    }

    /// Concludes a step with this member's part and then the peer's. Returns the decision.
    fn conclude(&mut self, step: u64, armed: u64) -> Decision {
        self.put(MemberInput::Prepared {
            generation: Generation(1),
            step: Step(step),
            units: vec![(MINE, norm(2.0))],
            store_busy: false,
        });
        let norms = Norms {
            save: false,
            store_busy: false,
            step: Step(step),
            units: vec![(GAINED, norm(1.0))],
            armed: Generation(armed),
        };
        apply(&self.hear(1, PEER, PeerMessage::Norm(norms))).unwrap()
    }

    fn commit_step(&mut self, step: u64, armed: u64) -> (Decision, Vec<MemberEffect>) {
        let decision = self.conclude(step, armed);
        (decision, self.put(MemberInput::Applied { id: decision.id }))
    }

    fn followed_gradient(&mut self, generation: Generation, decision: Decision) -> Vec<MemberEffect> {
        self.put(MemberInput::Gradient {
            generation,
            from: PEER,
            unit: GAINED,
            decision,
        })
    }

    /// A member that has a copy of the state after step 0, and the gradient of step 1.
    fn caught_up() -> (Rig, Decision) {
        let (mut rig, _) = Rig::gaining();
        let (one, _) = rig.commit_step(0, 0);
        rig.fetched(2, GAINED.0, one.id, Some(one));
        rig.loaded(GAINED.0, one.id);
        let (two, _) = rig.commit_step(1, 0);
        assert_eq!(applied(&rig.followed_gradient(NEXT, two)), [two.id]);
        rig.loaded(GAINED.0, two.id);
        (rig, two)
    }
}

#[test]
fn a_member_follows_what_a_change_gives_it_while_it_trains() {
    let (mut rig, asked) = Rig::gaining();
    let (unit, held) = (GAINED, None);
    assert_eq!(
        asked,
        [Follow { unit, held }],
        "what it holds it does not ask for"
    );
    assert_eq!(rig.member.status().following, Following::Able);
    let (one, _) = rig.commit_step(0, 0);
    let taken = rig.fetched(2, GAINED.0, one.id, Some(one));
    assert!(taken.contains(&MemberEffect::Adopt {
        unit: GAINED,
        id: one.id
    }));
    let told = |e: &MemberEffect| matches!(e, MemberEffect::Report(Report::Status(s)) if s.following == Following::Copied(one.id.step));
    assert!(taken.iter().any(told), "{taken:?}");
    rig.loaded(GAINED.0, one.id);
    let copied = Following::Copied(one.id.step);
    assert_eq!(rig.member.status().following, copied, "no gradient came");
    let (two, committed) = rig.commit_step(1, 0);
    assert!(committed.iter().any(|e| matches!(e, MemberEffect::Run { .. })));
    assert_eq!(applied(&rig.followed_gradient(NEXT, two)), [two.id]);
    assert_eq!(rig.member.status().following, Following::CaughtUp);
    assert_eq!(rig.member.status().phase, Phase::Running);
    rig.loaded(GAINED.0, two.id);
    assert_eq!(rig.member.held()[&GAINED], two.id);
}

#[test]
fn followed_unit_is_extra_until_its_plan_runs() {
    let (mut rig, _) = Rig::gaining();
    assert!(rig.member.extra_units().is_empty(), "nothing has arrived");
    let (one, _) = rig.commit_step(0, 0);
    rig.fetched(2, GAINED.0, one.id, Some(one));
    assert_eq!(rig.member.extra_units(), BTreeMap::from([(GAINED, 0)]));
    rig.loaded(GAINED.0, one.id);
    assert_eq!(rig.member.extra_units(), BTreeMap::from([(GAINED, 0)]));

    let (mut rig, _) = Rig::caught_up();
    rig.order(Order::Arm { generation: NEXT });
    let (three, _) = rig.commit_step(2, 2);
    assert_eq!(rig.member.extra_units(), BTreeMap::from([(GAINED, 0)]));
    rig.followed_gradient(NEXT, three);
    rig.loaded(GAINED.0, three.id);
    assert_eq!(rig.member.status().phase, Phase::Ready);
    assert!(rig.member.extra_units().is_empty(), "it is its own");
}

#[test]
fn who_gets_nothing_new_has_caught_up_from_the_start() {
    let mut rig = Rig::running();
    let base = Base::AtSwitch { from: Generation(1) };
    let mut next = Arc::unwrap_or_clone(plan(2, base, &[ME, PEER, WorkerId(3)], &[ME, PEER]));
    next.following = true;
    rig.order(Order::Prepare(Arc::new(next)));
    assert_eq!(rig.member.status().following, Following::CaughtUp);
}

#[test]
fn gradient_of_the_switching_step_may_come_later() {
    let (mut rig, _) = Rig::caught_up();
    rig.order(Order::Arm { generation: NEXT });
    let (three, committed) = rig.commit_step(2, 2);
    assert_eq!(rig.member.generation(), NEXT);
    assert_eq!(asks(&committed), [], "it is on its way");
    assert_eq!(rig.member.status().phase, Phase::Loading);
    assert_eq!(applied(&rig.followed_gradient(NEXT, three)), [three.id]);
    rig.loaded(GAINED.0, three.id);
    assert_eq!(rig.member.status().phase, Phase::Ready);
}

#[test]
fn gradient_may_come_before_its_decision() {
    let (mut rig, two) = Rig::caught_up();
    // The source has concluded step 2 as the member of the tree that learns of it first.
    let parts = [norm(1.0), norm(2.0)];
    let three = Decision::conclude(two.id, Generation(1), &parts, None);
    assert_eq!(applied(&rig.followed_gradient(NEXT, three)), [three.id]);
    assert_eq!(
        inventory(&rig.order(Order::Fence { upto: NEXT })),
        None,
        "the engine runs, and applies"
    );
    rig.put(MemberInput::Stopped {
        prepared: vec![(MINE, norm(2.0))],
    });
    let answer = rig.loaded(GAINED.0, three.id);
    let inventory = inventory(&answer).unwrap();
    assert_eq!(inventory.units[&GAINED], three.id);
    assert_eq!(inventory.units[&MINE], two.id);
    assert_eq!(
        inventory.decision,
        Some(three),
        "others may finish the step by it"
    );
}

#[test]
fn lost_or_damaged_copy_is_requested_again() {
    for lost in [true, false] {
        let (mut rig, two) = Rig::caught_up();
        let (generation, peer, unit) = (NEXT, PEER, GAINED);
        if lost {
            rig.put(MemberInput::Closed { generation, peer });
        } else {
            rig.put(MemberInput::FetchFailed {
                generation,
                from: peer,
                unit,
            });
        }
        assert_eq!(rig.member.status().following, Following::Able);
        let three = Decision::conclude(two.id, Generation(1), &[norm(1.0), norm(2.0)], None);
        assert_eq!(applied(&rig.followed_gradient(NEXT, three)), [], "there is a gap");
        if lost {
            rig.connect(2, PEER);
        }
        rig.now = rig.now.after(Duration::from_secs(1));
        let held = None;
        assert_eq!(asks(&rig.put(MemberInput::Tick)), [Follow { unit, held }]);
    }
}

#[test]
fn nothing_is_followed_for_a_plan_that_is_not_the_next_one() {
    let (mut rig, two) = Rig::caught_up();
    let three = Decision::conclude(two.id, Generation(1), &[norm(1.0), norm(2.0)], None);
    for generation in [Generation(1), Generation(3)] {
        assert_eq!(applied(&rig.followed_gradient(generation, three)), []);
    }
    rig.order(FENCE);
    assert_eq!(applied(&rig.followed_gradient(NEXT, three)), [], "a fence waits");
}

#[test]
fn lost_connection_of_the_next_plan_is_reported() {
    let (mut rig, _) = Rig::gaining();
    let named = |effects: &[MemberEffect]| {
        let of_change = |e: &&MemberEffect| {
            matches!(
                e,
                MemberEffect::Report(Report::Suspect {
                    generation: NEXT,
                    about: PEER,
                    ..
                })
            )
        };
        effects.iter().filter(of_change).count()
    };
    let closed = rig.put(MemberInput::Closed {
        generation: NEXT,
        peer: PEER,
    });
    assert_eq!(named(&closed), 0, "its coordinator may know that it is gone");
    let deadline = rig.member.config.timing.connect_deadline;
    rig.now = rig.now.after(deadline + Duration::from_millis(1));
    assert_eq!(named(&rig.put(MemberInput::Tick)), 1);
    rig.now = rig.now.after(deadline * 2);
    assert_eq!(named(&rig.put(MemberInput::Tick)), 0, "once");
    assert_eq!(rig.member.status().phase, Phase::Running, "training goes on");
}
