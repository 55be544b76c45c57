//! Samples are read ahead of the steps that need them.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{BATCH, Case, Counting, engine_with, later, plan, shape};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use varuna_plan::{Decision, Plan, Recompute, ScheduleKind, StateId, Step, WorkerId};
use varuna_torch::{Device, Streams};
use varuna_worker::ablation::{Ablation, Ablations};
use varuna_worker::engine::{Engine, EngineError, SampleError, Samples};
use varuna_worker::transport::local::LocalMesh;

const ME: WorkerId = WorkerId(1);
const AWAY: &str = "the store is away";

#[derive(Default)]
struct State {
    /// Samples that were read, in order.
    read: Vec<u64>,
    /// The names of the threads that read.
    threads: Vec<String>,
    /// The first sample that cannot be read.
    away_from: Option<u64>,
}

/// A store that the test observes, and can make unavailable.
#[derive(Clone, Default)]
struct Store(Arc<(Mutex<State>, Condvar)>);

impl Store {
    /// Waits until this many samples were read.
    fn wait_for(&self, count: usize) {
        let (state, changed) = &*self.0;
        let state = state.lock().unwrap();
        let limit = Duration::from_secs(60);
        let waited = changed.wait_timeout_while(state, limit, |s| s.read.len() < count);
        let (state, late) = waited.unwrap();
        assert!(
            !late.timed_out(),
            "{} of {count} samples were read",
            state.read.len()
        );
    }

    fn take_away_from(&self, sample: u64) {
        self.0.0.lock().unwrap().away_from = Some(sample);
    }
}

fn thread() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

impl Samples for Store {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        if state.away_from.is_some_and(|first| index >= first) {
            return Err(SampleError {
                index,
                why: AWAY.to_owned(),
                may_pass: true,
            });
        }
        state.read.push(index);
        state.threads.push(thread());
        changed.notify_all();
        Counting.train(index, tokens)
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.0.0.lock().unwrap().threads.push(thread());
        Counting.held_out(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        Counting.held_out_len()
    }
}

/// An engine with its first state, and a plan of one stage with one micro-batch for each step, which reads inputs and targets.
fn start(case: &Case, store: &Store) -> (Engine, Plan) {
    let plan = plan(case, &shape(case, &[&[6]], &[BATCH], 8));
    let mut engine = engine_with(case, ME, store.clone());
    plan.units(ME)
        .into_iter()
        .for_each(|u| engine.initialise(u).unwrap());
    (engine, plan)
}

/// Runs one step and returns its loss.
fn step(engine: &mut Engine, plan: &Plan, at: &mut StateId) -> Result<f64, EngineError> {
    let link = LocalMesh::new(&[ME]).link(ME);
    let report = engine
        .run_step(plan, at.step, &link, later())
        .map_err(|f| f.error)?;
    let norms: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(*at, plan.generation, &norms, None);
    engine.apply(&decision, &plan.units(ME))?;
    *at = decision.id;
    Ok(decision.loss)
}

fn cases() -> [Case; 2] {
    let apart = Case {
        device: Device::CpuSeparateMemory,
        streams: Streams::HOST,
        ..Case::default()
    };
    [Case::default(), apart]
}

#[test]
fn unavailable_store_does_not_delay_prefetched_steps() {
    let batch = usize::try_from(BATCH).unwrap();
    for case in cases() {
        let (undisturbed, store) = (Store::default(), Store::default());
        let losses = {
            let ((mut engine, plan), mut at) = (start(&case, &undisturbed), StateId::INITIAL);
            [0, 1].map(|_| step(&mut engine, &plan, &mut at).unwrap())
        };
        let ((mut engine, plan), mut at) = (start(&case, &store), StateId::INITIAL);
        assert_eq!(step(&mut engine, &plan, &mut at), Ok(losses[0]));
        // The inputs and targets of the first and of the second step.
        store.wait_for(4 * batch);
        store.take_away_from(0);
        assert_eq!(step(&mut engine, &plan, &mut at), Ok(losses[1]));
        let state = store.0.0.lock().unwrap();
        let expected = [0, 0, 1, 1].map(|of| of * BATCH..(of + 1) * BATCH);
        assert_eq!(state.read, expected.into_iter().flatten().collect::<Vec<_>>());
        assert!(
            state.threads.iter().all(|name| name == "read-ahead"),
            "{:?}",
            state.threads
        );
    }
}

#[test]
fn whatever_the_schedule_all_that_a_step_reads_was_expected() {
    let case = Case {
        evaluate: true,
        ..Case::default()
    };
    let mut interleaved = shape(&case, &[&[1, 1, 2, 2]], &[8], 2);
    interleaved.schedule.kind = ScheduleKind::Interleaved { chunks: 2 };
    for (stage, worker) in interleaved.pipelines[0].stages.iter_mut().zip([1, 2, 1, 2]) {
        stage.worker = WorkerId(worker);
    }
    let mut recomputed = shape(&case, &[&[2, 4], &[6]], &[5, 3], 2);
    recomputed.schedule.recompute = Recompute::Full;
    let mut one_after_the_other = shape(&case, &[&[1, 3, 2]], &[8], 1);
    one_after_the_other.schedule.kind = ScheduleKind::Gpipe;
    for shape in [interleaved, recomputed, one_after_the_other] {
        let mesh = LocalMesh::new(&shape.members());
        let plan = plan(&case, &shape);
        let workers = shape.members().into_iter().map(|me| {
            let store = Store::default();
            let mut engine = engine_with(&case, me, store.clone());
            let (plan, link) = (plan.clone(), mesh.link(me));
            let running = std::thread::spawn(move || {
                plan.units(me)
                    .into_iter()
                    .for_each(|u| engine.initialise(u).unwrap());
                engine.run_step(&plan, Step(0), &link, later()).unwrap();
            });
            (me, store, running)
        });
        for (me, store, running) in workers.collect::<Vec<_>>() {
            running.join().unwrap();
            let state = store.0.0.lock().unwrap();
            let others = state.threads.iter().filter(|name| *name != "read-ahead").count();
            assert_eq!(others, 0, "{me} of {}: {:?}", shape.summary(), state.threads);
        }
    }
}

#[test]
fn step_without_read_ahead_reads_on_demand() {
    let (store, without) = (Store::default(), Ablations::NONE.and(Ablation::ReadAhead));
    let case = Case {
        without,
        ..Case::default()
    };
    let ((mut engine, plan), mut at) = (start(&case, &store), StateId::INITIAL);
    step(&mut engine, &plan, &mut at).unwrap();
    let state = store.0.0.lock().unwrap();
    let expected: Vec<u64> = (0..BATCH).chain(0..BATCH).collect();
    assert_eq!(state.read, expected);
    assert!(
        state.threads.iter().all(|name| name != "read-ahead"),
        "{:?}",
        state.threads
    );
}

#[test]
fn unreadable_sample_fails_only_its_step() {
    for case in cases() {
        let store = Store::default();
        store.take_away_from(BATCH + 3);
        let ((mut engine, plan), mut at) = (start(&case, &store), StateId::INITIAL);
        assert!(step(&mut engine, &plan, &mut at).is_ok());
        let expected = EngineError::Sample(SampleError {
            index: BATCH + 3,
            why: AWAY.to_owned(),
            may_pass: true,
        });
        assert_eq!(step(&mut engine, &plan, &mut at), Err(expected));
    }
}
