//! The engine on a device whose memory is not the host's. No GPU is needed: the CPU computes, and the host uses copies.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as the tests do")]

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{Case, Trained, engine, later, plan, run, shape, single};
use varuna_api::Precision;
use varuna_plan::{Decision, Plan, StateId, WorkerId};
use varuna_torch::Device;
use varuna_worker::engine::Engine;
use varuna_worker::transport::local::LocalMesh;

const STEPS: u64 = 6;
const ONE: WorkerId = WorkerId(1);

fn on(device: Device, precision: Precision) -> Case {
    Case {
        device,
        precision,
        evaluate: true,
        ..Case::default()
    }
}

#[test]
fn memory_apart_changes_no_bit_of_any_plan() {
    for precision in [Precision::Fp32, Precision::Bf16] {
        let trained = |device| -> Vec<Trained> {
            let case = on(device, precision);
            let plans = [
                single(&case),
                shape(&case, &[&[2, 4]], &[8], 2),
                shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2),
            ];
            plans.iter().map(|plan| run(&case, plan, STEPS)).collect()
        };
        assert_eq!(
            trained(Device::CpuSeparateMemory),
            trained(Device::Cpu),
            "{precision:?}"
        );
    }
}

/// Runs one step alone. Returns the next state.
fn step(engine: &mut Engine, plan: &Plan, at: StateId) -> StateId {
    let link = LocalMesh::new(&[ONE]).link(ONE);
    let report = engine.run_step(plan, at.step, &link, later()).unwrap();
    let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
    let decision = Decision::conclude(at, plan.generation, &parts, None);
    engine.apply(&decision, &plan.units(ONE)).unwrap();
    decision.id
}

#[test]
fn state_moves_between_devices_without_a_difference() {
    let case = |device| on(device, Precision::Bf16);
    let plan = plan(&case(Device::Cpu), &single(&case(Device::Cpu)));
    let mut stays = engine(&case(Device::Cpu), ONE);
    for unit in plan.units(ONE) {
        stays.initialise(unit).unwrap();
    }
    let at = step(&mut stays, &plan, StateId::INITIAL);
    let mut moved = engine(&case(Device::CpuSeparateMemory), ONE);
    for unit in stays.held() {
        moved.import(unit, &stays.export(unit).unwrap()).unwrap();
    }
    assert_eq!(step(&mut moved, &plan, at), step(&mut stays, &plan, at));
    for unit in stays.held() {
        assert_eq!(
            moved.export(unit).unwrap(),
            stays.export(unit).unwrap(),
            "unit {unit}"
        );
        assert_eq!(
            moved.parameters_digest(unit).unwrap(),
            stays.parameters_digest(unit).unwrap()
        );
    }
}
