//! A member in the middle of the tree in which norms are gathered.

use super::*;
use crate::message::Conclusion;

const ROOT: WorkerId = WorkerId(0);
const SIBLING: WorkerId = PEER;
const CHILD: WorkerId = WorkerId(3);

/// A member that runs step 0 of generation 1 with four members. It has a parent and a child in the tree.
fn in_the_middle() -> Rig {
    let mut rig = Rig::new();
    let mut plan = Arc::unwrap_or_clone(plan(
        1,
        fixed(StateId::INITIAL, None),
        &[ROOT, ME, SIBLING, CHILD],
        &[],
    ));
    plan.addresses.insert(ROOT, "root:1".into());
    assert_eq!(
        (plan.tree_parent(ME), plan.tree_children(ME)),
        (Some(ROOT), &[CHILD][..])
    );
    rig.ready_in(Arc::new(plan));
    rig.go(1);
    rig
}

fn norms_of(units: Vec<(Unit, UnitNorm)>, armed: u64) -> Norms {
    Norms {
        step: Step(0),
        units,
        armed: Generation(armed),
        save: false,
        store_busy: false,
    }
}

fn passed_on(effects: &[MemberEffect]) -> Option<(WorkerId, Norms)> {
    effects.iter().find_map(|e| match e {
        MemberEffect::Send {
            to,
            message: PeerMessage::Norm(norms),
            ..
        } => Some((*to, norms.clone())),
        _ => None,
    })
}

fn conclusion() -> Conclusion {
    let parts: Vec<UnitNorm> = Rig::units().into_iter().map(|(_, n)| n).collect();
    Conclusion {
        decision: Decision::conclude(StateId::INITIAL, Generation(1), &parts, None),
        save: false,
        store_busy: false,
    }
}

fn put_in(rig: &Rig) -> bool {
    rig.member.holdings.ran.unwrap().norm_put_in
}

#[test]
fn norms_go_up_once_all_of_the_subtree_has_run_the_step() {
    let part = |unit: u32| vec![(Unit(unit), norm(f64::from(unit)))];
    for child_first in [true, false] {
        let mut rig = in_the_middle();
        let child = |rig: &mut Rig| rig.hear(1, CHILD, PeerMessage::Norm(norms_of(part(1), 0)));
        let early = |rig: &mut Rig| if child_first { child(rig) } else { rig.prepare(0) };
        assert_eq!(passed_on(&early(&mut rig)), None);
        assert!(
            !put_in(&rig),
            "what it says would prove that others may have committed"
        );
        let effects = if child_first {
            rig.prepare(0)
        } else {
            child(&mut rig)
        };
        let (to, norms) = passed_on(&effects).unwrap();
        // The root is the first holder of all units. The child sends more norms than it could have, so that the test sees that they are
        // passed on.
        assert_eq!((to, norms), (ROOT, norms_of(part(1), 0)));
        assert!(put_in(&rig));
        assert_eq!(apply(&effects), None, "only the root decides");
    }
}

#[test]
fn unarmed_subtree_stops_a_change() {
    for (mine, childs, said) in [(2, 2, 2), (2, 0, 0), (0, 2, 0), (2, 3, 0)] {
        let mut rig = in_the_middle();
        if mine > 0 {
            let base = Base::AtSwitch { from: Generation(1) };
            rig.order(Order::Prepare(plan(
                mine,
                base,
                &[ROOT, ME, SIBLING, CHILD],
                &[ROOT, ME],
            )));
            let generation = Generation(mine);
            rig.order(Order::Arm { generation });
        }
        rig.prepare(0);
        let effects = rig.hear(1, CHILD, PeerMessage::Norm(norms_of(vec![], childs)));
        assert_eq!(passed_on(&effects).unwrap().1.armed, Generation(said));
    }
}

#[test]
fn a_decision_of_the_parent_goes_down_and_is_applied_once() {
    let mut rig = in_the_middle();
    let decided = PeerMessage::Decided(conclusion());
    assert_eq!(
        rig.hear(1, ROOT, decided.clone()),
        vec![],
        "it did not run the step"
    );
    rig.prepare(0);
    assert_eq!(rig.hear(1, ROOT, decided.clone()), vec![], "its subtree did not");
    rig.hear(1, CHILD, PeerMessage::Norm(norms_of(vec![], 0)));
    assert_eq!(rig.hear(1, SIBLING, decided.clone()), vec![], "not its parent");
    let later = StateId {
        step: Step(7),
        ..StateId::INITIAL
    };
    let other = Conclusion {
        decision: Decision::conclude(later, Generation(1), &[], None),
        ..conclusion()
    };
    assert_eq!(
        rig.hear(1, ROOT, PeerMessage::Decided(other)),
        vec![],
        "of another step"
    );
    let effects = rig.hear(1, ROOT, decided.clone());
    let to_child = MemberEffect::Send {
        generation: Generation(1),
        to: CHILD,
        message: decided.clone(),
    };
    assert_eq!(effects.first(), Some(&to_child));
    assert_eq!(apply(&effects), Some(conclusion().decision));
    assert_eq!(rig.hear(1, ROOT, decided), vec![]);
}

#[test]
fn decision_after_a_fence_is_not_applied() {
    let mut rig = in_the_middle();
    rig.prepare(0);
    rig.hear(1, CHILD, PeerMessage::Norm(norms_of(vec![], 0)));
    let effects = rig.order(FENCE);
    assert!(inventory(&effects).unwrap().ran.unwrap().norm_put_in);
    assert_eq!(rig.hear(1, ROOT, PeerMessage::Decided(conclusion())), vec![]);
}
