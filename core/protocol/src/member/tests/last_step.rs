//! A run that gets more steps than its job's text says.

use super::*;

fn to(step: u64) -> Order {
    Order::LastStep { step: Step(step) }
}

fn runs(effects: &[MemberEffect]) -> bool {
    effects.iter().any(|e| matches!(e, MemberEffect::Run { .. }))
}

fn last_step(effects: &[MemberEffect]) -> Option<Step> {
    effects.iter().find_map(|e| match e {
        MemberEffect::Report(Report::Status(status)) => Some(status.last_step),
        _ => None,
    })
}

#[test]
fn member_at_the_last_step_continues_if_more_are_ordered() {
    let mut rig = Rig::running();
    rig.member.engine = Engine::Idle;
    rig.member.at.step = Step(10);
    let long = Duration::from_secs(3_600);
    rig.now = rig.now.after(long);
    rig.put(MemberInput::Tick);
    let effects = rig.order(to(12));
    assert!(runs(&effects), "{effects:?}");
    assert_eq!(last_step(&effects), Some(Step(12)));
    let suspects = |e: &MemberEffect| matches!(e, MemberEffect::Report(Report::Suspect { .. }));
    assert!(
        !rig.put(MemberInput::Tick).iter().any(suspects),
        "nobody was late"
    );
}

#[test]
fn a_member_that_trains_goes_on_and_says_that_it_knows() {
    let mut rig = Rig::running();
    let effects = rig.order(to(12));
    assert!(!runs(&effects), "a step is under way");
    assert_eq!(last_step(&effects), Some(Step(12)));
    assert_eq!(rig.order(to(12)), vec![], "said once");
}

#[test]
fn a_late_order_of_fewer_steps_is_ignored() {
    let mut rig = Rig::running();
    rig.order(to(12));
    assert_eq!(rig.order(to(11)), vec![]);
    assert_eq!(rig.member.status().last_step, Step(12));
}
