//! Checkpoints that are made more often while nodes are lost often.

use super::*;

/// Two nodes, each of which holds half of the state alone. One of them is replaced every `seconds`.
fn lost_every(seconds: u64) -> Trace {
    let lost = (1..=12).map(|i| {
        let at = i * seconds;
        format!("{at},remove,n{i}\n{at},add,n{}\n", i + 2)
    });
    let rows: String = lost.collect();
    trace(&format!("0,add,n1\n0,add,n2\n{rows}{},add,last\n", 13 * seconds))
}

fn of(trace: &Trace, adaptive_checkpoints: bool, skip: bool) -> Report {
    let setup = Setup {
        checkpoint_steps: Some(1_000),
        adaptive_checkpoints,
        skip,
        ..setup()
    };
    let report = replay(trace, &setup).unwrap();
    sums_up(&report);
    report
}

#[test]
fn frequent_losses_of_state_repeat_less_work() {
    let trace = lost_every(200);
    let [adaptive, fixed] =
        [true, false].map(|adaptive| percent(&of(&trace, adaptive, true), Cause::Rollback));
    assert!(adaptive < fixed / 3.0, "{adaptive} % instead of {fixed} %");
}

/// What they cost is not in the losses, so the report says how many there were.
#[test]
fn checkpoints_are_counted_with_and_without_skipped_steps() {
    let trace = lost_every(200);
    assert_eq!(
        of(&trace, false, false).checkpoints.count,
        0,
        "1,000 steps are never reached"
    );
    let [each, skipped] = [false, true].map(|skip| of(&trace, true, skip).checkpoints);
    assert!(each.count > 12 && each.upload_s > 0.0, "{each:?}");
    assert!(
        each.count.abs_diff(skipped.count) <= each.count / 10,
        "{each:?} and {skipped:?}"
    );
}

#[test]
fn checkpoints_also_come_between_skipped_steps() {
    let trace = lost_every(200);
    let [with, without] = [true, false].map(|skip| of(&trace, true, skip));
    assert!(
        with.simulated_steps * 2 < without.simulated_steps,
        "{}",
        with.simulated_steps
    );
    for report in [with, without] {
        // Before the first loss there are only the job's checkpoints.
        let later = report.reconfigurations.iter().skip(2);
        let most = later.map(|r| r.rolled_back_steps).max();
        assert!(most.is_some_and(|most| most <= 60), "{most:?} of about 600 steps");
    }
}

#[test]
fn losses_that_cost_no_state_change_nothing() {
    let text =
        "0,add,a\n0,add,b\n0,add,c\n0,add,d\n200,remove,a\n200,add,e\n400,remove,e\n400,add,f\n600,add,g\n";
    let [adaptive, fixed] = [true, false].map(|adaptive| of(&trace(text), adaptive, true));
    assert_eq!(adaptive, fixed);
}
