//! Workers that join a run, and workers that attach without training.

use super::*;

#[test]
fn joiner_is_planned_armed_and_promoted() {
    let mut rig = Rig::training(&[A]);
    rig.wait(100);
    rig.join(B);
    let next = rig.machine.record().next.clone().unwrap();
    assert_eq!(next.base, Base::AtSwitch { from: Generation(1) });
    assert_eq!(next.addresses.len(), 2);
    let left_out = rig.left_out(B).map(|left_out| left_out.reason);
    assert_eq!(left_out, Some(LeftOutReason::New), "the next plan uses it");
    let arm = (
        A,
        Order::Arm {
            generation: Generation(2),
        },
    );
    assert!(!rig.sent.contains(&arm));
    let connected = |next: u64, generation: u64, phase| Status {
        generation: Generation(generation),
        phase,
        next: Generation(next),
        next_connected: true,
        connected: true,
        ..idle()
    };
    rig.say(B, Report::Status(connected(0, 2, Phase::Loading)));
    rig.say(A, Report::Status(connected(2, 1, Phase::Running)));
    assert!(rig.sent.contains(&arm));
    for phase in [Phase::Loading, Phase::Ready] {
        rig.status(A, 2, phase, state(1, 1));
        rig.status(B, 2, phase, StateId::INITIAL);
    }
    assert!(rig.sent.contains(&(
        B,
        Order::Go {
            generation: Generation(2)
        }
    )));
    assert_eq!(rig.plan().generation, Generation(2));
    assert_eq!(rig.left_out(B), None);
    assert!(rig.events.contains(&Event::Switched {
        generation: Generation(2)
    }));
    assert!(!rig.events.iter().any(|e| matches!(e, Event::Fenced { .. })));
}

#[test]
fn joiner_that_dies_unarmed_costs_only_a_number() {
    let mut rig = Rig::training(&[A]);
    rig.wait(100);
    rig.join(B);
    rig.put(CoordinatorInput::StreamDown { from: B });
    rig.status(A, 1, Phase::Running, state(1, 1));
    rig.wait(70);
    assert_eq!(rig.machine.record().next, None);
    assert_eq!(rig.machine.record().highest, Generation(2));
    assert_eq!(rig.plan().generation, Generation(1));
    assert!(rig.events.iter().any(|e| matches!(
        e,
        Event::Cancelled {
            generation: Generation(2),
            ..
        }
    )));
}
