//! What a member should do and does not do yet. Each is a schedule that a review found.

use super::*;
use crate::known_defect;

fn serves(effects: &[MemberEffect]) -> usize {
    let serve = |e: &&MemberEffect| matches!(e, MemberEffect::Serve { .. });
    effects.iter().filter(serve).count()
}

/// Each of the members holds the whole model; the sources can give all of it.
fn wide_plan(generation: u64, base: Base, layout: Layout, members: &[WorkerId]) -> Arc<Plan> {
    let mut plan = Plan::clone(&plan(generation, base, members, &[ME]));
    plan.layout = layout;
    for pipeline in &mut plan.shape.pipelines {
        pipeline.stages[0].segments = layout.whole();
    }
    plan.sources = vec![vec![ME]; layout.segments as usize];
    Arc::new(plan)
}

/// What the only holder of 26 units does at the switch to a plan with fifteen more workers, which have asked for all of them,
/// and when one of them asks again while the first copies are on their way.
fn growth() -> (Vec<MemberEffect>, Vec<MemberEffect>) {
    let layout = Layout {
        segments: 26,
        tied: false,
    };
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
    });
    let id = apply(&effects).unwrap().id;
    let at_switch = rig.put(MemberInput::Applied { id });
    assert_eq!(rig.member.generation(), generation);
    (at_switch, rig.put(fetch(everyone[1], Unit(0))))
}

#[test]
fn not_all_units_are_sent_to_everybody_at_once() {
    let (at_switch, _) = growth();
    assert!(serves(&at_switch) > 0);
    known_defect(serves(&at_switch) <= 64);
}

#[test]
fn a_unit_that_is_on_its_way_is_not_sent_once_more() {
    let (_, again) = growth();
    known_defect(serves(&again) == 0);
}

#[test]
fn a_shard_that_an_earlier_plan_asked_for_does_not_become_the_base_of_a_switch() {
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
    let asked = |e: &MemberEffect| matches!(e, MemberEffect::Load { .. });
    assert!(effects.iter().any(asked));
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
    // The slow read ends now; the agent gives it the number of the present plan.
    rig.put(MemberInput::Fetched {
        generation,
        from: ME,
        unit: Unit(0),
        id: old,
        decision: None,
    });
    known_defect(!rig.member.status().based);
}
