//! The peers to which a member connects.

use super::*;

const FAR: WorkerId = WorkerId(5);

/// Nine members with the whole state each. Each is linked to two of them in a ring, and to a few in the tree.
fn nine(generation: u64, base: Base, sources: &[WorkerId]) -> Arc<Plan> {
    let members: Vec<WorkerId> = (1..=9).map(WorkerId).collect();
    let mut plan = Arc::unwrap_or_clone(plan(generation, base, &members, sources));
    plan.addresses = members.iter().map(|w| (*w, format!("{w}:1"))).collect();
    assert!(!plan.links(ME).contains(&FAR), "{:?}", plan.links(ME));
    Arc::new(plan)
}

fn dialled(effects: &[MemberEffect]) -> Vec<WorkerId> {
    let dial = |e: &MemberEffect| match e {
        MemberEffect::Connect { peer, .. } => Some(*peer),
        _ => None,
    };
    effects.iter().filter_map(dial).collect()
}

fn asked(effects: &[MemberEffect]) -> Vec<WorkerId> {
    let ask = |e: &MemberEffect| match e {
        MemberEffect::Send {
            to,
            message: PeerMessage::Fetch { .. },
            ..
        } => Some(*to),
        _ => None,
    };
    effects.iter().filter_map(ask).collect()
}

#[test]
fn member_dials_its_links_and_is_ready_with_them() {
    let mut rig = Rig::new();
    let plan = nine(1, fixed(StateId::INITIAL, None), &[]);
    let effects = rig.order(Order::Prepare(plan.clone()));
    assert_eq!(dialled(&effects), plan.links(ME));
    rig.loaded(0, StateId::INITIAL);
    rig.loaded(1, StateId::INITIAL);
    let (last, others) = plan.links(ME).split_last().unwrap();
    for peer in others {
        rig.connect(1, *peer);
    }
    assert_eq!(rig.member.status().phase, Phase::Loading);
    rig.connect(1, *last);
    assert_eq!(rig.member.status().phase, Phase::Ready);
}

#[test]
fn a_source_dials_who_asks_it_and_then_serves() {
    let mut rig = Rig::new();
    rig.ready_in(nine(1, fixed(StateId::INITIAL, None), &[ME]));
    let ask = PeerMessage::Fetch { unit: Unit(0) };
    let effects = rig.hear(1, FAR, ask.clone());
    assert_eq!(dialled(&effects), [FAR]);
    assert_eq!(dialled(&rig.hear(1, FAR, ask)), [], "once");
    let serves = |e: &MemberEffect| matches!(e, MemberEffect::Serve { to: FAR, .. });
    assert!(rig.connect(1, FAR).iter().any(serves));
}

#[test]
fn silent_source_is_replaced_by_another_one() {
    let mut rig = Rig::new();
    let base = StateId {
        step: Step(3),
        ..StateId::INITIAL
    };
    let near = [PEER, WorkerId(3)];
    let plan = nine(2, fixed(base, None), &[near[0], near[1], FAR]);
    let mut effects = rig.order(Order::Prepare(plan.clone()));
    for peer in plan.links(ME) {
        effects.extend(rig.connect(2, *peer));
    }
    assert!(!asked(&effects).is_empty() && asked(&effects).iter().all(|w| near.contains(w)));
    for peer in near {
        let generation = Generation(2);
        rig.put(MemberInput::Closed { generation, peer });
    }
    let mut later = Vec::new();
    for _ in 0..4 {
        rig.now = rig.now.after(Duration::from_secs(1));
        later.extend(rig.put(MemberInput::Tick));
    }
    assert_eq!(dialled(&later), [FAR]);
    rig.now = rig.now.after(Duration::from_secs(1));
    let mut now = rig.connect(2, FAR);
    now.extend(rig.put(MemberInput::Tick));
    assert!(asked(&now).contains(&FAR));
}
