//! The first step of a plan that sends parameters first: it begins before Go, and counts only after it.

use super::*;
use varuna_plan::state::Chain;

const BASE: StateId = StateId {
    run_gen: Generation(1),
    step: Step(3),
    chain: Chain(7),
};
const LAST: WorkerId = WorkerId(3);

/// A plan of generation 2, in which both members hold everything, and those in `sources` have it.
fn both(sources: &[WorkerId]) -> Arc<Plan> {
    let mut plan = Arc::unwrap_or_clone(plan(2, fixed(BASE, None), &[ME, PEER], sources));
    plan.parameters_first = true;
    plan.deadline.floor_ns = 1_000_000;
    plan.shape.predicted.move_ms = 100.0;
    assert!(plan.can_send_parameters_first());
    Arc::new(plan)
}

fn runs(effects: &[MemberEffect]) -> Vec<Step> {
    let run = |e: &MemberEffect| match e {
        MemberEffect::Run { step, .. } => Some(*step),
        _ => None,
    };
    effects.iter().filter_map(run).collect()
}

fn asked(effects: &[MemberEffect]) -> Vec<(WorkerId, Unit)> {
    let ask = |e: &MemberEffect| match e {
        MemberEffect::Send {
            to,
            message: PeerMessage::Fetch { unit },
            ..
        } => Some((*to, *unit)),
        _ => None,
    };
    effects.iter().filter_map(ask).collect()
}

fn norms(effects: &[MemberEffect]) -> usize {
    let is_norm = |e: &&MemberEffect| {
        let message = match e {
            MemberEffect::Send { message, .. } => message,
            _ => return false,
        };
        matches!(message, PeerMessage::Norm(_))
    };
    effects.iter().filter(is_norm).count()
}

fn suspects(effects: &[MemberEffect]) -> Vec<(WorkerId, Suspicion)> {
    let suspect = |e: &MemberEffect| match e {
        MemberEffect::Report(Report::Suspect { about, why, .. }) => Some((*about, *why)),
        _ => None,
    };
    effects.iter().filter_map(suspect).collect()
}

impl Rig {
    /// A member that lacks both units, and has begun the first step with the peer's parameters.
    fn without_state() -> Rig {
        let mut rig = Rig::new();
        rig.order(Order::Prepare(both(&[PEER])));
        let effects = rig.connect(2, PEER);
        assert_eq!(asked(&effects), [(PEER, Unit(0)), (PEER, Unit(1))]);
        assert_eq!(runs(&effects), [BASE.step]);
        assert_eq!(rig.member.status().phase, Phase::Loading);
        rig
    }

    /// A member that holds both units at the base, as after a fence.
    fn holder() -> Rig {
        let mut rig = Rig::new();
        rig.loading_of(1);
        rig.order(Order::Fence { upto: Generation(1) });
        rig
    }

    /// Loads the base in a plan of this generation.
    fn loading_of(&mut self, generation: u64) {
        let held = plan(generation, fixed(BASE, None), &[ME, PEER], &[PEER]);
        self.order(Order::Prepare(held));
        self.connect(generation, PEER);
        for unit in 0..2 {
            self.fetched(generation, unit, BASE, None);
            self.loaded(unit, BASE);
        }
        assert_eq!(self.member.status().phase, Phase::Ready);
    }

    fn prepared(&mut self) -> Vec<MemberEffect> {
        self.put(MemberInput::Prepared {
            generation: Generation(2),
            step: BASE.step,
            units: Rig::units(),
            store_busy: false,
        })
    }

    fn arrives(&mut self, unit: u32) -> Vec<MemberEffect> {
        let effects = self.fetched(2, unit, BASE, None);
        let unit = Unit(unit);
        assert!(effects.contains(&MemberEffect::Adopt { unit, id: BASE }));
        self.loaded(unit.0, BASE)
    }

    fn norm_of_peer(&mut self) -> Vec<MemberEffect> {
        self.norms_of_peer(Vec::new())
    }

    fn norms_of_peer(&mut self, units: Vec<(Unit, UnitNorm)>) -> Vec<MemberEffect> {
        let norms = Norms {
            save: false,
            store_busy: false,
            step: BASE.step,
            units,
            armed: Generation(0),
        };
        self.hear(2, PEER, PeerMessage::Norm(norms))
    }
}

/// The units to which the step's decision is applied.
fn applied_units(effects: &[MemberEffect]) -> Option<Vec<Unit>> {
    effects.iter().find_map(|e| match e {
        MemberEffect::Apply { units, .. } => Some(units.clone()),
        _ => None,
    })
}

#[test]
fn step_begins_without_state_and_is_applied_after_go() {
    let mut rig = Rig::without_state();
    // State arrives while the step runs, and after it.
    rig.arrives(0);
    assert_eq!(norms(&rig.prepared()), 0);
    assert_eq!(applied_units(&rig.norm_of_peer()), None, "Go has not come");
    let effects = rig.arrives(1);
    assert_eq!(rig.member.status().phase, Phase::Ready);
    assert_eq!((runs(&effects), applied_units(&effects)), (vec![], None));
    let effects = rig.go(2);
    assert_eq!(runs(&effects), [], "the step was run");
    assert_eq!(applied_units(&effects), Some(vec![Unit(0), Unit(1)]));
    let decision = apply(&effects).unwrap();
    assert_eq!(decision.parent, BASE);
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    assert_eq!(runs(&effects), [BASE.step.next()]);
}

#[test]
fn go_may_come_while_the_step_runs() {
    let mut rig = Rig::without_state();
    (0..2).for_each(|unit| drop(rig.arrives(unit)));
    let effects = rig.go(2);
    assert_eq!(rig.member.status().phase, Phase::Running);
    assert_eq!(runs(&effects), [], "the step runs");
    rig.norm_of_peer();
    let effects = rig.prepared();
    assert_eq!(applied_units(&effects), Some(vec![Unit(0), Unit(1)]));
}

#[test]
fn sender_begins_once_it_sends_all_that_others_lack() {
    let mut rig = Rig::holder();
    rig.order(Order::Prepare(both(&[ME])));
    assert_eq!(runs(&rig.connect(2, PEER)), [], "nothing was asked for");
    assert_eq!(rig.member.status().phase, Phase::Ready);
    let serves = |effects: &[MemberEffect]| {
        let serve = |e: &&MemberEffect| matches!(e, MemberEffect::Serve { .. });
        effects.iter().filter(serve).count()
    };
    let effects = rig.asked_for(2, 0);
    assert_eq!((serves(&effects), runs(&effects)), (1, vec![]));
    let effects = rig.asked_for(2, 1);
    assert_eq!(serves(&effects), 1, "it is sent beside the other one");
    assert_eq!(runs(&effects), [BASE.step]);
    assert!(matches!(effects.last(), Some(MemberEffect::Run { .. })));
}

#[test]
fn parameters_are_sent_before_former_units_are_freed() {
    let mut rig = Rig::holder();
    rig.order(Order::Prepare(both(&[ME])));
    rig.connect(2, PEER);
    // Somebody else has sent the state, and the peer's request is late.
    let effects = rig.go(2);
    let place = |is: fn(&MemberEffect) -> bool| effects.iter().position(is);
    let run = place(|e| matches!(e, MemberEffect::Run { .. })).unwrap();
    let free = place(|e| matches!(e, MemberEffect::Free { .. })).unwrap();
    assert!(run < free, "{effects:?}");
    assert_eq!(runs(&effects).len(), 1);
}

#[test]
fn fence_finds_gradients_only_with_their_state() {
    let mut rig = Rig::without_state();
    rig.prepared();
    rig.arrives(1);
    let effects = rig.order(Order::Fence { upto: Generation(2) });
    let inventory = inventory(&effects).unwrap();
    let units: Vec<Unit> = inventory.units.keys().copied().collect();
    let prepared: Vec<Unit> = inventory.prepared.keys().copied().collect();
    assert_eq!((units, prepared), (vec![Unit(1)], vec![Unit(1)]));
    assert!(!inventory.ran.unwrap().norm_put_in);
}

#[test]
fn fence_stops_a_step_that_began_before_go() {
    let mut rig = Rig::without_state();
    let effects = rig.order(Order::Fence { upto: Generation(2) });
    assert!(effects.contains(&MemberEffect::Abort));
    assert_eq!(inventory(&effects), None);
    let effects = rig.put(MemberInput::Stopped { prepared: vec![] });
    assert!(inventory(&effects).is_some());
}

#[test]
fn first_source_is_asked_first_whoever_is_connected() {
    // While this worker finishes a step of unit 1, another source of unit 0 connects.
    let mut rig = Rig::running();
    rig.order(FENCE);
    rig.put(MemberInput::Stopped {
        prepared: vec![Rig::units()[1]],
    });
    let parts: Vec<UnitNorm> = Rig::units().into_iter().map(|(_, n)| n).collect();
    let decision = Decision::conclude(StateId::INITIAL, Generation(1), &parts, None);
    let base = fixed(decision.id, Some(decision));
    let mut three = Arc::unwrap_or_clone(plan(2, base, &[ME, PEER, LAST], &[ME, PEER, LAST]));
    three.parameters_first = true;
    three.sources[0] = vec![PEER, LAST];
    let first = three.parameters_sender(ME, Unit(0), decision.id.step).unwrap();
    let other = if first == PEER { LAST } else { PEER };
    rig.order(Order::Prepare(Arc::new(three)));
    rig.connect(2, other);
    let id = decision.id;
    assert_eq!(asked(&rig.put(MemberInput::Applied { id })), []);
    rig.now = rig.now.after(MemberTiming::default().fetch_retry);
    assert_eq!(asked(&rig.put(MemberInput::Tick)), [], "nor later");
    assert_eq!(asked(&rig.connect(2, first)), [(first, Unit(0))]);
}

#[test]
fn hung_step_before_go_is_reported() {
    let mut sender = Rig::holder();
    sender.order(Order::Prepare(both(&[ME])));
    sender.connect(2, PEER);
    (0..2).for_each(|unit| drop(sender.asked_for(2, unit)));
    for mut rig in [Rig::without_state(), sender] {
        // While parameters travel no state comes, however slow the link is.
        let step = Duration::from_secs(1);
        let connects = MemberTiming::default().connect_deadline * 10;
        let moves = Duration::from_millis(4 * 100);
        rig.now = rig.now.after(step + connects + moves);
        assert_eq!(suspects(&rig.put(MemberInput::Tick)), []);
        rig.now = rig.now.after(Duration::from_millis(1));
        let expected = [(ME, Suspicion::Gone)];
        assert_eq!(suspects(&rig.put(MemberInput::Tick)), expected);
    }
}

#[test]
fn step_that_began_before_go_is_not_timed() {
    let mut rig = Rig::without_state();
    (0..2).for_each(|unit| drop(rig.arrives(unit)));
    rig.prepared();
    rig.norm_of_peer();
    let decision = apply(&rig.go(2)).unwrap();
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    // A step that took no time would make the next one's deadline the least one.
    let deadline = effects.iter().find_map(|e| match e {
        MemberEffect::Run { plan, deadline, .. } => Some((*deadline, plan.deadline)),
        _ => None,
    });
    let (deadline, of_plan) = deadline.unwrap();
    assert_eq!(deadline, of_plan.of(decision.id.step, &Default::default()));
    assert!(deadline > Duration::from_nanos(of_plan.floor_ns));
}

#[test]
fn without_parameters_first_nothing_runs_before_go() {
    let mut rig = Rig::new();
    let plain = plan(2, fixed(BASE, None), &[ME, PEER], &[PEER]);
    rig.order(Order::Prepare(plain));
    assert_eq!(runs(&rig.connect(2, PEER)), []);
    for unit in 0..2 {
        assert_eq!(runs(&rig.arrives(unit)), []);
    }
    assert_eq!(runs(&rig.go(2)), [BASE.step]);
}

/// A pipeline of two: the peer computes with unit 0, which only this worker has, and keeps the spare copy of this worker's unit 1.
fn kept() -> Arc<Plan> {
    let mut plan = Arc::unwrap_or_clone(plan(2, fixed(BASE, None), &[ME], &[ME]));
    plan.shape.pipelines[0].stages = two_stages();
    plan.sources[1].push(PEER);
    plan.keepers = vec![None, Some(PEER)];
    plan.parameters_first = true;
    assert!(plan.can_send_parameters_first());
    Arc::new(plan)
}

#[test]
fn keeper_that_asks_after_go_gets_the_gradient_of_the_step() {
    let mut rig = Rig::holder();
    rig.order(Order::Prepare(kept()));
    rig.connect(2, PEER);
    assert_eq!(runs(&rig.asked_for(2, 0)), [BASE.step]);
    rig.put(MemberInput::Prepared {
        generation: Generation(2),
        step: BASE.step,
        units: vec![(Unit(1), norm(2.0))],
        store_busy: false,
    });
    rig.go(2);
    let follow = |held| PeerMessage::Follow { unit: Unit(1), held };
    let gradients = |effects: &[MemberEffect]| {
        let forward = |e: &&MemberEffect| matches!(e, MemberEffect::ForwardPrepared { to: PEER, .. });
        effects.iter().filter(forward).count()
    };
    assert_eq!(gradients(&rig.hear(2, PEER, follow(Some(BASE)))), 1);
    assert_eq!(
        gradients(&rig.hear(2, PEER, follow(Some(BASE)))),
        0,
        "it is on its way"
    );
    let decision = apply(&rig.norms_of_peer(vec![(Unit(0), norm(1.0))])).unwrap();
    let effects = rig.put(MemberInput::Applied { id: decision.id });
    let copies = effects.iter().filter(|e| matches!(e, MemberEffect::Copy { .. }));
    assert_eq!(copies.count(), 0, "it needs no copy");
}

#[test]
fn gradient_of_another_state_is_not_reported() {
    let mut rig = Rig::new();
    let before = StateId {
        step: Step(BASE.step.0 - 1),
        ..BASE
    };
    let held = plan(1, fixed(before, None), &[ME, PEER], &[PEER]);
    rig.order(Order::Prepare(held));
    rig.connect(1, PEER);
    (0..2).for_each(|unit| {
        rig.fetched(1, unit, before, None);
        rig.loaded(unit, before);
    });
    rig.order(Order::Fence { upto: Generation(1) });
    // The others have finished a step that this worker was not prepared for.
    rig.order(Order::Prepare(both(&[PEER])));
    assert_eq!(runs(&rig.connect(2, PEER)), [BASE.step]);
    rig.prepared();
    let effects = rig.order(Order::Fence { upto: Generation(2) });
    let inventory = inventory(&effects).unwrap();
    assert_eq!(inventory.units[&Unit(0)], before);
    assert!(inventory.prepared.is_empty());
}

#[test]
fn state_is_not_asked_for_twice_while_parameters_travel() {
    let late = MemberTiming::default().fetch_retry;
    let mut three = Arc::unwrap_or_clone(plan(2, fixed(BASE, None), &[ME, PEER, LAST], &[PEER, LAST]));
    three.parameters_first = true;
    let mut rig = Rig::new();
    rig.order(Order::Prepare(Arc::new(three)));
    // Asks one of them, and cannot begin without the other one.
    assert_eq!(asked(&rig.connect(2, PEER)).len(), 1);
    rig.now = rig.now.after(late);
    assert_eq!(asked(&rig.put(MemberInput::Tick)), []);
    let effects = rig.connect(2, LAST);
    assert_eq!((asked(&effects).len(), runs(&effects)), (1, vec![BASE.step]));
    rig.now = rig.now.after(late);
    assert_eq!(asked(&rig.put(MemberInput::Tick)), []);
    // The step has taken all of the link. Only from now on state is late.
    assert_eq!(asked(&rig.prepared()), []);
    rig.now = rig.now.after(late);
    assert_eq!(asked(&rig.put(MemberInput::Tick)).len(), 2);
}

#[test]
fn sender_of_damaged_state_is_replaced_before_it_is_linked() {
    let mut of_two = Arc::unwrap_or_clone(both(&[PEER]));
    of_two.sources[0].push(LAST);
    assert_eq!(of_two.parameters_sender(ME, Unit(0), BASE.step), Some(PEER));
    let mut rig = Rig::new();
    rig.order(Order::Prepare(Arc::new(of_two)));
    rig.connect(2, PEER);
    let mut effects = Vec::new();
    for _ in 0..3 {
        effects = rig.put(MemberInput::FetchFailed {
            generation: Generation(2),
            from: PEER,
            unit: Unit(0),
        });
    }
    let dials = |e: &MemberEffect| matches!(e, MemberEffect::Connect { peer: LAST, .. });
    assert!(effects.iter().any(dials), "{effects:?}");
}

#[test]
fn go_waits_for_a_spare_copy_that_is_brought_up() {
    let mut rig = Rig::holder();
    rig.order(Order::Prepare(both(&[ME])));
    rig.connect(2, PEER);
    (0..2).for_each(|unit| drop(rig.asked_for(2, unit)));
    rig.member.adopting.insert(Unit(5), BASE);
    assert_eq!(rig.go(2), []);
    assert_eq!(rig.member.status().phase, Phase::Ready);
}

#[test]
fn failed_step_before_go_is_reported_again() {
    let mut rig = Rig::without_state();
    let failed = MemberInput::StepFailed {
        generation: Generation(2),
        about: None,
    };
    let gone = [(ME, Suspicion::Gone)];
    assert_eq!(suspects(&rig.put(failed)), gone);
    rig.now = rig.now.after(MemberTiming::default().connect_deadline);
    assert_eq!(suspects(&rig.put(MemberInput::Tick)), []);
    rig.now = rig.now.after(Duration::from_millis(1));
    assert_eq!(suspects(&rig.put(MemberInput::Tick)), gone);
    // Once a fence waits, there is nothing more to say.
    rig.order(Order::Fence { upto: Generation(2) });
    rig.now = rig.now.after(Duration::from_secs(40));
    assert_eq!(suspects(&rig.put(MemberInput::Tick)), []);
}
