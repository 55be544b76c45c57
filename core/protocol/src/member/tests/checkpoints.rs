//! Which states a member puts into the store.

use super::*;

/// Prepares, decides and commits a step with the peer, which requests a checkpoint or not. Returns whether this member requested one, and
/// which units it put.
pub(super) fn step(rig: &mut Rig, step: u64, peer_wants: bool) -> (bool, Vec<(Unit, Step)>) {
    let said = rig.member.checkpoints.is_wanted();
    rig.prepare(step);
    let decision = apply(&rig.peer_norms(step, 0, peer_wants)).unwrap();
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    let put = effects.iter().filter_map(|e| match e {
        MemberEffect::SaveUnit { unit, id } => Some((*unit, id.step)),
        _ => None,
    });
    (said, put.collect())
}

#[test]
fn one_members_request_makes_all_put_the_same_state_once() {
    let mut rig = Rig::running();
    rig.member.config.checkpoint_every = Some(u64::MAX);
    assert_eq!(step(&mut rig, 0, false), (false, vec![]));
    // The order reached only the peer. It reaches this member late and requests nothing new.
    let (said, put) = step(&mut rig, 1, true);
    assert!(!said);
    assert_eq!(put, [(Unit(0), Step(2))], "each holder writes its share");
    rig.order(Order::Save { after: Step(1) });
    assert_eq!(step(&mut rig, 2, false), (false, vec![]));
    // The order reached only this member.
    rig.order(Order::Save { after: Step(3) });
    let (said, put) = step(&mut rig, 3, false);
    assert!(said && put == [(Unit(0), Step(4))], "{put:?}");
    rig.order(Order::Save { after: Step(3) });
    assert_eq!(step(&mut rig, 4, false), (false, vec![]));
}

#[test]
fn busy_store_of_one_member_skips_the_checkpoint_for_all() {
    let mut rig = Rig::running();
    rig.member.config.checkpoint_every = Some(1);
    rig.prepare(0);
    let busy = Norms {
        step: Step(0),
        units: vec![],
        armed: Generation(0),
        save: true,
        store_busy: true,
    };
    let decision = apply(&rig.put(MemberInput::Peer {
        generation: Generation(1),
        from: PEER,
        message: PeerMessage::Norm(busy),
    }));
    let effects = rig.put(MemberInput::Applied {
        id: decision.unwrap().id,
    });
    let puts = |effects: &[MemberEffect]| effects.iter().any(|e| matches!(e, MemberEffect::SaveUnit { .. }));
    assert!(!puts(&effects));
    let (_, put) = step(&mut rig, 1, false);
    assert_eq!(put, [(Unit(0), Step(2))]);
    rig.put(MemberInput::Prepared {
        generation: Generation(1),
        step: Step(2),
        units: Rig::units(),
        store_busy: true,
    });
    let told = |e: &MemberEffect| matches!(e, MemberEffect::Send { message: PeerMessage::Decided(c), .. } if c.store_busy);
    assert!(rig.peer_norm(2, 0).iter().any(told));
}
