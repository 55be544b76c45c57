//! Schedules that an external review found: too many copies of state, and state that became the base of the wrong plan.

use super::*;

fn serves(effects: &[MemberEffect]) -> usize {
    let serve = |e: &&MemberEffect| matches!(e, MemberEffect::Serve { .. });
    effects.iter().filter(serve).count()
}

/// A plan in which each member holds the whole model, and the sources can send all of it.
fn wide_plan(generation: u64, base: Base, layout: Layout, members: &[WorkerId]) -> Arc<Plan> {
    let mut plan = Plan::clone(&plan(generation, base, members, &[ME]));
    plan.layout = layout;
    for pipeline in &mut plan.shape.pipelines {
        pipeline.stages[0].segments = layout.whole();
    }
    plan.sources = vec![vec![ME]; layout.segments as usize];
    Arc::new(plan)
}

/// The effects of the only holder of 26 units when it switches to a plan with fifteen more workers, which have requested all units; and its
/// effects when one of them requests again while the first copies are being sent.
fn growth() -> (Rig, Vec<MemberEffect>, Vec<MemberEffect>) {
    let layout = Layout::new(26, false);
    let everyone: Vec<WorkerId> = (1..=16).map(WorkerId).collect();
    let mut rig = Rig::new();
    rig.member = Member::new(MemberConfig {
        layout,
        ..Rig::config()
    });
    let present = wide_plan(1, fixed(StateId::INITIAL, None), layout, &[ME]);
    rig.order(Order::Prepare(present));
    for unit in layout.all_units() {
        let id = StateId::INITIAL;
        rig.put(MemberInput::Loaded { unit, id });
    }
    let go = |g| Order::Go {
        generation: Generation(g),
    };
    rig.order(go(1));
    let from = Generation(1);
    rig.order(Order::Prepare(wide_plan(
        2,
        Base::AtSwitch { from },
        layout,
        &everyone,
    )));
    let generation = Generation(2);
    let fetch = |from, unit| MemberInput::Peer {
        generation,
        from,
        message: PeerMessage::Fetch { unit },
    };
    for peer in &everyone[1..] {
        rig.put(MemberInput::Connected {
            generation,
            peer: *peer,
        });
        for unit in layout.all_units() {
            rig.put(fetch(*peer, unit));
        }
    }
    rig.order(Order::Arm { generation });
    let units = layout.all_units().map(|u| (u, norm(1.0))).collect();
    let effects = rig.put(MemberInput::Prepared {
        generation: Generation(1),
        step: Step(0),
        units,
        store_busy: false,
    });
    let id = apply(&effects).unwrap().id;
    let at_switch = rig.put(MemberInput::Applied { id });
    assert_eq!(rig.member.generation(), generation);
    let again = rig.put(fetch(everyone[1], Unit(0)));
    (rig, at_switch, again)
}

#[test]
fn not_all_units_are_sent_to_everybody_at_once() {
    let (mut rig, at_switch, _) = growth();
    assert_eq!(
        serves(&at_switch),
        15,
        "one unit is on its way to each of fifteen peers"
    );
    let (to, generation) = (WorkerId(3), Generation(2));
    let sent = |unit| MemberInput::Served {
        generation,
        to,
        unit: Unit(unit),
    };
    let next = rig.put(sent(0));
    let follows =
        |e: &MemberEffect| matches!(e, MemberEffect::Serve { to: t, unit: Unit(1), .. } if *t == to);
    assert!(next.len() == 1 && follows(&next[0]), "{next:?}");
    assert_eq!(rig.put(sent(0)), [], "told twice");
}

#[test]
fn a_unit_that_is_on_its_way_is_not_sent_once_more() {
    let (mut rig, _, again) = growth();
    assert_eq!(serves(&again), 0);
    let next = rig.put(MemberInput::Served {
        generation: Generation(2),
        to: WorkerId(2),
        unit: Unit(0),
    });
    assert!(
        matches!(next[..], [MemberEffect::Serve { unit: Unit(1), .. }]),
        "{next:?}"
    );
}

#[test]
fn shard_of_an_earlier_plan_is_not_the_base() {
    let mut rig = Rig::new();
    let old = StateId {
        run_gen: Generation(1),
        step: Step(5),
        chain: varuna_plan::state::Chain(77),
    };
    let mut restore = Plan::clone(&plan(2, fixed(old, None), &[ME, PEER], &[]));
    if let Base::Fixed { checkpoint, .. } = &mut restore.base {
        *checkpoint = true;
    }
    let effects = rig.order(Order::Prepare(Arc::new(restore)));
    let asked_by = |e: &MemberEffect| match e {
        MemberEffect::Load { generation, .. } => Some(*generation),
        _ => None,
    };
    assert_eq!(effects.iter().find_map(asked_by), Some(Generation(2)));
    rig.order(Order::Fence { upto: Generation(2) });
    let from = Generation(3);
    rig.order(Order::Prepare(plan(
        4,
        Base::AtSwitch { from },
        &[ME, PEER],
        &[PEER],
    )));
    let generation = Generation(4);
    rig.put(MemberInput::Connected {
        generation,
        peer: PEER,
    });
    assert!(!rig.member.status().based);
    // The slow read ends now, under any number.
    rig.put(MemberInput::Fetched {
        generation,
        from: ME,
        unit: Unit(0),
        id: old,
        decision: None,
    });
    assert!(!rig.member.status().based);
}

#[test]
fn unreachable_peer_of_a_change_is_reported_once() {
    let mut rig = Rig::running();
    let (generation, from) = (Generation(2), Generation(1));
    let third = WorkerId(3);
    rig.order(Order::Prepare(plan(
        2,
        Base::AtSwitch { from },
        &[ME, PEER, third],
        &[ME],
    )));
    rig.put(MemberInput::Connected {
        generation,
        peer: PEER,
    });
    let suspect = MemberEffect::Report(Report::Suspect {
        generation,
        about: third,
        why: Suspicion::Unreachable,
    });
    let named = |rig: &mut Rig, after: Duration| {
        rig.now = rig.now.after(after);
        rig.put(MemberInput::Tick).contains(&suspect)
    };
    let deadline = rig.member.config.timing.connect_deadline;
    assert!(!named(&mut rig, deadline / 2));
    assert!(named(&mut rig, deadline));
    assert!(!named(&mut rig, deadline));
}
