//! Optimizer state that is divided among the workers of a segment (ZeRO-1) gives the same losses as undivided state. The engines are
//! threads of one process, connected by local links.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

mod common;

use common::{
    BATCH, Case, LLAMA_LIKE, Trained, assert_close, assert_losses_close, engine, later, plan, run, shape,
    single,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use varuna_api::{Precision, Sharding, UpdateRule};
use varuna_model::{Layout, Unit};
use varuna_plan::{Decision, LossScaling, Recompute, ScaleFactor, Shape, StateId, WorkerId};
use varuna_torch::Device;
use varuna_worker::engine::Engine;
use varuna_worker::state::UnitState;
use varuna_worker::transport::Link;
use varuna_worker::transport::local::LocalMesh;

const STEPS: u64 = 12;

/// The result with the state of whole segments, from units of this layout.
fn whole(layout: Layout, trained: Trained) -> Trained {
    let mut parameters = BTreeMap::new();
    for whole in layout.undivided().all_units() {
        let ranges: Vec<&Vec<f32>> = layout
            .ranges_of(whole)
            .map(|unit| &trained.parameters[&unit])
            .collect();
        let parts = 1 + trained.moments.of_parameter();
        let mut data = Vec::new();
        for part in 0..parts {
            for range in &ranges {
                let elements = range.len() / parts;
                data.extend_from_slice(&range[part * elements..(part + 1) * elements]);
            }
        }
        parameters.insert(whole, data);
    }
    Trained {
        parameters,
        ..trained
    }
}

/// Runs a case with and without sharding. Losses and states must be the same except for rounding.
fn compare(case: &dyn Fn(Sharding) -> Case, shape: &Shape, tolerance: f64, what: &str) {
    let sharded = case(Sharding::Zero1);
    let undivided = run(&case(Sharding::Off), shape, STEPS);
    let shared = run(&sharded, shape, STEPS);
    assert_eq!(undivided.overflows, shared.overflows, "{what}");
    assert_eq!(undivided.progress, shared.progress, "{what}");
    assert_eq!(undivided.evaluations.len(), shared.evaluations.len(), "{what}");
    assert_losses_close(&undivided, &shared, tolerance, what);
    // Adam amplifies the last bits of small gradients as much as large gradients.
    assert_close(
        &undivided,
        &whole(sharded.layout(), shared),
        10.0 * tolerance,
        what,
    );
}

/// Pipelines of one stage each, with the samples divided among them.
fn side_by_side(case: &Case, workers: usize) -> Shape {
    let depths: Vec<&[u32]> = vec![&[6]; workers];
    let samples: Vec<u64> = (0..workers as u64)
        .map(|i| (i + 1) * BATCH / workers as u64 - i * BATCH / workers as u64)
        .collect();
    shape(case, &depths, &samples, 1)
}

#[test]
fn sharded_training_matches_under_every_plan() {
    for (tied, sharded) in [(true, 3), (false, 4), (true, 5), (true, 8), (true, 1), (false, 2)] {
        let case = |sharding| Case {
            tied,
            sharding,
            evaluate: true,
            ..Case::default()
        };
        let shape = side_by_side(&case(Sharding::Off), sharded);
        compare(&case, &shape, 1e-6, &format!("tied {tied}, {sharded} pipelines"));
    }
    let case = |sharding| Case {
        sharding,
        ..Case::default()
    };
    let depths: [&[u32]; 3] = [&[1, 3, 2], &[4, 2], &[2, 2, 2]];
    for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
        let mut uneven = shape(&case(Sharding::Off), &depths, &[2, 3, 3], 2);
        uneven.schedule.recompute = recompute;
        compare(&case, &uneven, 1e-6, &format!("uneven cuts, {recompute:?}"));
    }
}

#[test]
fn every_optimizer_family_and_precision_shares_its_state() {
    let of = |change: &dyn Fn(&mut Case), tolerance: f64, what: &str| {
        let case = |sharding| {
            let mut case = Case {
                sharding,
                ..Case::default()
            };
            change(&mut case);
            case
        };
        let depths: [&[u32]; 4] = [&[3, 3], &[2, 4], &[3, 3], &[5, 1]];
        let shape = shape(&case(Sharding::Off), &depths, &[2, 2, 2, 2], 1);
        compare(&case, &shape, tolerance, what);
    };
    of(&|case| case.rule = UpdateRule::Sgd { momentum: 0.9 }, 1e-6, "SGD");
    of(&|case| case.features = LLAMA_LIKE, 1e-6, "Llama");
    // If parameters differ in the last bit, their rounded copies may differ in the last bit of their own format.
    of(&|case| case.precision = Precision::Bf16, 1e-2, "bf16");
    let scaling = LossScaling::Dynamic {
        initial: ScaleFactor::two_to(24),
        minimum: ScaleFactor::ONE,
        window: 4,
    };
    let fp16 = |case: &mut Case| {
        case.precision = Precision::Fp16;
        case.scaling = scaling;
    };
    of(&fp16, 1e-2, "fp16");
    of(
        &|case| case.device = Device::CpuSeparateMemory,
        1e-6,
        "memory apart",
    );
}

#[test]
fn the_first_state_of_all_ranges_is_that_of_the_whole_unit() {
    for tied in [false, true] {
        let case = |sharding| Case {
            tied,
            sharding,
            ..Case::default()
        };
        let one = single(&case(Sharding::Off));
        let sharded = case(Sharding::Zero1);
        let (undivided, shared) = (run(&case(Sharding::Off), &one, 0), run(&sharded, &one, 0));
        let shared = whole(sharded.layout(), shared);
        assert_eq!(undivided.parameters, shared.parameters);
    }
}

/// Engines of a run, by worker.
type Engines = BTreeMap<WorkerId, Engine>;

/// Trains for some more steps, with a thread for each engine.
fn train(case: &Case, shape: &Shape, engines: Engines, at: &mut StateId, steps: u64) -> (Engines, Vec<f64>) {
    let (plan, mesh) = (plan(case, shape), LocalMesh::new(&shape.members()));
    let exchange = Arc::new(common::Exchange::new(shape.members().len()));
    let begin = *at;
    let one = |(me, mut engine): (WorkerId, Engine)| {
        let (plan, exchange) = (plan.clone(), Arc::clone(&exchange));
        let link: Arc<dyn Link> = mesh.link(me);
        std::thread::spawn(move || {
            tch::set_num_threads(1);
            let (mut at, mut losses) = (begin, Vec::new());
            for _ in 0..steps {
                let report = engine.run_step(&plan, at.step, &link, later()).unwrap();
                let held: Vec<Unit> = report.prepared.iter().map(|(unit, _)| *unit).collect();
                assert_eq!(
                    held,
                    plan.units(me),
                    "each holder says what it holds, and nothing else"
                );
                let parts = exchange.all(at.step.0, &report.prepared);
                let decision = Decision::conclude(at, plan.generation, &parts, None);
                engine.apply(&decision, &plan.units(me)).unwrap();
                at = decision.id;
                losses.push(decision.loss);
            }
            (me, engine, at, losses)
        })
    };
    let threads: Vec<_> = engines.into_iter().map(one).collect();
    let (mut engines, mut losses) = (Engines::new(), Vec::new());
    for thread in threads {
        let (me, engine, reached, of_all) = thread.join().unwrap();
        engines.insert(me, engine);
        (*at, losses) = (reached, of_all);
    }
    (engines, losses)
}

/// The states of the engines, by unit. All holders of a unit must have the same bits.
fn states(engines: &Engines) -> BTreeMap<Unit, UnitState> {
    let mut states: BTreeMap<Unit, UnitState> = BTreeMap::new();
    for engine in engines.values() {
        for unit in engine.held() {
            let state = engine.export(unit).unwrap();
            let known = states.entry(unit).or_insert_with(|| state.clone());
            assert_eq!(*known, state, "unit {unit}");
        }
    }
    states
}

#[test]
fn others_hold_all_after_any_loss() {
    let case = |sharding| Case {
        sharding,
        ..Case::default()
    };
    let sharded = case(Sharding::Zero1);
    let four = side_by_side(&sharded, 4);
    let usual = run(&case(Sharding::Off), &four, 12);
    for lost in four.members() {
        let plan = plan(&sharded, &four);
        let mut engines: Engines = four
            .members()
            .into_iter()
            .map(|w| (w, engine(&sharded, w)))
            .collect();
        for (me, engine) in &mut engines {
            plan.units(*me)
                .into_iter()
                .for_each(|unit| engine.initialise(unit).unwrap());
            let share = engine.held().len() as f64 / sharded.layout().units() as f64;
            assert!((share - 0.5).abs() < 0.01, "{me} holds {share} of all");
        }
        let mut at = StateId::INITIAL;
        let (mut engines, mut losses) = train(&sharded, &four, engines, &mut at, 5);
        engines.remove(&lost);
        let held = states(&engines);
        assert_eq!(
            held.len(),
            sharded.layout().units(),
            "{lost} takes no state with it"
        );
        // The remaining workers train under a new plan, which divides the state anew.
        let mut three = side_by_side(&sharded, 3);
        let mut others = engines.keys().copied();
        for pipeline in &mut three.pipelines {
            pipeline.stages[0].worker = others.next().unwrap();
        }
        let next = common::plan(&sharded, &three);
        for (me, engine) in &mut engines {
            let needed = next.units(*me);
            let had = engine.held();
            for unit in needed.iter().filter(|unit| !had.contains(unit)) {
                engine.import(*unit, &held[unit]).unwrap();
            }
            engine.free(&needed).unwrap();
            assert_eq!(engine.held(), needed);
        }
        let (_, more) = train(&sharded, &three, engines, &mut at, 7);
        losses.extend(more);
        let ours = Trained {
            losses,
            ..Trained::default()
        };
        assert_losses_close(&usual, &ours, 1e-6, &format!("{lost} lost"));
    }
}

/// Four workers train, and then train on with each other's slices. Their former state is kept beside that, or given up while somebody reads it.
fn trains_on_beside_former_state(device: Device, is_kept: bool) {
    let case = Case {
        sharding: Sharding::Zero1,
        device,
        ..Case::default()
    };
    let four = side_by_side(&case, 4);
    let first = plan(&case, &four);
    let mut engines = Engines::new();
    for me in four.members() {
        let mut engine = engine(&case, me);
        let units = first.units(me);
        units.iter().for_each(|unit| engine.initialise(*unit).unwrap());
        engines.insert(me, engine);
    }
    let mut at = StateId::INITIAL;
    let (mut engines, _) = train(&case, &four, engines, &mut at, 3);
    let former = states(&engines);
    let (mut turned, workers) = (four.clone(), four.members());
    for (i, pipeline) in turned.pipelines.iter_mut().enumerate() {
        pipeline.stages[0].worker = workers[(i + 2) % workers.len()];
    }
    let next = plan(&case, &turned);
    let mut readers = Vec::new();
    for (me, engine) in &mut engines {
        let (needed, had) = (next.units(*me), engine.held());
        assert!(needed.iter().all(|unit| !had.contains(unit)), "other slices");
        for unit in &needed {
            engine.import(*unit, &former[unit]).unwrap();
        }
        if !is_kept {
            readers.extend(had.iter().map(|unit| (*unit, engine.share(*unit).unwrap())));
            engine.free(&needed).unwrap();
        }
    }
    let (engines, _) = train(&case, &turned, engines, &mut at, 2);
    for (me, engine) in &engines {
        for unit in engine.held() {
            let is_of_plan = next.units(*me).contains(&unit);
            let has_changed = engine.export(unit).unwrap() != former[&unit];
            assert_eq!(has_changed, is_of_plan, "{me}, unit {unit}");
        }
    }
    for (unit, reader) in readers {
        assert_eq!(reader.copy().unwrap(), former[&unit], "unit {unit}");
    }
}

#[test]
fn state_beside_the_plan_is_not_overwritten() {
    for device in [Device::Cpu, Device::CpuSeparateMemory] {
        for is_kept in [true, false] {
            trains_on_beside_former_state(device, is_kept);
        }
    }
}

#[test]
fn evenly_sharded_state_has_equal_bits_except_the_norm() {
    let case = |sharding| Case {
        sharding,
        // Gradients are never clipped, because the norm is added up by ranges and is rounded differently.
        clip_norm: None,
        ..Case::default()
    };
    for pipelines in [2, 3, 4] {
        let shape = side_by_side(&case(Sharding::Off), pipelines);
        let undivided = run(&case(Sharding::Off), &shape, STEPS);
        let shared = run(&case(Sharding::Zero1), &shape, STEPS);
        let shared = whole(case(Sharding::Zero1).layout(), shared);
        assert_eq!(undivided.losses, shared.losses, "{pipelines}");
        assert!(undivided.parameters == shared.parameters, "{pipelines}");
    }
}
