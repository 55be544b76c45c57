use super::*;
use crate::engine::tests::{NO_MEMORY, engine};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;
use varuna_torch::Device;

const UNIT: Unit = Unit(1);
const LONG: Duration = Duration::from_secs(60);

/// A state of the unit.
fn state(device: Device) -> UnitState {
    let mut engine = engine(device);
    engine.initialise(UNIT).unwrap();
    engine.export(UNIT).unwrap()
}

/// Adopts the state beside the engine. Says what `done` was told.
fn adopted(engine: &Engine, state: UnitState) -> Result<(), EngineError> {
    let (tell, told) = channel();
    let done: Done = Box::new(move |result| tell.send(result).unwrap());
    let mut adopter = engine.adopter();
    adopter.adopt(UNIT, StateId::INITIAL, state, done).unwrap();
    told.recv_timeout(LONG).unwrap()
}

#[test]
fn engine_has_the_unit_once_it_takes_it() {
    for device in [Device::Cpu, Device::CpuSeparateMemory] {
        let (mut engine, state) = (engine(device), state(device));
        assert_eq!(adopted(&engine, state.clone()), Ok(()));
        assert!(engine.held().is_empty());
        assert_eq!(engine.take_adopted(false), Ok(vec![(UNIT, false)]));
        assert_eq!(engine.export(UNIT).unwrap(), state);
        assert_eq!(engine.take_adopted(true), Ok(vec![]), "it is taken once");
    }
}

#[test]
fn who_waits_gets_units_that_are_just_being_made() {
    let (mut engine, state) = (engine(Device::Cpu), state(Device::Cpu));
    let (go_on, may_go_on) = channel::<()>();
    let mut adopter = engine.adopter();
    // The thread is slow to say that it is done, and the engine may go on only after that.
    let done: Done = Box::new(move |result| {
        result.unwrap();
        may_go_on.recv_timeout(LONG).unwrap();
    });
    adopter.adopt(UNIT, StateId::INITIAL, state, done).unwrap();
    let (tell, told) = channel();
    let waiting = std::thread::spawn(move || {
        engine.take_adopted(true).unwrap();
        tell.send(engine.held()).unwrap();
    });
    let none = told.recv_timeout(Duration::from_millis(50));
    assert_eq!(none, Err(RecvTimeoutError::Timeout));
    go_on.send(()).unwrap();
    assert_eq!(told.recv_timeout(LONG).unwrap(), [UNIT]);
    waiting.join().unwrap();
}

#[test]
fn a_unit_without_room_beside_the_step_lies_on_the_host() {
    let state = state(Device::CpuSeparateMemory);
    let mut engine = engine(Device::CpuSeparateMemory);
    engine.empty = |_, _| Err(TorchError(NO_MEMORY.to_owned()));
    assert_eq!(adopted(&engine, state.clone()), Ok(()));
    engine.take_adopted(true).unwrap();
    assert!(engine.is_on_host(UNIT).unwrap());
    assert_eq!(engine.export(UNIT).unwrap(), state);
}

#[test]
fn a_unit_that_cannot_be_made_holds_nobody_up() {
    let state = state(Device::Cpu);
    let mut short = state.clone();
    short.data.pop();
    let mut refusing = engine(Device::Cpu);
    assert!(matches!(adopted(&refusing, short), Err(EngineError::Torch(_))));
    assert_eq!(refusing.take_adopted(true), Ok(vec![]));
    let mut panicking = engine(Device::Cpu);
    panicking.empty = |_, _| panic!("for the test");
    let panicked = adopted(&panicking, state.clone());
    assert_eq!(panicked, Err(EngineError::Panicked("for the test".into())));
    assert_eq!(panicking.take_adopted(true), Ok(vec![]));
    // The host has no other place for it.
    let mut full = engine(Device::Cpu);
    full.empty = |_, _| Err(TorchError(NO_MEMORY.to_owned()));
    let why = adopted(&full, state).unwrap_err();
    assert!(matches!(why, EngineError::NoRoom { unit: UNIT, .. }), "{why}");
}
