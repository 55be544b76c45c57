//! When parameters come first: B lacks segment 1, which A has held besides its own.

use super::*;
use crate::document::parameters_first::tests::{A, B, C, D, plan};

/// A has both segments, C and D have theirs, and B has segment 0 of an earlier state.
fn held(worker: WorkerId) -> Vec<Unit> {
    match worker {
        A => vec![Unit(0), Unit(1)],
        B | C => vec![Unit(0)],
        _ => vec![Unit(1)],
    }
}

#[test]
fn former_units_and_parameters_need_room() {
    let without = |room: [(WorkerId, u64); 2]| {
        let costs = SpareCosts {
            held_bytes: vec![16, 32],
            without_state_bytes: vec![8, 10],
            room_bytes: room.into(),
            ..SpareCosts::default()
        };
        without_room(&plan(), None, held, &costs)
    };
    // A has held segment 1, which the plan does not give it; B computes with its parameters, and still has segment 0.
    assert!(without([(A, 32), (B, 26)]).is_empty());
    assert_eq!(without([(A, 31), (B, 26)]), [A]);
    assert_eq!(without([(A, 32), (B, 25)]), [B]);
    assert!(without([(C, 0), (D, 0)]).is_empty(), "others need nothing more");
}

#[test]
fn state_that_waits_for_a_gpu_needs_room_on_its_host() {
    let former = Plan {
        keepers: vec![None, Some(A)],
        ..plan()
    };
    let without = |apart: [(WorkerId, u64); 2], of_a: u64| {
        let costs = SpareCosts {
            held_bytes: vec![16, 32],
            apart_bytes: apart.into(),
            room_bytes: [(A, of_a)].into(),
            ..SpareCosts::default()
        };
        without_room(&plan(), Some(&former), held, &costs)
    };
    assert!(
        without([(A, 32), (B, 32)], 0).is_empty(),
        "A has kept a spare copy there"
    );
    assert_eq!(without([(A, 31), (B, 32)], 0), [A]);
    assert_eq!(without([(A, 32), (B, 31)], 0), [B]);
}

#[test]
fn parameters_come_first_if_they_take_less_than_the_step_gains() {
    let costs = SpareCosts {
        parameters_ms: vec![1.0, 3.0],
        ..SpareCosts::default()
    };
    let worthwhile = |step_ms| {
        let mut plan = plan();
        plan.shape.predicted.step_ms = step_ms;
        is_worthwhile(&plan, &costs)
    };
    // Half of a link is left for state while a step is computed.
    assert!(worthwhile(6.1) && !worthwhile(5.9));
    // A sender may be the busier end.
    let mut plan = plan();
    plan.sources = vec![vec![A], vec![A]];
    let first = parameters_ms(&plan, &costs);
    assert!(
        (first - 7.0).abs() < 1e-9,
        "unit 0 to C, unit 1 to B and D: {first}"
    );
}
