//! Spare copies, on both sides: what a holder sends before a step is decided, and what a keeper waits for, holds and finishes.

use super::*;
use crate::member::followed::Arrived;
use crate::member::kept::Kept;
use crate::message::PeerMessage::Follow;
use crate::message::{Following, Keeping, Prepared};

const MINE: Unit = Unit(1);
const KEPT: Unit = Unit(0);

/// A plan with one pipeline: the peer holds unit 0 and keeps unit 1; this worker holds unit 1 and keeps unit 0.
fn kept_plan(generation: u64, base: Base) -> Arc<Plan> {
    let mut plan = Arc::unwrap_or_clone(plan(generation, base, &[ME], &[ME, PEER]));
    plan.shape.pipelines[0].stages = two_stages();
    plan.keepers = vec![Some(ME), Some(PEER)];
    Arc::new(plan)
}

fn prepared(generation: u64, step: u64) -> Prepared {
    Prepared {
        run_gen: Generation(generation),
        step: Step(step),
        norm: norm(1.0),
    }
}

fn follows(effects: &[MemberEffect]) -> Vec<Option<StateId>> {
    let ask = |e: &MemberEffect| match e {
        MemberEffect::Send {
            to: PEER,
            message: Follow { unit: KEPT, held },
            ..
        } => Some(*held),
        _ => None,
    };
    effects.iter().filter_map(ask).collect()
}

fn brought_up(effects: &[MemberEffect]) -> Option<StateId> {
    effects.iter().find_map(|e| match e {
        MemberEffect::ApplyForwarded { unit: KEPT, decision } => Some(decision.id),
        _ => None,
    })
}

fn is_kept(effects: &[MemberEffect]) -> bool {
    let kept = |e: &MemberEffect| matches!(e, MemberEffect::KeepGradient { unit: KEPT, .. });
    effects.iter().any(kept)
}

impl Rig {
    /// A member that runs step 0 of generation 1, and the effects of Go.
    fn keeping() -> (Rig, Vec<MemberEffect>) {
        let mut rig = Rig::new();
        rig.order(Order::Prepare(kept_plan(1, fixed(StateId::INITIAL, None))));
        rig.connect(1, PEER);
        rig.loaded(MINE.0, StateId::INITIAL);
        let effects = rig.go(1);
        (rig, effects)
    }

    fn ran(&mut self, step: u64) -> Vec<MemberEffect> {
        self.put(MemberInput::Prepared {
            generation: Generation(1),
            step: Step(step),
            units: vec![(MINE, norm(2.0))],
            store_busy: false,
        })
    }

    fn peer_ran(&mut self, step: u64) -> Vec<MemberEffect> {
        let norms = Norms {
            save: false,
            store_busy: false,
            step: Step(step),
            units: vec![(KEPT, norm(1.0))],
            armed: Generation(0),
        };
        self.hear(1, PEER, PeerMessage::Norm(norms))
    }

    fn spare_gradient(&mut self, generation: u64, step: u64) -> Vec<MemberEffect> {
        self.put(MemberInput::PreparedGradient {
            generation: Generation(generation),
            from: PEER,
            unit: KEPT,
            prepared: prepared(1, step),
        })
    }

    fn commit(&mut self, concluded: &[MemberEffect]) -> (Decision, Vec<MemberEffect>) {
        let decision = apply(concluded).unwrap();
        (decision, self.put(MemberInput::Applied { id: decision.id }))
    }

    /// A member whose copy has followed step 1, while step 2 runs; and the state with which step 2 begins.
    fn in_step() -> (Rig, StateId) {
        let (mut rig, _) = Rig::keeping();
        rig.ran(0);
        let concluded = rig.peer_ran(0);
        let (one, _) = rig.commit(&concluded);
        let effects = rig.fetched(1, KEPT.0, one.id, Some(one));
        assert!(effects.contains(&MemberEffect::Adopt {
            unit: KEPT,
            id: one.id
        }));
        rig.loaded(KEPT.0, one.id);
        assert_eq!(rig.member.spare_units_in_step(), [], "it has followed no step");
        assert_eq!(rig.member.status().keeping, Keeping::Able);
        assert!(is_kept(&rig.spare_gradient(1, 1)));
        rig.ran(1);
        let concluded = rig.peer_ran(1);
        let (two, committed) = rig.commit(&concluded);
        assert_eq!(brought_up(&committed), Some(two.id));
        rig.loaded(KEPT.0, two.id);
        assert_eq!(rig.member.spare_units_in_step(), [KEPT]);
        assert_eq!(rig.member.status().keeping, Keeping::InStep);
        (rig, two.id)
    }
}

#[test]
fn kept_copy_and_its_waiting_gradients_are_extra() {
    let (rig, _) = Rig::keeping();
    assert!(rig.member.extra_units().is_empty(), "no copy has arrived");
    let (mut rig, _) = Rig::in_step();
    assert_eq!(rig.member.extra_units(), BTreeMap::from([(KEPT, 0)]));
    assert!(is_kept(&rig.spare_gradient(1, 2)));
    assert_eq!(rig.member.extra_units(), BTreeMap::from([(KEPT, 1)]));
}

#[test]
fn a_keeper_asks_for_a_copy_once_the_plan_runs() {
    let (mut rig, begun) = Rig::keeping();
    assert_eq!(follows(&begun), [None]);
    rig.now = rig.now.after(Duration::from_secs(1));
    assert_eq!(follows(&rig.put(MemberInput::Tick)), [None], "asked again");
}

#[test]
fn commit_waits_for_the_keeper() {
    let (mut rig, two) = Rig::in_step();
    rig.ran(2);
    assert_eq!(apply(&rig.peer_ran(2)), None, "the keeper could not finish it");
    let concluded = rig.spare_gradient(1, 2);
    let (three, committed) = rig.commit(&concluded);
    assert_eq!(three.parent, two);
    assert_eq!(brought_up(&committed), Some(three.id));
}

/// The values of `keeping` in the reports to the coordinator among these effects.
fn told(effects: &[MemberEffect]) -> Vec<Keeping> {
    let keeping = |e: &MemberEffect| match e {
        MemberEffect::Report(Report::Status(status)) => Some(status.keeping),
        _ => None,
    };
    effects.iter().filter_map(keeping).collect()
}

#[test]
fn keeping_is_reported_on_change() {
    let (mut rig, _) = Rig::in_step();
    rig.ran(2);
    rig.spare_gradient(1, 2);
    let (_, committed) = {
        let concluded = rig.peer_ran(2);
        rig.commit(&concluded)
    };
    assert_eq!(told(&committed), [], "nothing has changed but the step");
    rig.loaded(KEPT.0, rig.member.status().at);
    rig.ran(3);
    rig.peer_ran(3);
    rig.now = rig.now.after(MemberTiming::default().spare_wait * 2);
    let late = rig.put(MemberInput::Tick);
    let (_, committed) = rig.commit(&late);
    let all: Vec<Keeping> = told(&late).into_iter().chain(told(&committed)).collect();
    assert_eq!(all.last(), Some(&Keeping::Able), "{late:?} {committed:?}");
}

#[test]
fn copies_are_in_step_once_all_are() {
    let mut plan = Arc::unwrap_or_clone(kept_plan(1, fixed(StateId::INITIAL, None)));
    plan.layout.segments = 3;
    let stages = &mut plan.shape.pipelines[0].stages;
    (stages[0].segments.end, stages[1].segments) = (2, SegmentRange { start: 2, end: 3 });
    plan.keepers = vec![Some(ME), Some(ME), Some(PEER)];
    let (clock, other) = ((Time(1), Duration::from_millis(1)), Unit(1));
    let run = |step| StateId {
        run_gen: Generation(1),
        step: Step(step),
        ..StateId::INITIAL
    };
    let mut kept = Kept::under(&plan, ME, |_| Some(run(1)));
    assert_eq!(kept.len(), 2);
    for unit in [KEPT, other] {
        assert!(!kept.all_in_step(run(2)));
        let arrived = kept.gradient(clock, (unit, PEER), Step(1), 0);
        assert!(matches!(arrived, Arrived::Taken));
        kept.leads_to(unit, run(2));
    }
    assert!(kept.all_in_step(run(2)) && !kept.all_in_step(run(3)));
    kept.lose(clock.0, clock.1, other);
    assert!(!kept.all_in_step(run(2)));
    assert!(!Kept::default().all_in_step(run(2)), "it keeps nothing");
}

fn state(step: u64) -> StateId {
    StateId {
        run_gen: Generation(1),
        step: Step(step),
        ..StateId::INITIAL
    }
}

#[test]
fn copies_come_ever_less_often_over_too_slow_a_link() {
    let plan = kept_plan(1, fixed(StateId::INITIAL, None));
    let mut kept = Kept::under(&plan, ME, |_| None);
    let (from, retry) = ((KEPT, PEER), MemberTiming::default().fetch_retry);
    let seconds = Duration::from_secs;
    let (mut now, mut asked) = (Time(0), 0);
    // A step takes a second.
    let run = |now: Time| state(now.since(Time(0)).as_secs());
    while now < Time(0).after(seconds(3_600)) {
        if kept.asks(now, retry, run(now)).is_empty() {
            now = now.after(Duration::from_millis(100));
            continue;
        }
        asked += 1;
        // A copy takes six seconds. Four gradients follow, each of which takes two; then its holder stops.
        let copied = run(now);
        now = now.after(seconds(6));
        assert!(kept.copied((now, retry), from, copied, 0));
        kept.done(KEPT);
        for step in copied.step.0..copied.step.0 + 4 {
            now = now.after(seconds(2));
            let arrived = kept.gradient((now, retry), from, Step(step), 0);
            assert!(matches!(arrived, Arrived::Taken));
            kept.leads_to(KEPT, state(step + 1));
            kept.done(KEPT);
        }
    }
    assert!((2..12).contains(&asked), "{asked} copies in an hour");

    // Once one is up to date, the next one that is needed is asked for as soon as ever.
    let at = kept.states()[0].1;
    assert!(kept.asks(now, retry, at).is_empty() && kept.all_in_step(at));
    kept.lose(now, retry, KEPT);
    let soon = now.after(retry * 2);
    assert_eq!(kept.asks(soon, retry, at), [(PEER, KEPT, None)]);
}

#[test]
fn late_gradient_costs_the_copy_and_not_the_step() {
    let (mut rig, _) = Rig::in_step();
    rig.ran(2);
    rig.peer_ran(2);
    let wait = MemberTiming::default().spare_wait;
    rig.now = rig.now.after(wait + Duration::from_millis(1));
    let late = rig.put(MemberInput::Tick);
    rig.commit(&late);
    assert_eq!(rig.member.spare_units_in_step(), []);
    rig.now = rig.now.after(MemberTiming::default().fetch_retry * 2);
    assert_eq!(follows(&rig.put(MemberInput::Tick)), [None]);
    let at = rig.member.status().at;
    assert!(
        !is_kept(&rig.spare_gradient(1, 2)),
        "something is missing before it"
    );
    rig.fetched(1, KEPT.0, at, None);
    rig.loaded(KEPT.0, at);
    assert!(is_kept(&rig.spare_gradient(1, 3)), "it follows again");
}

#[test]
fn lost_copy_is_requested_again() {
    let (mut rig, _) = Rig::in_step();
    rig.ran(2);
    rig.peer_ran(2);
    rig.now = rig
        .now
        .after(MemberTiming::default().spare_wait + Duration::from_millis(1));
    let late = rig.put(MemberInput::Tick);
    rig.commit(&late);
    let given_up = rig.member.current.as_ref().unwrap().kept.given_up();
    let mut asked = vec![];
    // First a late gradient, and then one after the other: the holder does not know that the copy was given up.
    for step in 2..20 {
        rig.spare_gradient(1, step);
        rig.now = rig.now.after(Duration::from_millis(300));
        asked.extend(follows(&rig.put(MemberInput::Tick)));
    }
    assert_eq!(asked.first(), Some(&None), "a copy is asked for");
    let after = rig.member.current.as_ref().unwrap().kept.given_up();
    assert_eq!(after, given_up, "it was lost once");
}

#[test]
fn long_step_costs_no_copy() {
    let (mut rig, two) = Rig::in_step();
    // Longer than `spare_wait`, but within the deadline.
    for _ in 0..4 {
        rig.now = rig.now.after(Duration::from_millis(200));
        assert_eq!(follows(&rig.put(MemberInput::Tick)), []);
        assert_eq!(rig.member.spare_units_in_step(), [KEPT]);
    }
    rig.ran(2);
    // The holder's stage ends its step later, by a part of the time of a step.
    rig.now = rig.now.after(Duration::from_millis(700));
    rig.put(MemberInput::Tick);
    assert_eq!(rig.member.spare_units_in_step(), [KEPT]);
    rig.spare_gradient(1, 2);
    let concluded = rig.peer_ran(2);
    let (three, committed) = rig.commit(&concluded);
    assert_eq!(three.parent, two);
    assert_eq!(brought_up(&committed), Some(three.id));
}

#[test]
fn keeper_finishes_the_step_after_an_early_fence() {
    let (mut rig, two) = Rig::in_step();
    rig.ran(2);
    rig.spare_gradient(1, 2);
    let upto = Generation(1);
    let effects = rig.order(Order::Fence { upto });
    let found = inventory(&effects).unwrap();
    assert_eq!(found.units[&KEPT], two);
    assert_eq!(found.prepared[&KEPT], prepared(1, 2));
    let again = rig.order(Order::Fence { upto });
    assert_eq!(
        inventory(&again).unwrap().prepared[&KEPT],
        prepared(1, 2),
        "as often as it is asked"
    );
    let parts = [norm(1.0), norm(2.0)];
    let three = Decision::conclude(two, Generation(1), &parts, None);
    let base = fixed(three.id, Some(three));
    let effects = rig.order(Order::Prepare(plan(2, base, &[ME], &[ME])));
    assert_eq!(brought_up(&effects), Some(three.id));
    rig.loaded(KEPT.0, three.id);
    rig.put(MemberInput::Applied { id: three.id });
    assert_eq!(rig.member.held()[&KEPT], three.id);
    assert_eq!(
        rig.member.status().phase,
        Phase::Ready,
        "it has become the only holder"
    );
}

#[test]
fn waiting_keeper_answers_a_fence_at_once() {
    let (mut rig, two) = Rig::in_step();
    rig.ran(2);
    let effects = rig.order(Order::Fence { upto: Generation(1) });
    let found = inventory(&effects).unwrap();
    assert_eq!(found.units[&KEPT], two);
    assert!(!found.prepared.contains_key(&KEPT) && !found.ran.unwrap().norm_put_in);
}

#[test]
fn fence_waits_for_running_copy_updates() {
    let (mut rig, _) = Rig::in_step();
    rig.ran(2);
    rig.peer_ran(2);
    let concluded = rig.spare_gradient(1, 2);
    let decision = apply(&concluded).unwrap();
    rig.order(Order::Fence { upto: Generation(1) });
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(brought_up(&effects), None);
    let found = inventory(&effects).unwrap();
    assert_eq!(
        (found.units[&MINE], found.units[&KEPT]),
        (decision.id, decision.parent)
    );
    assert_eq!(
        found.prepared[&KEPT],
        prepared(1, 2),
        "a step behind, and it can be finished"
    );
}

#[test]
fn gradients_of_other_steps_and_generations_are_not_kept() {
    let (mut rig, _) = Rig::in_step();
    assert!(
        !is_kept(&rig.spare_gradient(2, 2)),
        "of another plan's connection"
    );
    assert!(!is_kept(&rig.spare_gradient(1, 1)), "it was applied");
    assert!(is_kept(&rig.spare_gradient(1, 2)));
    assert!(!is_kept(&rig.spare_gradient(1, 2)), "once");
    assert!(!is_kept(&rig.spare_gradient(1, 4)), "step 3 is missing");
    assert_eq!(rig.member.spare_units_in_step(), [], "it needs a copy");
}

#[test]
fn damage_costs_the_copy_and_not_the_plan() {
    let (mut rig, _) = Rig::in_step();
    rig.ran(2);
    rig.peer_ran(2);
    let effects = rig.put(MemberInput::FetchFailed {
        generation: Generation(1),
        from: PEER,
        unit: KEPT,
    });
    assert!(apply(&effects).is_some(), "nothing is waited for");
    let suspects = |e: &MemberEffect| matches!(e, MemberEffect::Report(Report::Suspect { .. }));
    assert!(!effects.iter().any(suspects));
}

#[test]
fn holder_sends_the_copy_and_then_each_gradient() {
    let (mut rig, _) = Rig::keeping();
    let (unit, held) = (MINE, None);
    rig.hear(1, PEER, Follow { unit, held });
    rig.ran(0);
    let concluded = rig.peer_ran(0);
    let (one, committed) = rig.commit(&concluded);
    let copy = |e: &MemberEffect| match e {
        MemberEffect::Copy { to, unit, id, .. } => Some((*to, *unit, *id)),
        _ => None,
    };
    let copies: Vec<_> = committed.iter().filter_map(copy).collect();
    assert_eq!(copies, [(PEER, MINE, one.id)]);
    rig.peer_ran(1);
    let effects = rig.ran(1);
    let sent = |e: &MemberEffect| match e {
        MemberEffect::ForwardPrepared {
            to, unit, prepared, ..
        } => Some((*to, *unit, *prepared)),
        _ => None,
    };
    let gradient = Prepared {
        norm: norm(2.0),
        ..prepared(1, 1)
    };
    let place = effects
        .iter()
        .position(|e| sent(e) == Some((PEER, MINE, gradient)));
    let applied = effects
        .iter()
        .position(|e| matches!(e, MemberEffect::Apply { .. }));
    assert!(
        place.unwrap() < applied.unwrap(),
        "the optimizer scales it in place"
    );
}

#[test]
fn who_has_the_base_already_needs_no_copy() {
    let (mut rig, two) = Rig::in_step();
    rig.order(Order::Fence { upto: Generation(1) });
    rig.put(MemberInput::Stopped { prepared: vec![] });
    rig.order(Order::Prepare(kept_plan(2, fixed(two, None))));
    rig.connect(2, PEER);
    let effects = rig.go(2);
    let keep = vec![MINE, KEPT];
    assert!(effects.contains(&MemberEffect::Free { keep }));
    assert_eq!(follows(&effects), [Some(two)]);
    let (unit, held) = (MINE, Some(two));
    rig.hear(2, PEER, Follow { unit, held });
    let effects = rig.put(MemberInput::Prepared {
        generation: Generation(2),
        step: Step(2),
        units: vec![(MINE, norm(2.0))],
        store_busy: false,
    });
    let sent = |e: &MemberEffect| matches!(e, MemberEffect::ForwardPrepared { to: PEER, .. });
    assert!(effects.iter().any(sent), "the holder begins with the first step");
}

#[test]
fn copy_updates_do_not_count_as_step_time() {
    let (mut rig, mut at) = Rig::in_step();
    let (most, rest) = (Duration::from_millis(3_800), Duration::from_millis(200));
    let mut deadline = Duration::ZERO;
    for step in 2..9 {
        if step > 2 {
            // On a busy machine, the gradient that is applied at the commit is finished late in the next step.
            rig.now = rig.now.after(most);
            rig.loaded(KEPT.0, at);
        }
        rig.now = rig.now.after(rest);
        rig.ran(step);
        rig.spare_gradient(1, step);
        let concluded = rig.peer_ran(step);
        let (decision, committed) = rig.commit(&concluded);
        at = decision.id;
        let run = committed.iter().find_map(|e| match e {
            MemberEffect::Run { deadline, .. } => Some(*deadline),
            _ => None,
        });
        deadline = run.expect("the next step runs");
    }
    assert!(
        deadline >= (most + rest) * 4,
        "{deadline:?} for steps of four seconds"
    );
}

#[test]
fn gained_unit_that_is_kept_in_step_has_caught_up() {
    let (mut rig, _) = Rig::in_step();
    let base = Base::AtSwitch { from: Generation(1) };
    let mut next = Arc::unwrap_or_clone(plan(2, base, &[ME, PEER], &[]));
    next.sources = vec![vec![PEER], vec![ME]];
    next.following = true;
    rig.order(Order::Prepare(Arc::new(next)));
    rig.connect(2, PEER);
    assert_eq!(rig.member.status().following, Following::CaughtUp);
    rig.ran(2);
    rig.peer_ran(2);
    rig.now = rig
        .now
        .after(MemberTiming::default().spare_wait + Duration::from_millis(1));
    let late = rig.put(MemberInput::Tick);
    rig.commit(&late);
    assert_eq!(rig.member.spare_units_in_step(), [], "it is lost");
    assert_eq!(rig.member.status().following, Following::Able);
}
