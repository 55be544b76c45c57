//! When the first step of a recovery's plan begins before its members have all their state.

use super::*;
use varuna_plan::{SpareCosts, WorkerInfo};

/// Like [`DataParallelPlanner`]: each worker has the whole model, and so much memory beside it; the parameters of a segment take this long.
struct Roomy {
    bytes: u64,
    parameters_ms: f64,
}

impl Planner for Roomy {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        DataParallelPlanner.plan(request)
    }

    fn needed_bytes(&self, shape: &Shape, _: &Layout, _: &[WorkerInfo]) -> BTreeMap<WorkerId, u64> {
        shape.members().into_iter().map(|w| (w, 1_000)).collect()
    }

    fn spare_costs(&self, _: &Shape, _: &Layout, workers: &[WorkerInfo]) -> SpareCosts {
        SpareCosts {
            without_state_bytes: vec![5; 2],
            room_bytes: workers.iter().map(|w| (w.id, self.bytes)).collect(),
            parameters_ms: vec![self.parameters_ms; 2],
            ..SpareCosts::default()
        }
    }
}

/// Says that a worker is idle, and whether it can compute without state.
fn say_able(rig: &mut Rig, worker: WorkerId, parameters_first: bool) {
    let status = Status {
        parameters_first,
        ..idle()
    };
    rig.say(worker, Report::Status(status));
}

/// Two workers that train, of which `able` can compute without state.
fn trained(able: &[WorkerId]) -> Rig {
    let mut rig = Rig::training(&[A, B]);
    for worker in [A, B] {
        say_able(&mut rig, worker, able.contains(&worker));
    }
    rig
}

/// A fence after which A holds the whole state, and B nothing. Returns whether the plan that follows sends parameters first.
fn recover(rig: &mut Rig, able: &[WorkerId], at: StateId) -> bool {
    let before = rig.plan().generation;
    rig.say(A, suspect(before.0, B));
    for worker in [A, B] {
        say_able(rig, worker, able.contains(&worker));
    }
    rig.answer(A, &[(Unit(0), at), (Unit(1), at)]);
    rig.answer(B, &[]);
    rig.wait(60);
    let plan = rig.plan();
    assert!(plan.generation > before && plan.members() == [A, B]);
    assert!(matches!(plan.base, Base::Fixed { id, .. } if id == at));
    plan.parameters_first
}

#[test]
fn parameters_come_first_if_all_members_can() {
    let at = state(1, 4);
    assert!(recover(&mut trained(&[A, B]), &[A, B], at));
    assert!(!recover(&mut trained(&[A]), &[A], at));
    assert!(!recover(&mut trained(&[B]), &[B], at));
}

#[test]
fn parameters_come_first_if_there_is_room_and_time() {
    // A step takes 50 ms.
    for (bytes, parameters_ms, expected) in [(10, 12.0, true), (9, 12.0, false), (10, 13.0, false)] {
        let mut rig = trained(&[A, B]);
        rig.machine.shared.planner = Box::new(Roomy { bytes, parameters_ms });
        let found = recover(&mut rig, &[A, B], state(1, 4));
        assert_eq!(found, expected, "{bytes} bytes, {parameters_ms} ms");
    }
}

#[test]
fn parameters_do_not_come_first_twice_without_a_commit() {
    let mut rig = trained(&[A, B]);
    assert!(recover(&mut rig, &[A, B], state(1, 4)));
    // It hung, or a worker was lost meanwhile.
    assert!(!recover(&mut rig, &[A, B], state(1, 4)));
    assert!(
        recover(&mut rig, &[A, B], state(1, 4)),
        "the plan before did without"
    );
    let generation = rig.plan().generation.0;
    assert!(
        recover(&mut rig, &[A, B], state(generation, 5)),
        "it has committed"
    );
}

#[test]
fn parameters_do_not_come_first_after_the_last_step() {
    let last = config().last_step;
    assert!(!recover(&mut trained(&[A, B]), &[A, B], state(1, last.0)));
    assert!(recover(&mut trained(&[A, B]), &[A, B], state(1, last.0 - 1)));
}

#[test]
fn lack_of_memory_for_such_a_step_limits_nobody() {
    let mut rig = trained(&[A, B]);
    rig.machine.shared.planner = Box::new(Roomy {
        bytes: 100,
        parameters_ms: 1.0,
    });
    assert!(recover(&mut rig, &[A, B], state(1, 4)));
    for (again, limited) in [(1, false), (2, false), (3, true)] {
        // The plans after the first do without.
        let generation = rig.plan().generation;
        let no_memory = Report::Suspect {
            generation,
            about: B,
            why: Suspicion::NoMemory(crate::message::MemoryShortage::default()),
        };
        rig.say(B, no_memory);
        assert!(!recover(&mut rig, &[], state(1, 4)));
        let limit = rig.machine.shared.quarantine.exhausted.limit(B);
        assert_eq!(limit.is_some(), limited, "fence {again}");
    }
}
