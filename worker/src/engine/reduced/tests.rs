use super::*;
use crate::engine::StepReport;
use crate::engine::tests::{alone, engine};
use crate::state::UnitState;
use crate::transport::local::LocalMesh;
use std::time::{Duration, Instant};
use varuna_plan::Decision;
use varuna_torch::Device;

const UNIT: Unit = Unit(1);

/// An engine with all units that has run a step, and the step's decision.
fn after_a_step(device: Device) -> (Engine, Decision) {
    let mut engine = engine(device);
    let plan = alone(&engine);
    for unit in plan.units(engine.config.me) {
        engine.initialise(unit).unwrap();
    }
    let StepReport { prepared, .. } = step(&mut engine);
    let parts: Vec<_> = prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(StateId::INITIAL, plan.generation, &parts, None);
    (engine, decision)
}

fn step(engine: &mut Engine) -> StepReport {
    let (plan, me) = (alone(engine), engine.config.me);
    let link = LocalMesh::new(&[me]).link(me);
    let deadline = Instant::now() + Duration::from_secs(60);
    engine.run_step(&plan, Step(0), &link, deadline).unwrap()
}

fn applied(engine: &mut Engine, decision: &Decision) -> UnitState {
    engine.apply(decision, &[UNIT]).unwrap();
    engine.export(UNIT).unwrap()
}

#[test]
fn a_gradient_goes_with_its_unit_between_device_and_host() {
    let (mut usual, decision) = after_a_step(Device::CpuSeparateMemory);
    let expected = applied(&mut usual, &decision);
    for moves in [vec![vec![UNIT]], vec![vec![UNIT], vec![]]] {
        let (mut engine, decision) = after_a_step(Device::CpuSeparateMemory);
        let gradient = engine.gradient(UNIT).unwrap();
        for copies in &moves {
            engine.keep_copies(copies).unwrap();
            assert_eq!(engine.is_on_host(UNIT).unwrap(), copies.contains(&UNIT));
            assert_eq!(engine.gradient(UNIT).unwrap(), gradient);
        }
        assert!(applied(&mut engine, &decision) == expected, "{moves:?}");
    }
}

#[test]
fn a_decision_is_applied_to_gradients_of_its_step_and_only_once() {
    let device = Device::Cpu;
    let refused = |change: &dyn Fn(&mut Engine, &Decision)| {
        let (mut engine, decision) = after_a_step(device);
        change(&mut engine, &decision);
        let before = engine.export(UNIT).unwrap();
        let refused = engine.apply(&decision, &[UNIT]);
        assert!(engine.export(UNIT).unwrap() == before || refused.is_ok());
        refused
    };
    assert_eq!(refused(&|_, _| ()), Ok(()));
    assert_eq!(refused(&|engine, _| drop(step(engine))), Ok(()));
    let none = Err(EngineError::NoGradient(UNIT));
    let again = |engine: &mut Engine, decision: &Decision| engine.apply(decision, &[UNIT]).unwrap();
    assert_eq!(refused(&again), none);
    assert_eq!(refused(&|engine, _| engine.initialise(UNIT).unwrap()), none);
    let imported = |engine: &mut Engine, _: &Decision| {
        let state = engine.export(UNIT).unwrap();
        engine.import(UNIT, &state).unwrap();
    };
    assert_eq!(refused(&imported), none);
}
