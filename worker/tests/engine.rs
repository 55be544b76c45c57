//! The engine when steps fail, and when state is moved.
#![expect(clippy::unwrap_used, reason = "this is a test")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{Case, engine, engine_with, later, plan, shape, single};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use varuna_api::UpdateRule;
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, LossScaling, OptimizerProgress, Plan, StateId, Step, Unit, WorkerId};
use varuna_worker::agent::engine_thread::{self, Command, Event};
use varuna_worker::engine::{Engine, EngineError, SampleError, Samples};
use varuna_worker::transport::local::LocalMesh;
use varuna_worker::transport::{Address, Link, LinkError, Packet, Tag};

const ONE: WorkerId = WorkerId(1);
const TWO: WorkerId = WorkerId(2);

fn initialised(case: &Case, me: WorkerId, plan: &Plan) -> Engine {
    let mut engine = engine(case, me);
    for unit in plan.units(me) {
        engine.initialise(unit).unwrap();
    }
    engine
}

fn digests(engine: &Engine) -> Vec<u64> {
    engine
        .held()
        .iter()
        .map(|u| engine.parameters_digest(*u).unwrap())
        .collect()
}

/// Trains alone from a state. Returns the last state.
fn train_alone(engine: &mut Engine, plan: &Plan, mut at: StateId, steps: u64) -> StateId {
    let link = LocalMesh::new(&[ONE]).link(ONE);
    for _ in 0..steps {
        let report = engine.run_step(plan, at.step, &link, later()).unwrap();
        let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        let decision = Decision::conclude(at, plan.generation, &parts, None);
        engine.apply(&decision, &plan.units(ONE)).unwrap();
        at = decision.id;
    }
    at
}

#[test]
fn broken_step_keeps_weights_and_repeats_exactly() {
    let case = Case::default();
    let two = plan(&case, &shape(&case, &[&[6], &[6]], &[4, 4], 2));
    let mut broken = initialised(&case, ONE, &two);
    let before = digests(&broken);
    let mesh = LocalMesh::new(&[ONE, TWO]);
    mesh.kill(TWO);
    let failure = broken
        .run_step(&two, Step(0), &mesh.link(ONE), later())
        .unwrap_err();
    assert_eq!(failure.error, EngineError::Link(LinkError::Closed(TWO)));
    assert!(
        failure.prepared.is_empty(),
        "no unit can be reduced without its other holder"
    );
    assert_eq!(digests(&broken), before);

    let alone = plan(&case, &single(&case));
    let mut fresh = initialised(&case, ONE, &alone);
    train_alone(&mut broken, &alone, StateId::INITIAL, 3);
    train_alone(&mut fresh, &alone, StateId::INITIAL, 3);
    assert_eq!(digests(&broken), digests(&fresh));
    assert_ne!(digests(&fresh), before);
}

#[test]
fn broken_step_names_reduced_units() {
    let case = Case {
        tied: false,
        ..Case::default()
    };
    // With one micro-batch, the last stage has reduced its units before it notices that the first stage is dead.
    let plan = plan(&case, &shape(&case, &[&[4, 2]], &[8], 8));
    let mesh = LocalMesh::new(&[ONE, TWO]);
    let tag = Tag::Activation {
        stage: 1,
        step: Step(0),
        micro_batch: 0,
    };
    let activation: Vec<f32> = (0..8 * 16 * 32u16).map(|i| f32::from(i % 89) * 0.01).collect();
    mesh.link(ONE).send(TWO, tag, activation.into(), later()).unwrap();
    mesh.kill(ONE);
    let mut engine = initialised(&case, TWO, &plan);
    let before = digests(&engine);
    let failure = engine
        .run_step(&plan, Step(0), &mesh.link(TWO), later())
        .unwrap_err();
    assert_eq!(failure.error, EngineError::Link(LinkError::Closed(ONE)));
    let units: Vec<Unit> = failure.prepared.iter().map(|(u, _)| *u).collect();
    assert_eq!(units, [Unit(4), Unit(5)]);
    assert!(
        failure
            .prepared
            .iter()
            .all(|(_, norm)| norm.norm2 > 0.0 && !norm.overflow)
    );
    assert!(
        failure.prepared[1].1.loss > 1.0,
        "the loss rides with the last segment"
    );
    assert_eq!(digests(&engine), before);

    let parts: Vec<_> = failure.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(StateId::INITIAL, plan.generation, &parts, None);
    engine.apply(&decision, &units).unwrap();
    assert!(digests(&engine).iter().zip(&before).all(|(a, b)| a != b));
}

#[test]
fn silent_peer_ends_a_step_at_the_deadline() {
    let case = Case::default();
    let plan = plan(&case, &shape(&case, &[&[3, 3]], &[8], 4));
    let mesh = LocalMesh::new(&[ONE, TWO]);
    let mut engine = initialised(&case, TWO, &plan);
    let failure = engine
        .run_step(&plan, Step(0), &mesh.link(TWO), Instant::now())
        .unwrap_err();
    let tag = Tag::Activation {
        stage: 1,
        step: Step(0),
        micro_batch: 0,
    };
    assert_eq!(
        failure.error,
        EngineError::Link(LinkError::Deadline { from: ONE, tag })
    );

    let link = mesh.link(TWO);
    let running = std::thread::spawn(move || engine.run_step(&plan, Step(0), &link, later()));
    // The abort may come before the engine waits, or while it waits. In both cases it ends long before its deadline.
    mesh.link(TWO).abort();
    assert_eq!(
        running.join().unwrap().unwrap_err().error,
        EngineError::Link(LinkError::Aborted)
    );
}

/// A link that is fenced after this number of calls.
struct Fenced {
    inner: Arc<dyn Link>,
    asked: AtomicUsize,
    after: usize,
}

impl Link for Fenced {
    fn send(&self, to: WorkerId, tag: Tag, packet: Packet, deadline: Instant) -> Result<(), LinkError> {
        self.inner.send(to, tag, packet, deadline)
    }

    fn recv(&self, from: WorkerId, tag: Tag, deadline: Instant) -> Result<Packet, LinkError> {
        self.inner.recv(from, tag, deadline)
    }

    fn recv_any(
        &self,
        wanted: &BTreeSet<Address>,
        deadline: Instant,
    ) -> Result<Option<(Address, Packet)>, LinkError> {
        self.inner.recv_any(wanted, deadline)
    }

    fn wake(&self) {
        self.inner.wake();
    }

    fn abort(&self) {
        self.inner.abort();
    }

    fn is_aborted(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) >= self.after
    }
}

#[test]
fn fence_ends_a_step_that_waits_for_nobody() {
    let case = Case::default();
    // Eight micro-batches in one stage: sixteen tasks, and no message.
    let plan = plan(&case, &shape(&case, &[&[6]], &[8], 1));
    let mut engine = initialised(&case, ONE, &plan);
    let fenced = |after| {
        Arc::new(Fenced {
            inner: LocalMesh::new(&[ONE]).link(ONE),
            asked: AtomicUsize::new(0),
            after,
        })
    };
    let link = fenced(3);
    let own: Arc<dyn Link> = Arc::<Fenced>::clone(&link);
    let failure = engine.run_step(&plan, Step(0), &own, later()).unwrap_err();
    assert_eq!(failure.error, EngineError::Link(LinkError::Aborted));
    assert!(failure.prepared.is_empty());
    assert_eq!(link.asked.load(Ordering::Relaxed), 4, "nothing runs after it");
    // The same step can be run completely afterwards.
    let link = fenced(usize::MAX);
    let own: Arc<dyn Link> = Arc::<Fenced>::clone(&link);
    let report = engine.run_step(&plan, Step(0), &own, later()).unwrap();
    assert_eq!(report.prepared.len(), plan.units(ONE).len());
    assert_eq!(link.asked.load(Ordering::Relaxed), 16, "once before each task");
}

#[test]
fn state_that_moved_trains_on_as_if_it_had_stayed() {
    for rule in [
        Case::default().rule,
        UpdateRule::Sgd { momentum: 0.9 },
        common::MUON,
    ] {
        move_and_train_on(&Case {
            rule,
            ..Case::default()
        });
    }
}

fn move_and_train_on(case: &Case) {
    let plan = plan(case, &single(case));
    let mut stays = initialised(case, ONE, &plan);
    let at = train_alone(&mut stays, &plan, StateId::INITIAL, 3);
    let mut moved = engine(case, ONE);
    for unit in stays.held() {
        let state = stays.export(unit).unwrap();
        assert_eq!(state.progress.adam_steps, 3);
        moved.import(unit, &state).unwrap();
        assert_eq!(moved.export(unit).unwrap(), state);
    }
    assert_eq!(
        train_alone(&mut stays, &plan, at, 3),
        train_alone(&mut moved, &plan, at, 3)
    );
    for unit in stays.held() {
        assert_eq!(
            stays.export(unit).unwrap(),
            moved.export(unit).unwrap(),
            "unit {unit}"
        );
    }
    let mut short = stays.export(Unit(1)).unwrap();
    short.data.pop();
    assert!(matches!(
        moved.import(Unit(1), &short),
        Err(EngineError::Torch(_))
    ));
}

#[test]
fn overflow_changes_only_counters() {
    let case = Case::default();
    let plan = plan(&case, &single(&case));
    let mut engine = initialised(&case, ONE, &plan);
    let link = LocalMesh::new(&[ONE]).link(ONE);
    let mut parts: Vec<_> = engine
        .run_step(&plan, Step(0), &link, later())
        .unwrap()
        .prepared
        .iter()
        .map(|(_, norm)| *norm)
        .collect();
    parts[2].overflow = true;
    let before: Vec<_> = engine.held().iter().map(|u| engine.export(*u).unwrap()).collect();
    let decision = Decision::conclude(StateId::INITIAL, plan.generation, &parts, None);
    engine.apply(&decision, &plan.units(ONE)).unwrap();
    let after: Vec<_> = engine.held().iter().map(|u| engine.export(*u).unwrap()).collect();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.data, after.data);
        assert_eq!(after.progress, before.progress.after(true, &LossScaling::OFF));
        assert_eq!(
            (after.progress.adam_steps, after.progress.failed_in_a_row),
            (0, 1)
        );
    }
}

/// Data with the same tokens in all steps.
struct Same;

impl Samples for Same {
    fn train(&self, _: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        for (token, number) in tokens.iter_mut().zip(0..) {
            *token = number * number % 40;
        }
        Ok(())
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

#[test]
fn skipped_step_does_not_affect_rate_and_corrections() {
    let case = Case {
        dropout: 0.0,
        ..Case::default()
    };
    let plan = plan(&case, &single(&case));
    let trained = |skips: usize| {
        let mut engine = engine_with(&case, ONE, Same);
        let mut at = StateId::INITIAL;
        for unit in plan.units(ONE) {
            engine.initialise(unit).unwrap();
        }
        for _ in 0..skips {
            let parts = [UnitNorm::new(f64::NAN, 0.0, None, OptimizerProgress::START)];
            let skipped = Decision::conclude(at, plan.generation, &parts, None);
            engine.apply(&skipped, &plan.units(ONE)).unwrap();
            at = skipped.id;
        }
        train_alone(&mut engine, &plan, at, 3);
        let units = engine.held().into_iter();
        units.map(|u| engine.export(u).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(trained(2), trained(0));
}

#[test]
fn a_step_needs_a_stage_and_the_state_of_its_units() {
    let case = Case::default();
    let plan = plan(&case, &single(&case));
    let mesh = LocalMesh::new(&[ONE, TWO]);
    let failure = engine(&case, TWO)
        .run_step(&plan, Step(0), &mesh.link(TWO), later())
        .unwrap_err();
    assert_eq!(failure.error, EngineError::NoStage(TWO));
    let mut partial = initialised(&case, ONE, &plan);
    partial.free(&[Unit(0), Unit(1)]).unwrap();
    assert_eq!(partial.held(), [Unit(0), Unit(1)]);
    let failure = partial
        .run_step(&plan, Step(0), &mesh.link(ONE), later())
        .unwrap_err();
    assert_eq!(failure.error, EngineError::NotHeld(Unit(2)));
    assert_eq!(
        partial.export(Unit(3)).unwrap_err(),
        EngineError::NotHeld(Unit(3))
    );
}

/// Data whose reader panics.
struct Panicking;

impl Samples for Panicking {
    fn train(&self, index: u64, _tokens: &mut [i64]) -> Result<(), SampleError> {
        panic!("sample {index} cannot be read")
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

#[test]
fn a_panic_in_the_engines_thread_is_told_and_not_waited_for() {
    let case = Case::default();
    let plan = plan(&case, &single(&case));
    let mut engine = engine_with(&case, ONE, Panicking);
    for unit in plan.units(ONE) {
        engine.initialise(unit).unwrap();
    }
    let (events, told) = std::sync::mpsc::channel();
    let emit = move |event| drop(events.send(event));
    let commands = engine_thread::start(engine, 1, emit).unwrap();
    let run = Command::Run {
        plan: Arc::new(plan),
        step: Step(0),
        deadline: std::time::Duration::from_secs(60),
        link: LocalMesh::new(&[ONE]).link(ONE),
    };
    commands.send(run).unwrap();
    let event = told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    let Event::Fatal(EngineError::Panicked(why)) = event else {
        panic!("another event");
    };
    assert_eq!(why, "sample 0 cannot be read");
}

#[test]
fn a_snapshot_reads_any_part_of_a_state() {
    let case = Case::default();
    let plan = plan(&case, &single(&case));
    let engine = initialised(&case, ONE, &plan);
    for unit in engine.held() {
        let whole = engine.export(unit).unwrap().data;
        let snapshot = engine.snapshot(unit).unwrap();
        assert_eq!(snapshot.elements(), whole.len());
        let third = whole.len() / 3;
        for (start, end) in [
            (0, 1),
            (third - 1, third + 1),
            (1, 2 * third + 1),
            (whole.len(), whole.len()),
        ] {
            assert_eq!(snapshot.range(start, end).unwrap(), whole[start..end]);
        }
    }
}

#[test]
fn digest_changes_with_any_bit() {
    let case = Case::default();
    let alone = plan(&case, &single(&case));
    let unit = Unit(1);
    let digest = |engine: &Engine| engine.snapshot(unit).unwrap().digest().unwrap();
    let mut one = initialised(&case, ONE, &alone);
    train_alone(&mut one, &alone, StateId::INITIAL, 2);
    let state = one.export(unit).unwrap();
    let mut other = engine(&case, ONE);
    other.import(unit, &state).unwrap();
    assert_eq!(digest(&one), digest(&other));
    let third = state.data.len() / 3;
    for element in [0, third, 3 * third - 1] {
        let mut damaged = state.clone();
        let bits = damaged.data[element].to_bits() ^ 1;
        damaged.data[element] = f32::from_bits(bits);
        other.import(unit, &damaged).unwrap();
        assert_ne!(digest(&one), digest(&other), "element {element}");
    }
    let mut damaged = state;
    damaged.progress.adam_steps += 1;
    other.import(unit, &damaged).unwrap();
    assert_ne!(digest(&one), digest(&other));
}

/// The engine's own thread computes the digests, in the order of its commands.
#[test]
fn the_state_that_is_compared_is_that_of_its_place_in_the_order() {
    let case = Case::default();
    let alone = plan(&case, &single(&case));
    let unit = Unit(0);
    let trained = initialised(&case, ONE, &alone);
    let expected = trained.snapshot(unit).unwrap().digest().unwrap();
    let (events, inbox) = std::sync::mpsc::channel();
    let commands = engine_thread::start(trained, 1, move |event| drop(events.send(event))).unwrap();
    let id = StateId::INITIAL;
    let units = vec![unit];
    let compare = Command::Compare {
        id,
        saved: true,
        units,
    };
    commands.send(compare).unwrap();
    let (keep, copies) = (vec![], vec![]);
    commands.send(Command::Free { keep, copies }).unwrap();
    let Event::Compared {
        saved: true,
        snapshots,
        ..
    } = inbox.recv().unwrap()
    else {
        panic!("another event");
    };
    let digests: Vec<u64> = snapshots.iter().map(|(_, s)| s.digest().unwrap()).collect();
    assert_eq!(digests, [expected]);
}
