//! Following, on both sides: what a source sends and when, and what a new worker accepts.

use super::super::followed::Followers;
use super::*;
use crate::message::Following;
use crate::message::PeerMessage::Follow;

const NEWCOMER: WorkerId = WorkerId(3);
const NEXT: Generation = Generation(2);

/// The plan that a new worker joins. It follows its sources until then.
fn next(sources: &[WorkerId]) -> Arc<Plan> {
    let base = Base::AtSwitch { from: Generation(1) };
    let mut plan = Arc::unwrap_or_clone(plan(2, base, &[ME, PEER, NEWCOMER], sources));
    plan.following = true;
    Arc::new(plan)
}

/// The decision of the step after `parent`.
fn after(parent: StateId, switch: Option<Generation>) -> Decision {
    let parts: Vec<UnitNorm> = Rig::units().into_iter().map(|(_, n)| n).collect();
    Decision::conclude(parent, Generation(1), &parts, switch)
}

fn copies(effects: &[MemberEffect]) -> Vec<(u32, StateId)> {
    let copy = |e: &MemberEffect| match e {
        MemberEffect::Copy { unit, id, .. } => Some((unit.0, *id)),
        _ => None,
    };
    effects.iter().filter_map(copy).collect()
}

fn forwarded(effects: &[MemberEffect]) -> Vec<u32> {
    let forward = |e: &MemberEffect| match e {
        MemberEffect::Forward { unit, .. } => Some(unit.0),
        _ => None,
    };
    effects.iter().filter_map(forward).collect()
}

fn applied(effects: &[MemberEffect]) -> Vec<(u32, StateId)> {
    let apply = |e: &MemberEffect| match e {
        MemberEffect::ApplyForwarded { unit, decision } => Some((unit.0, decision.id)),
        _ => None,
    };
    effects.iter().filter_map(apply).collect()
}

fn asks(effects: &[MemberEffect]) -> Vec<PeerMessage> {
    let ask = |e: &MemberEffect| match e {
        MemberEffect::Send { message, .. } => Some(message.clone()),
        _ => None,
    };
    effects.iter().filter_map(ask).collect()
}

impl Rig {
    /// A member that trains step 0. A new worker is connected in the next plan and asks to follow both units.
    fn followed() -> Rig {
        let mut rig = Rig::running();
        rig.order(Order::Prepare(next(&[ME, PEER])));
        rig.connect(2, PEER);
        rig.connect(2, NEWCOMER);
        for unit in [Unit(0), Unit(1)] {
            let effects = rig.hear(2, NEWCOMER, Follow { unit, held: None });
            assert_eq!(copies(&effects), [], "a copy waits for the next commit");
        }
        rig
    }

    /// Runs and commits the step. Returns the effects when it was concluded, and when it was committed.
    fn step(&mut self, step: u64, armed: u64) -> (Vec<MemberEffect>, Vec<MemberEffect>) {
        self.prepare(step);
        let concluded = self.peer_norm(step, armed);
        let id = apply(&concluded).unwrap().id;
        (concluded, self.put(MemberInput::Applied { id }))
    }

    fn copy_sent(&mut self, unit: u32) {
        let (generation, to, unit) = (NEXT, NEWCOMER, Unit(unit));
        self.put(MemberInput::Served { generation, to, unit });
    }

    fn gradient_sent(&mut self, unit: u32) {
        let (generation, to, unit) = (NEXT, NEWCOMER, Unit(unit));
        self.put(MemberInput::Forwarded { generation, to, unit });
    }

    /// A new worker that is connected to the members, and the messages that it has sent to them.
    fn newcomer() -> (Rig, Vec<PeerMessage>) {
        let base = Base::AtSwitch { from: Generation(1) };
        let mut plan = Arc::unwrap_or_clone(plan(2, base, &[ME, PEER], &[PEER]));
        plan.following = true;
        let mut rig = Rig::new();
        rig.order(Order::Prepare(Arc::new(plan)));
        let effects = rig.connect(2, PEER);
        (rig, asks(&effects))
    }

    fn gradient(&mut self, generation: Generation, unit: u32, decision: Decision) -> Vec<MemberEffect> {
        self.put(MemberInput::Gradient {
            generation,
            from: PEER,
            unit: Unit(unit),
            decision,
        })
    }

    /// The worker stores copies of both units at the state.
    fn take_copies(&mut self, decision: Decision) {
        for unit in 0..2 {
            self.fetched(2, unit, decision.id, Some(decision));
            self.loaded(unit, decision.id);
        }
    }
}

#[test]
fn source_sends_copies_and_then_raw_gradients() {
    let mut rig = Rig::followed();
    let (concluded, committed) = rig.step(0, 0);
    assert_eq!(forwarded(&concluded), [0_u32; 0], "no copy was made yet");
    let one = rig.member.status().at;
    assert_eq!(copies(&committed), [(0, one), (1, one)]);
    let place = |e: &[MemberEffect], of: fn(&MemberEffect) -> bool| e.iter().position(of).unwrap();
    let run = place(&committed, |e| matches!(e, MemberEffect::Run { .. }));
    assert!(place(&committed, |e| matches!(e, MemberEffect::Copy { .. })) < run);
    let (concluded, committed) = rig.step(1, 0);
    assert_eq!(forwarded(&concluded), [0, 1]);
    assert_eq!(copies(&committed), []);
    let forward = place(&concluded, |e| matches!(e, MemberEffect::Forward { .. }));
    let apply = place(&concluded, |e| matches!(e, MemberEffect::Apply { .. }));
    assert!(forward < apply, "the optimizer scales the gradient in place");
}

#[test]
fn as_many_copies_are_sent_as_the_link_carries_in_a_step() {
    let mut followers = Followers::default();
    for unit in 0..40 {
        followers.ask(NEWCOMER, Unit(unit), false);
    }
    let mut made = |sent: &[Unit]| {
        sent.iter().for_each(|unit| followers.copy_sent(NEWCOMER, *unit));
        let next = followers.next_copies(|_, _| true);
        next.into_iter().map(|(_, unit)| unit).collect::<Vec<_>>()
    };
    let first = made(&[]);
    assert_eq!(first.len(), 8);
    assert_eq!(made(&first[..1]), [], "the others are late");
    let second = made(&first[..7]);
    assert_eq!(
        second.len(),
        3,
        "half as many from now on, together with the last of the first"
    );
    let third = made(&[&first[7..], &second].concat());
    assert_eq!(third.len(), 4, "those were late, too");
    let fourth = made(&third);
    assert_eq!(fourth.len(), 8, "these were sent within a step");
    // There is no memory for half of them.
    let (copied, not_copied) = fourth.split_at(4);
    not_copied
        .iter()
        .for_each(|unit| followers.not_copied(NEWCOMER, *unit));
    copied
        .iter()
        .for_each(|unit| followers.copy_sent(NEWCOMER, *unit));
    assert_eq!(followers.next_copies(|_, _| true).len(), 1);
}

#[test]
fn copy_without_memory_is_made_after_a_later_commit() {
    let mut rig = Rig::followed();
    let (_, committed) = rig.step(0, 0);
    assert_eq!(copies(&committed).len(), 2);
    rig.copy_sent(1);
    rig.put(MemberInput::NotCopied(NEXT, NEWCOMER, Unit(0)));
    let (concluded, committed) = rig.step(1, 0);
    assert_eq!(
        forwarded(&concluded),
        [1],
        "without the copy a gradient is of no use"
    );
    assert_eq!(copies(&committed), [(0, rig.member.status().at)]);
    rig.copy_sent(0);
    // An answer that comes late is about no copy that is on its way.
    rig.put(MemberInput::NotCopied(NEXT, NEWCOMER, Unit(0)));
    let (concluded, committed) = rig.step(2, 0);
    assert_eq!(forwarded(&concluded), [0, 1]);
    assert_eq!(copies(&committed), []);
}

#[test]
fn two_followers_have_separate_copies() {
    let mut rig = Rig::running();
    let base = Base::AtSwitch { from: Generation(1) };
    let other = WorkerId(4);
    let mut next = Arc::unwrap_or_clone(plan(2, base, &[ME, PEER, NEWCOMER, other], &[ME, PEER]));
    next.following = true;
    next.addresses.insert(other, "4:1".into());
    rig.order(Order::Prepare(Arc::new(next)));
    for (peer, unit) in [(NEWCOMER, Unit(0)), (other, Unit(0))] {
        rig.connect(2, peer);
        rig.hear(2, peer, Follow { unit, held: None });
    }
    let (_, committed) = rig.step(0, 0);
    assert_eq!(copies(&committed).len(), 2);
    assert_eq!(forwarded(&rig.step(1, 0).0), [0, 0]);
    rig.put(MemberInput::Closed {
        generation: NEXT,
        peer: other,
    });
    assert_eq!(forwarded(&rig.step(2, 0).0), [0]);
}

#[test]
fn slow_follower_gets_nothing_until_it_asks_again() {
    let mut rig = Rig::followed();
    rig.step(0, 0);
    for step in 1..=4 {
        assert_eq!(forwarded(&rig.step(step, 0).0), [0, 1], "step {step}");
        rig.gradient_sent(1);
    }
    assert_eq!(forwarded(&rig.step(5, 0).0), [1], "four wait");
    let held = Some(rig.member.status().at);
    let unit = Unit(0);
    rig.copy_sent(0);
    rig.hear(2, NEWCOMER, Follow { unit, held });
    let (_, committed) = rig.step(6, 0);
    assert_eq!(copies(&committed), [(0, rig.member.status().at)]);
}

#[test]
fn what_was_sent_in_time_makes_room_for_more() {
    let mut rig = Rig::followed();
    for step in 0..9 {
        rig.step(step, 0);
        rig.gradient_sent(0);
    }
    assert_eq!(forwarded(&rig.step(9, 0).0), [0]);
}

#[test]
fn followed_unit_is_not_sent_again_at_the_switch() {
    let mut rig = Rig::followed();
    rig.step(0, 0);
    rig.put(MemberInput::NotCopied(NEXT, NEWCOMER, Unit(1)));
    rig.order(Order::Arm { generation: NEXT });
    let (concluded, committed) = rig.step(1, 2);
    assert_eq!(forwarded(&concluded), [0]);
    let served = |e: &MemberEffect| match e {
        MemberEffect::Serve { unit, .. } => Some(unit.0),
        _ => None,
    };
    assert_eq!(rig.member.generation(), NEXT);
    assert_eq!(committed.iter().filter_map(served).collect::<Vec<_>>(), [1]);
}

#[test]
fn fence_before_commit_ends_following() {
    let mut rig = Rig::followed();
    rig.step(0, 0);
    rig.prepare(1);
    let concluded = rig.peer_norm(1, 0);
    assert_eq!(forwarded(&concluded), [0, 1]);
    let decision = apply(&concluded).unwrap();
    let upto = NEXT;
    assert_eq!(inventory(&rig.order(Order::Fence { upto })), None);
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(inventory(&effects).unwrap().units[&Unit(0)], decision.id);
    let closed = |e: &MemberEffect| matches!(e, MemberEffect::Disconnect { generation: NEXT });
    assert!(effects.iter().any(closed));
    assert_eq!(copies(&effects), []);
}

#[test]
fn newcomer_reaches_the_base_by_gradients() {
    let (mut rig, asked) = Rig::newcomer();
    let (held, first) = (None, StateId::INITIAL);
    let follow = |unit| Follow { unit, held };
    assert_eq!(asked, [follow(Unit(0)), follow(Unit(1))]);
    let one = after(first, None);
    rig.take_copies(one);
    let copied = |s: &Status| s.following == Following::Copied(one.id.step);
    assert!(
        rig.member.reported.as_ref().is_some_and(copied),
        "the coordinator is told"
    );
    assert!(!rig.member.status().based);
    assert_eq!(
        rig.member.status().following,
        Following::Copied(one.id.step),
        "no gradient has come"
    );
    let two = after(one.id, None);
    let three = after(two.id, Some(NEXT));
    for unit in 0..2 {
        assert_eq!(applied(&rig.gradient(NEXT, unit, two)), [(unit, two.id)]);
        rig.loaded(unit, two.id);
    }
    assert_eq!(rig.member.status().following, Following::CaughtUp);
    for unit in 0..2 {
        assert_eq!(applied(&rig.gradient(NEXT, unit, three)), [(unit, three.id)]);
    }
    assert!(rig.member.status().based);
    assert_eq!(
        rig.member.status().phase,
        Phase::Loading,
        "the engine has not applied them"
    );
    rig.loaded(0, three.id);
    rig.loaded(1, three.id);
    assert_eq!(rig.member.status().phase, Phase::Ready);
    assert_eq!(rig.member.held()[&Unit(1)], three.id);
}

#[test]
fn gap_in_gradients_requests_another_copy() {
    let (mut rig, _) = Rig::newcomer();
    let one = after(StateId::INITIAL, None);
    let two = after(one.id, None);
    let three = after(two.id, None);
    rig.take_copies(two);
    assert_eq!(applied(&rig.gradient(NEXT, 0, two)), [], "it is in the copy");
    assert_eq!(applied(&rig.gradient(NEXT, 0, three)), [(0, three.id)]);
    assert_eq!(applied(&rig.gradient(NEXT, 0, three)), [], "once");
    let five = after(after(three.id, None).id, None);
    assert_eq!(applied(&rig.gradient(NEXT, 0, five)), [], "a step is missing");
    rig.loaded(0, three.id);
    rig.now = rig.now.after(Duration::from_secs(1));
    let asked = asks(&rig.put(MemberInput::Tick));
    let unit = Unit(0);
    assert!(asked.contains(&Follow { unit, held: None }), "{asked:?}");
    let (unit, held) = (Unit(1), Some(two.id));
    assert!(asked.contains(&Follow { unit, held }), "{asked:?}");
    rig.fetched(2, 0, five.id, Some(five));
    rig.loaded(0, five.id);
    let six = after(five.id, None);
    assert_eq!(applied(&rig.gradient(NEXT, 0, six)), [(0, six.id)]);
}

#[test]
fn a_gradient_of_another_generation_is_not_taken() {
    let (mut rig, _) = Rig::newcomer();
    let one = after(StateId::INITIAL, None);
    rig.take_copies(one);
    let two = after(one.id, None);
    assert_eq!(applied(&rig.gradient(Generation(1), 0, two)), []);
    assert_eq!(applied(&rig.gradient(NEXT, 0, two)), [(0, two.id)]);
}

#[test]
fn late_gradient_does_not_change_a_fetched_base() {
    let (mut rig, _) = Rig::newcomer();
    let one = after(StateId::INITIAL, None);
    rig.take_copies(one);
    let two = after(one.id, Some(NEXT));
    rig.fetched(2, 0, two.id, Some(two));
    assert_eq!(applied(&rig.gradient(NEXT, 0, two)), []);
    assert_eq!(applied(&rig.gradient(NEXT, 1, two)), [(1, two.id)]);
}

#[test]
fn fence_waits_for_a_followers_update() {
    let (mut rig, _) = Rig::newcomer();
    let one = after(StateId::INITIAL, None);
    rig.take_copies(one);
    let two = after(one.id, None);
    rig.gradient(NEXT, 0, two);
    let upto = NEXT;
    assert_eq!(inventory(&rig.order(Order::Fence { upto })), None);
    assert_eq!(
        applied(&rig.gradient(NEXT, 1, two)),
        [],
        "a fence waits: nothing new is begun"
    );
    let effects = rig.loaded(0, two.id);
    let inventory = inventory(&effects).unwrap();
    let ids: Vec<StateId> = inventory.units.values().copied().collect();
    assert_eq!(ids, [two.id, one.id]);
    assert_eq!(inventory.decision, Some(two));
}

#[test]
fn a_damaged_gradient_leaves_a_gap() {
    let (mut rig, _) = Rig::newcomer();
    let one = after(StateId::INITIAL, None);
    rig.take_copies(one);
    let failed = MemberInput::FetchFailed {
        generation: NEXT,
        from: PEER,
        unit: Unit(0),
    };
    let asked = asks(&rig.put(failed));
    let (unit, held) = (Unit(0), None);
    assert_eq!(asked, [Follow { unit, held }]);
}

#[test]
fn who_cannot_follow_says_so() {
    let mut rig = Rig::new();
    assert_eq!(rig.member.status().following, Following::Able);
    rig.member = Member::new(MemberConfig {
        follows: false,
        ..Rig::config()
    });
    assert_eq!(rig.member.status().following, Following::Unable);
}
