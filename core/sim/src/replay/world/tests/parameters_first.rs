//! The first step after a loss begins with parameters, while the rest of the state is on its way.

use super::*;

/// Five nodes, of which one is a spare. One of them goes, and the spare lacks its state.
const SPARE: &str =
    "0,add,a\n0,add,b\n0,add,c\n0,add,d\n0,add,e\n120,remove,c\n180,add,f\n240,remove,a\n300,add,g\n";

/// `bytes_per_s`: the bandwidth of the links.
fn of(bytes_per_s: f64, parameters_first: bool, skip: bool) -> Report {
    let mut setup = Setup {
        parameters_first,
        skip,
        ..setup()
    };
    setup.planner.costs.device.bytes_per_s = bytes_per_s;
    // Else there would be one pipeline, where nobody else has what is lost.
    setup.planner.costs.ring_bytes_per_s = Some(0.9e9);
    setup.parts.state_bytes_per_parameter = None;
    let report = replay(&trace(SPARE), &setup).unwrap();
    sums_up(&report);
    report
}

/// Pauses after losses, milliseconds.
fn pauses(report: &Report) -> Vec<f64> {
    let all = report.reconfigurations.iter();
    let lost = all.filter(|r| r.why == PlanCause::Loss && r.moved_bytes > 0.0);
    lost.map(|r| r.pause_ms).collect()
}

#[test]
fn training_waits_for_parameters_instead_of_state() {
    let [first, whole] = [true, false].map(|parameters_first| of(0.6e9, parameters_first, true));
    let (first_ms, whole_ms) = (pauses(&first), pauses(&whole));
    assert!(!whole_ms.is_empty() && first_ms.len() == whole_ms.len());
    for (first, whole) in first_ms.iter().zip(&whole_ms) {
        // A parameter in single precision is a third of its state; connections that are done with parameters go on with state.
        let part = (first - 190.0) / (whole - 190.0);
        assert!((0.3..0.6).contains(&part), "{first} of {whole} ms");
    }
    let [of_first, of_whole] = [&first, &whole].map(|r| percent(r, Cause::Transfer));
    assert!(of_first < 0.9 * of_whole, "{of_first} % instead of {of_whole} %");
    assert!(first.goodput >= whole.goodput);
    // Parameters are sent in addition.
    assert!(first.moved_bytes > whole.moved_bytes);
}

#[test]
fn skipping_equal_steps_changes_nothing_of_it() {
    let [with, without] = [true, false].map(|skip| of(0.6e9, true, skip));
    assert!((with.goodput - without.goodput).abs() < 2e-3);
    assert!(with.steps.abs_diff(without.steps) <= 1);
}

#[test]
fn slow_links_carry_the_state_alone() {
    // Parameters take more than a second, and a step less than half of one.
    let [first, whole] = [true, false].map(|parameters_first| of(0.05e9, parameters_first, true));
    assert!(pauses(&whole).iter().any(|ms| *ms > 3_000.0));
    assert_eq!(first, whole);
}
