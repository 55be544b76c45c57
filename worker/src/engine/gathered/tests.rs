use super::*;
use crate::engine::Done;
use crate::engine::tests::{alone, engine};
use crate::state::{UnitBuffers, UnitState};
use crate::transport::local::LocalMesh;
use std::time::{Duration, Instant};
use varuna_api::{Precision, Sharding};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Decision, OptimizerProgress, StateId};
use varuna_torch::Device;

const DEVICES: [Device; 2] = [Device::Cpu, Device::CpuSeparateMemory];

/// An engine that holds all ranges of all segments, after a step.
fn after_a_step(device: Device, precision: Precision) -> (Engine, Plan, StateId) {
    let mut engine = engine(device);
    engine.config.training.optimizer.sharding = Sharding::Zero1;
    engine.config.backend.numerics = precision.into();
    let plan = alone(&engine);
    for unit in plan.units(engine.config.me) {
        engine.initialise(unit).unwrap();
    }
    let at = step(&mut engine, &plan, StateId::INITIAL);
    (engine, plan, at)
}

/// Runs a step, and applies its decision.
fn step(engine: &mut Engine, plan: &Plan, at: StateId) -> StateId {
    let me = engine.config.me;
    let link = LocalMesh::new(&[me]).link(me);
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = engine.run_step(plan, at.step, &link, deadline).unwrap();
    let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(at, plan.generation, &parts, None);
    engine.apply(&decision, &plan.units(me)).unwrap();
    decision.id
}

fn states(engine: &Engine) -> Vec<UnitState> {
    let held = engine.held().into_iter();
    held.map(|unit| engine.export(unit).unwrap()).collect()
}

/// How many masters lie where their segment is computed with.
fn lying(engine: &Engine, plan: &Plan) -> usize {
    let lies = |(unit, held): &(&Unit, &UnitBuffers)| {
        let Some(here) = engine.gathered.get(&plan.layout.whole_of(**unit)) else {
            return false;
        };
        let elements = plan.layout.elements_of(**unit, here.elements());
        let computed_with = here.give(elements).unwrap().data_ptr();
        assert_eq!(here.has(held), computed_with == held.weights().data_ptr());
        here.has(held)
    };
    engine.units.iter().filter(lies).count()
}

#[test]
fn masters_lie_where_their_segment_is_computed_with() {
    for device in DEVICES {
        let (engine, plan, _) = after_a_step(device, Precision::Fp32);
        assert_eq!(lying(&engine, &plan), engine.units.len());
    }
    let (engine, plan, _) = after_a_step(Device::Cpu, Precision::Bf16);
    assert_eq!(lying(&engine, &plan), 0, "a copy in another format");
}

#[test]
fn masters_survive_the_memory_that_they_lay_in() {
    for device in DEVICES {
        let (mut engine, plan, at) = after_a_step(device, Precision::Fp32);
        let (mut usual, ..) = after_a_step(device, Precision::Fp32);
        let before = states(&engine);
        engine.drop_gathered();
        assert!(engine.gathered.is_empty());
        let mut units = engine.units.values_mut();
        assert!(units.all(|held| {
            let own = held.weights().data_ptr();
            // It has memory of its own already.
            held.stand_alone().unwrap();
            own == held.weights().data_ptr()
        }));
        assert_eq!(states(&engine), before);
        let next = step(&mut engine, &plan, at);
        assert_eq!(step(&mut usual, &plan, at), next);
        assert_eq!(states(&engine), states(&usual));
        assert_eq!(lying(&engine, &plan), engine.units.len());
        // Even if nobody moves them first.
        engine.gathered.clear();
        assert_eq!(states(&engine), states(&usual));
        assert_eq!(step(&mut engine, &plan, next), step(&mut usual, &plan, next));
        assert_eq!(states(&engine), states(&usual));
        assert_eq!(lying(&engine, &plan), engine.units.len());
    }
}

#[test]
fn a_worker_with_copies_alone_keeps_no_whole_segment() {
    for device in DEVICES {
        let (mut engine, plan, _) = after_a_step(device, Precision::Fp32);
        let unit = plan.units(engine.config.me)[0];
        let before = engine.export(unit).unwrap();
        engine.free(&[unit]).unwrap();
        engine.keep_copies(&[]).unwrap();
        assert_eq!(engine.gathered.len(), 1, "a step computes with it");
        engine.keep_copies(&[unit]).unwrap();
        assert!(engine.gathered.is_empty());
        let held = engine.units.get_mut(&unit).unwrap();
        let own = held.weights().data_ptr();
        held.stand_alone().unwrap();
        assert_eq!(own, held.weights().data_ptr(), "it had memory of its own");
        assert_eq!(engine.export(unit).unwrap(), before);
        let gradient = engine.gradient(unit);
        assert!(gradient.is_err(), "no sum keeps the segment's memory");
    }
}

#[test]
fn former_state_is_not_written_over_while_it_is_read() {
    for device in DEVICES {
        let (mut engine, plan, at) = after_a_step(device, Precision::Fp32);
        let unit = plan.units(engine.config.me)[0];
        let before = engine.export(unit).unwrap();
        let reader = engine.share(unit).unwrap();
        let mut other = before.clone();
        other.data.iter_mut().for_each(|value| *value += 1.0);
        engine.import(unit, &other).unwrap();
        step(&mut engine, &plan, at);
        assert_eq!(lying(&engine, &plan), engine.units.len());
        assert_eq!(reader.copy().unwrap(), before);
    }
}

#[test]
fn a_unit_changed_beside_the_step_has_masters_of_its_own() {
    let (mut engine, plan, at) = after_a_step(Device::Cpu, Precision::Fp32);
    let unit = plan.units(engine.config.me)[0];
    let gradient = vec![0.5; engine.config.elements_of(unit).len()];
    let (mut usual, ..) = after_a_step(Device::Cpu, Precision::Fp32);
    let norm = UnitNorm::new(1.0, 0.0, None, OptimizerProgress::START);
    let decision = Decision::conclude(at, plan.generation, &[norm], None);
    usual.apply_forwarded(&decision, unit, gradient.clone()).unwrap();
    let here = engine.gathered[&plan.layout.whole_of(unit)].give(engine.config.elements_of(unit));
    let computed_with = here.unwrap();
    let before = Vec::<f32>::try_from(&computed_with).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let done: Done = Box::new(move |result| tell.send(result).unwrap());
    engine
        .apply_in_background(&decision, unit, gradient, done)
        .unwrap();
    engine.recall(&[unit]).unwrap();
    assert_eq!(told.recv_timeout(Duration::from_secs(60)).unwrap(), Ok(()));
    assert_eq!(Vec::<f32>::try_from(&computed_with).unwrap(), before);
    assert_eq!(engine.export(unit).unwrap(), usual.export(unit).unwrap());
}
