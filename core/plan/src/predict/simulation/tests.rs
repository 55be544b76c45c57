use super::*;
use crate::document::{Recompute, ScheduleKind, ScheduleSpec};
use crate::predict::rendezvous::rendezvous;
use crate::schedule::lists;

#[test]
fn without_transfers_1f1b_takes_the_closed_form() {
    let spec = ScheduleSpec {
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
        recompute: Recompute::None,
    };
    for (p, n) in [(4usize, 8u32), (8, 20), (3, 1), (1, 5)] {
        let lists = lists(&vec![spec; p], n);
        let times = vec![
            StageTimes {
                forward_ms: 1.0,
                backward_ms: 2.0,
                recompute_ms: 1.0,
                transfer_ms: 0.0
            };
            p
        ];
        let took = simulate(&lists, &times, n);
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let expected = (f64::from(n) + p as f64 - 1.0) * 3.0;
        assert!(
            (took.makespan_ms() - expected).abs() < 1e-9,
            "P {p} n {n}: {took:?}"
        );
        assert!((took.busy_ms[0] - 3.0 * f64::from(n)).abs() < 1e-9);
    }
}

#[test]
fn recompute_and_transfers_make_a_step_longer() {
    let spec = |recompute| ScheduleSpec {
        kind: ScheduleKind::Gpipe,
        recompute,
    };
    let time = |recompute, transfer_ms| {
        let lists = lists(&[spec(recompute); 3], 6);
        simulate(
            &lists,
            &[StageTimes {
                forward_ms: 1.0,
                backward_ms: 2.0,
                recompute_ms: 1.0,
                transfer_ms,
            }; 3],
            6,
        )
        .makespan_ms()
    };
    assert!(time(Recompute::Full, 0.0) > time(Recompute::None, 0.0));
    assert!(time(Recompute::None, 0.5) > time(Recompute::None, 0.0));
}

fn uniform(stages: usize, transfer_ms: f64) -> Vec<StageTimes> {
    vec![
        StageTimes {
            forward_ms: 1.0,
            backward_ms: 2.0,
            recompute_ms: 1.0,
            transfer_ms,
        };
        stages
    ]
}

#[test]
fn rendezvous_matches_the_closed_form_without_transfers() {
    for (p, n) in [(4usize, 8u32), (8, 20), (3, 1), (1, 5), (2, 3), (5, 2)] {
        let mut computed = 0;
        let took = rendezvous(&uniform(p, 0.0), n, |span| {
            computed += u32::from(matches!(span.activity, Activity::Compute(_)));
        });
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let expected = (f64::from(n) + p as f64 - 1.0) * 3.0;
        assert!(
            (took.makespan_ms() - expected).abs() < 1e-9,
            "P {p} n {n}: {took:?}"
        );
        assert_eq!(computed, 2 * n * u32::try_from(p).unwrap());
    }
}

#[test]
fn inner_stage_waits_for_four_transfers_per_micro_batch() {
    let steady = |n| rendezvous(&uniform(4, 0.5), n, |_| {}).makespan_ms();
    let period = (steady(40) - steady(20)) / 20.0;
    assert!((period - (3.0 + 4.0 * 0.5)).abs() < 1e-9, "{period}");
}

#[test]
fn a_stage_sends_one_thing_at_a_time() {
    let spec = ScheduleSpec {
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 2.0 },
        recompute: Recompute::None,
    };
    let makespan = |n| {
        let lists = lists(&[spec; 3], n);
        let mut sending = [0.0f64; 3];
        let took = run(
            &lists,
            &uniform(3, 4.0),
            n,
            |_, ms| ms,
            |span| {
                if !matches!(span.activity, Activity::Compute(_)) {
                    assert!(span.start_ms >= sending[span.stage], "{span:?}");
                    sending[span.stage] = span.end_ms;
                }
            },
        );
        took.makespan_ms()
    };
    // The two transfers of the inner stage take 8 ms, longer than its 3 ms of compute, so they determine the period.
    let period = (makespan(60) - makespan(40)) / 20.0;
    assert!((period - 8.0).abs() < 1e-9, "{period}");
}
