//! The states of which a member has digests computed.

use super::checkpoints::step;
use super::*;
use crate::message::Digests;

fn digest(effects: &[MemberEffect]) -> Option<(Step, bool, Vec<Unit>)> {
    effects.iter().find_map(|e| match e {
        MemberEffect::Digest { id, saved, units } => Some((id.step, *saved, units.clone())),
        _ => None,
    })
}

/// Runs and commits the step with the peer.
fn commit(rig: &mut Rig, step: u64) -> Vec<MemberEffect> {
    rig.prepare(step);
    let decision = apply(&rig.peer_norm(step, 0)).unwrap();
    rig.put(MemberInput::Applied { id: decision.id })
}

#[test]
fn every_nth_state_and_each_checkpoint_is_compared() {
    let mut rig = Rig::running();
    rig.member.config.compare_every = Some(2);
    rig.member.config.checkpoint_every = Some(3);
    let seen: Vec<_> = (0..6).map(|s| digest(&commit(&mut rig, s))).collect();
    let all = vec![Unit(0), Unit(1)];
    let of = |step: u64, saved: bool| Some((Step(step), saved, all.clone()));
    assert_eq!(
        seen,
        [None, of(2, false), of(3, true), of(4, false), None, of(6, true)]
    );
    rig.member.config.compare_every = None;
    rig.member.config.checkpoint_every = Some(1);
    assert_eq!(digest(&commit(&mut rig, 6)), None);
}

#[test]
fn what_nobody_else_holds_is_not_compared() {
    let mut rig = Rig::new();
    rig.member.config.compare_every = Some(1);
    rig.order(Order::Prepare(plan(1, fixed(StateId::INITIAL, None), &[ME], &[])));
    for unit in [Unit(0), Unit(1)] {
        let id = StateId::INITIAL;
        rig.put(MemberInput::Loaded { unit, id });
    }
    let generation = Generation(1);
    rig.order(Order::Go { generation });
    let decision = apply(&rig.prepare(0)).unwrap();
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(rig.member.status().at, decision.id);
    assert_eq!(digest(&effects), None);
}

#[test]
fn digests_are_reported_without_delaying_steps() {
    let mut rig = Rig::running();
    rig.member.config.compare_every = Some(1);
    let effects = commit(&mut rig, 0);
    let place = |of: fn(&MemberEffect) -> bool| effects.iter().position(of).unwrap();
    let digest = place(|e| matches!(e, MemberEffect::Digest { .. }));
    assert!(digest < place(|e| matches!(e, MemberEffect::Run { step: Step(1), .. })));
    let digests = Digests {
        id: rig.member.status().at,
        saved: false,
        units: vec![(Unit(0), 7)],
    };
    let told = rig.put(MemberInput::Digested(digests.clone()));
    assert_eq!(told, [MemberEffect::Report(Report::Digests(digests))]);
    step(&mut rig, 1, false);
}

/// After the switch there is another plan, and units may be freed.
#[test]
fn state_at_a_switch_is_compared_by_the_old_plan() {
    let mut rig = Rig::running();
    rig.member.config.compare_every = Some(1);
    let from = Generation(1);
    rig.order(Order::Prepare(plan(2, Base::AtSwitch { from }, &[ME], &[ME])));
    let generation = Generation(2);
    rig.order(Order::Arm { generation });
    rig.prepare(0);
    let decision = apply(&rig.peer_norm(0, 2)).unwrap();
    assert_eq!(decision.switch, Some(generation));
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(rig.member.generation(), generation);
    assert_eq!(digest(&effects), Some((Step(1), false, vec![Unit(0), Unit(1)])));
}
