use super::*;
use crate::engine::EngineConfig;
use crate::engine::loading::imported_on_host;
use crate::engine::reduced::Reduced;
use crate::engine::tests::{NO_MEMORY, REFUSALS, alone, engine, full};
use crate::state::GatheredUnit;
use crate::transport::local::LocalMesh;
use std::cell::Cell;
use std::time::{Duration, Instant};
use varuna_plan::state::UnitNorm;
use varuna_plan::{Base, Decision, Generation, OptimizerProgress, WorkerId};
use varuna_torch::{Device, Kernels, TorchError};

const UNIT: Unit = Unit(1);
const AT: StateId = StateId::INITIAL;

/// The unit's state, and a gradient for it.
fn state_and_gradient() -> (UnitState, Vec<f32>) {
    let mut engine = engine(Device::CpuSeparateMemory);
    engine.initialise(UNIT).unwrap();
    let elements = engine.config.elements_of(UNIT).len();
    let gradient = (0..elements).map(|i| (i % 7) as f32 - 3.0).collect();
    (engine.export(UNIT).unwrap(), gradient)
}

/// Has the engine keep the gradient, as after a step that computed without the unit's state.
fn keep(engine: &mut Engine, gradient: &[f32]) {
    let here = engine.new_gathered(UNIT).unwrap();
    here.gradients().memory().set(gradient).unwrap();
    engine.reduced = Reduced {
        from: Some(AT),
        waiting: BTreeMap::from([(UNIT, here.into_gradients())]),
        ..Reduced::default()
    };
}

fn decision() -> Decision {
    let norm = UnitNorm::new(1.0, 0.0, None, OptimizerProgress::START);
    Decision::conclude(AT, Generation(1), &[norm], None)
}

/// The unit's state after the step, on an engine with these kernels that had it from the begin.
fn after_the_step_with(kernels: Kernels) -> UnitState {
    let (state, gradient) = state_and_gradient();
    let mut usual = engine(Device::CpuSeparateMemory);
    usual.config.backend.kernels = kernels;
    usual.import(UNIT, &state).unwrap();
    usual
        .apply_forwarded(&decision(), UNIT, gradient.clone())
        .unwrap();
    usual.export(UNIT).unwrap()
}

fn after_the_step() -> UnitState {
    after_the_step_with(Kernels::PROCESSOR)
}

#[test]
fn a_gradient_moves_to_state_wherever_it_lies() {
    let (state, gradient) = state_and_gradient();
    // The device has no room for the unit when it comes, nor later; or it has room once the rest of the step is dropped.
    for (refusals, is_on_host) in [(0, false), (u32::MAX, true), (2, false)] {
        let mut engine = full(Device::CpuSeparateMemory, refusals);
        keep(&mut engine, &gradient);
        assert_eq!(engine.gradient(UNIT).unwrap(), gradient);
        assert_eq!(engine.adopt(UNIT, AT, &state), Ok(true));
        assert_eq!(engine.is_on_host(UNIT).unwrap(), refusals > 0, "{refusals}");
        assert_eq!(engine.gradient(UNIT).unwrap(), gradient);
        if refusals == 0 {
            assert!(engine.reduced.waiting.is_empty(), "its memory is free");
        }
        engine.apply(&decision(), &[UNIT]).unwrap();
        assert_eq!(engine.is_on_host(UNIT).unwrap(), is_on_host, "{refusals}");
        assert!(engine.reduced.waiting.is_empty(), "its memory is free");
        assert!(engine.export(UNIT).unwrap() == after_the_step());
    }
    REFUSALS.set(0);
}

/// Room comes when former units are freed, which is before the decision. Until then nothing ends the worker.
#[test]
fn a_unit_needs_room_on_the_device_only_to_be_applied() {
    let (state, gradient) = state_and_gradient();
    for (is_beside, has_room) in [(false, true), (true, true), (false, false)] {
        let mut engine = full(Device::CpuSeparateMemory, u32::MAX);
        // The optimizer of libtorch has other bits on other devices.
        engine.config.backend.kernels = Kernels::LIBTORCH;
        keep(&mut engine, &gradient);
        match is_beside {
            true => {
                let on_host = imported_on_host(&engine.config, UNIT, &state).unwrap();
                assert_eq!(engine.put_adopted((UNIT, AT), on_host), Ok(true));
            }
            false => assert_eq!(engine.adopt(UNIT, AT, &state), Ok(true)),
        }
        assert_eq!(engine.gradient(UNIT).unwrap(), gradient);
        engine.free(&[UNIT]).unwrap();
        assert!(engine.is_on_host(UNIT).unwrap());
        if has_room {
            REFUSALS.set(0);
        }
        match engine.apply(&decision(), &[UNIT]) {
            Ok(()) => {
                assert!(has_room && !engine.is_on_host(UNIT).unwrap());
                assert!(engine.export(UNIT).unwrap() == after_the_step_with(Kernels::LIBTORCH));
            }
            Err(why) => assert!(!has_room && matches!(why, EngineError::NoRoom { .. }), "{why}"),
        }
    }
    REFUSALS.set(0);
}

thread_local! {
    /// For how many more units without their state the device has memory.
    static ROOM: Cell<u32> = const { Cell::new(0) };
}

fn gathered_while_there_is_room(config: &EngineConfig, unit: Unit) -> Result<GatheredUnit, TorchError> {
    let Some(left) = ROOM.get().checked_sub(1) else {
        return Err(TorchError(NO_MEMORY.to_owned()));
    };
    ROOM.set(left);
    config.gathered(unit)
}

/// The engine's worker computes all units, and another one has their state.
fn without_any_state(engine: &Engine) -> Plan {
    let (me, other) = (engine.config.me, WorkerId(2));
    let mut plan = alone(engine);
    let mut second = plan.shape.pipelines[0].clone();
    second.stages[0].worker = other;
    (plan.shape.pipelines[0].samples.end, second.samples.start) = (1, 1);
    plan.shape.pipelines.push(second);
    let mut plan = Plan::first(plan.layout, plan.shape);
    plan.base = Base::Fixed {
        id: decision().id,
        decision: None,
        checkpoint: false,
    };
    plan.sources = vec![vec![other]; plan.layout.all_units().count()];
    plan.parameters_first = true;
    assert_eq!(engine.without_state(&plan, decision().id.step), plan.units(me));
    plan
}

#[test]
fn a_step_without_memory_for_units_it_lacks_keeps_none_of_them() {
    let mut engine = engine(Device::CpuSeparateMemory);
    engine.gathered_empty = gathered_while_there_is_room;
    let (plan, step) = (without_any_state(&engine), decision().id.step);
    let link = LocalMesh::new(plan.members()).link(engine.config.me);
    ROOM.set(1);
    let deadline = Instant::now() + Duration::from_secs(60);
    let failure = engine.run_step(&plan, step, &link, deadline).unwrap_err();
    assert!(
        matches!(failure.error, EngineError::NoMemory { .. }),
        "{}",
        failure.error
    );
    assert!(failure.prepared.is_empty() && engine.gathered.is_empty());
    assert_eq!(ROOM.get(), 0);
    ROOM.set(100);
    engine.make_without_state(&plan, step).unwrap();
    assert_eq!(engine.gathered.len(), plan.units(engine.config.me).len());
}

#[test]
fn state_that_was_there_before_gets_its_gradient_when_applied() {
    let (state, gradient) = state_and_gradient();
    let mut engine = engine(Device::Cpu);
    engine.import(UNIT, &state).unwrap();
    keep(&mut engine, &gradient);
    assert_eq!(engine.gradient(UNIT).unwrap(), gradient);
    engine.apply(&decision(), &[UNIT]).unwrap();
    assert!(engine.export(UNIT).unwrap() == after_the_step());
    assert!(!engine.reduced.waiting.contains_key(&UNIT));
}

#[test]
fn a_gradient_goes_with_what_it_was_computed_from() {
    let (state, gradient) = state_and_gradient();
    let other = decision().id;
    let kept = |change: &dyn Fn(&mut Engine)| {
        let mut engine = engine(Device::Cpu);
        engine.import(UNIT, &state).unwrap();
        keep(&mut engine, &gradient);
        change(&mut engine);
        engine.reduced.waiting.contains_key(&UNIT)
    };
    assert!(kept(&|engine| engine.free(&[UNIT]).unwrap()));
    assert!(!kept(&|engine| engine.free(&[]).unwrap()));
    assert!(!kept(&|engine| engine.import(UNIT, &state).unwrap()));
    assert!(!kept(&|engine| engine.initialise(UNIT).unwrap()));
    assert!(!kept(&|engine| assert_eq!(
        engine.adopt(UNIT, other, &state),
        Ok(false)
    )));
    let forwarded = |engine: &mut Engine| engine.apply_forwarded(&decision(), UNIT, gradient.clone());
    assert!(!kept(&|engine| forwarded(engine).unwrap()));
}

#[test]
fn the_optimizer_needs_state_that_is_held() {
    let (_, gradient) = state_and_gradient();
    let mut engine = engine(Device::Cpu);
    keep(&mut engine, &gradient);
    let refused = engine.apply(&decision(), &[UNIT]);
    assert_eq!(refused, Err(EngineError::NotHeld(UNIT)));
}
