mod adaptive_checkpoints;
mod extra_memory;
mod parameters_first;

use super::*;
use crate::replay::Cause;
use crate::replay::report::PlanCause;
use varuna_model::{Transformer, gpt2};
use varuna_plan::cost::{Costs, Device};
use varuna_plan::layout::SHARDED_RANGES;
use varuna_plan::{Constraints, PlanRequest, Recompute, ScheduleKind, ScheduleSpec, WorkerInfo};

/// A planner for a model of six segments, with a step of about a second on two workers.
fn planner(most: u32) -> CostPlanner {
    let sizes = Transformer {
        layers: 6,
        hidden_size: 512,
        sequence_length: 256,
        vocabulary_size: 8192,
        ..gpt2::SMALL
    };
    let device = Device {
        flops_per_s: 2.0e12,
        bytes_per_s: 0.9e9,
        ..Device::CPU_CORE
    };
    CostPlanner {
        costs: Costs::estimate(&sizes.spec(), device),
        constraints: Constraints {
            min_workers: 2,
            max_workers: most,
            micro_batch_size: Some(1),
            min_depth: 2,
            max_depth: Some(2),
            schedules: vec![ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            }],
            device_memory_bytes: None,
        },
    }
}

fn setup() -> Setup {
    let planner = planner(64);
    Setup {
        layout: planner.costs.layout(),
        planner,
        global_batch_size: 32,
        min_workers: 2,
        parts: RecoveryParts {
            version: 1,
            source: "made up".into(),
            detect_ms: 70.0,
            plan_ms: 100.0,
            connect_ms: 4.0,
            transfer_ms: 40.0,
            transfer_bytes: 66e6,
            gone_ms: None,
            first_step_extra_ms: 0.0,
            state_bytes_per_parameter: Some(16.0),
        },
        notice_s: 0.0,
        checkpoint_steps: Some(50),
        adaptive_checkpoints: false,
        parameters_first: false,
        skip: true,
    }
}

fn trace(text: &str) -> Trace {
    Trace::read("t.csv", &format!("time_s,event,node\n{text}"), 1).unwrap()
}

const CALM: &str = "0,add,a\n0,add,b\n0,add,c\n0,add,d\n120,remove,c\n240,add,e\n400,remove,a\n";

fn percent(report: &Report, cause: Cause) -> f64 {
    report.losses.iter().find(|l| l.cause == cause).unwrap().percent
}

fn sums_up(report: &Report) {
    let parts: f64 = report.losses.iter().map(|l| l.percent).sum();
    let whole = parts + report.goodput * 100.0;
    assert!((whole - 100.0).abs() < 1e-6, "{whole}: {:?}", report.losses);
    assert!((0.0..=1.0).contains(&report.goodput), "{}", report.goodput);
}

#[test]
fn state_bytes_match_the_planner() {
    // Bytes that were moved by the growth.
    let moved = |bytes: Option<f64>| {
        let mut setup = setup();
        setup.parts.state_bytes_per_parameter = bytes;
        replay(&trace(CALM), &setup).unwrap().reconfigurations[2].moved_bytes
    };
    let counted = setup().planner.costs.parameter.moved as f64;
    assert!(moved(None) > 0.0 && moved(None) == moved(Some(counted)));
    assert!((moved(Some(2.0 * counted)) / moved(None) - 2.0).abs() < 1e-9);
}

#[test]
fn a_loss_and_a_growth_cost_what_their_parts_cost() {
    let report = replay(&trace(CALM), &setup()).unwrap();
    sums_up(&report);
    let whys: Vec<PlanCause> = report.reconfigurations.iter().map(|r| r.why).collect();
    assert_eq!(
        whys,
        [PlanCause::Start, PlanCause::Loss, PlanCause::Change],
        "{:?}",
        report.reconfigurations
    );
    assert!(report.reconfigurations.iter().all(|r| r.ran));
    // detect, plan, connect, and some latencies
    let pause = report.reconfigurations[1].pause_ms - report.reconfigurations[1].moved_bytes / 0.9e6;
    assert!((174.0..280.0).contains(&pause), "{pause}");
    let growth = &report.reconfigurations[2];
    assert!(
        growth.moved_bytes > 0.0 && growth.pause_ms < growth.moved_bytes / 0.9e6 + 60.0,
        "{growth:?}"
    );
    let detect = percent(&report, Cause::Detect) / 100.0 * 400.0;
    assert!((0.03..0.08).contains(&detect), "{detect}");
    assert!(percent(&report, Cause::LostStep) > 0.0);
    assert!(report.goodput > 0.97, "{}", report.goodput);
}

#[test]
fn what_is_left_out_changes_nothing() {
    let of = |skip| replay(&trace(CALM), &Setup { skip, ..setup() }).unwrap();
    let (with, without) = (of(true), of(false));
    assert!(
        with.simulated_steps * 4 < without.simulated_steps,
        "{}",
        with.simulated_steps
    );
    assert!(
        (with.goodput - without.goodput).abs() < 2e-3,
        "{} {}",
        with.goodput,
        without.goodput
    );
    assert!(
        with.steps.abs_diff(without.steps) <= 1,
        "{} {}",
        with.steps,
        without.steps
    );
    let plans = |r: &Report| -> Vec<(u64, String)> {
        let of = |x: &crate::replay::report::Reconfiguration| (x.at_s.round() as u64, x.plan.clone());
        r.reconfigurations.iter().map(of).collect()
    };
    assert_eq!(plans(&with), plans(&without));
}

#[test]
fn the_same_trace_gives_the_same_bytes() {
    let of = || serde_json::to_string(&replay(&trace(CALM), &setup()).unwrap()).unwrap();
    assert_eq!(of(), of());
}

/// After an intended change, put the output of the test into the file.
#[test]
fn a_small_trace_reads_like_this() {
    let found = crate::replay::text(&replay(&trace(CALM), &setup()).unwrap());
    assert_eq!(found, include_str!("tests/small.txt"), "\n{found}");
}

#[test]
fn longer_notice_is_never_worse() {
    let of = |notice_s| replay(&trace(CALM), &Setup { notice_s, ..setup() }).unwrap();
    let mut before = 0.0;
    // The node is idle for the last one or two seconds of the notice. With two of four nodes this is 0.2 % of the trace. Nothing else is lost
    // to a notice, but whole steps count: the one that runs at the end may be finished or not.
    for notice_s in [0.0, 0.5, 5.0, 15.0, 30.0, 60.0, 119.0] {
        let report = of(notice_s);
        sums_up(&report);
        let left_early = percent(&report, Cause::Notice) / 100.0;
        let whole_step = report.goodput / report.steps as f64;
        assert!(left_early <= 2e-3, "{notice_s} s: {left_early}");
        assert!(
            report.goodput + left_early >= before - whole_step,
            "{notice_s} s: {} after {before}",
            report.goodput
        );
        before = report.goodput;
    }
    let noticed = of(60.0);
    assert!(noticed.reconfigurations.iter().all(|r| r.why != PlanCause::Loss));
    assert_eq!(percent(&noticed, Cause::Detect), 0.0);
}

#[test]
fn the_loss_of_all_holders_goes_back_to_the_last_checkpoint() {
    let text = "0,add,a\n0,add,b\n200,remove,a\n210,add,c\n400,remove,b\n";
    let report = replay(&trace(text), &setup()).unwrap();
    sums_up(&report);
    let back: u64 = report.reconfigurations.iter().map(|r| r.rolled_back_steps).sum();
    assert!((1..=51).contains(&back), "{back}");
    assert!(percent(&report, Cause::Rollback) > 0.0);
    let none = Setup {
        checkpoint_steps: None,
        ..setup()
    };
    let anew = replay(&trace(text), &none).unwrap();
    sums_up(&anew);
    assert!(anew.steps < report.steps);
}

#[test]
fn checkpoint_saves_the_last_steps_if_all_leave_with_notice() {
    let text = "0,add,a\n0,add,b\n630,remove,a\n630,remove,b\n640,add,c\n640,add,d\n900,remove,c\n";
    let back = |notice_s| {
        let report = replay(&trace(text), &Setup { notice_s, ..setup() }).unwrap();
        sums_up(&report);
        let all = report.reconfigurations.iter();
        all.map(|r| r.rolled_back_steps).sum::<u64>()
    };
    let (unnoticed, noticed) = (back(0.0), back(60.0));
    assert!(noticed <= 3 && unnoticed > 2 * noticed, "{unnoticed}, {noticed}");
}

#[test]
fn waiting_for_the_minimum_loses_no_training() {
    let text = "0,add,a\n1000,add,b\n1000,add,c\n1200,remove,c\n1200,remove,b\n5000,add,d\n5000,add,e\n5100,remove,d\n";
    let report = replay(&trace(text), &setup()).unwrap();
    sums_up(&report);
    assert!(report.goodput > 0.8, "{:?}", report);
    assert!(report.simulated_steps < 2_000, "{}", report.simulated_steps);
}

#[test]
fn a_trace_that_never_has_enough_nodes_is_refused() {
    let why = replay(&trace("0,add,a\n10,remove,a\n"), &setup()).unwrap_err();
    assert_eq!(why, ReplayError::NoPlan(1));
}

/// Eight nodes for one minute.
const EIGHT: &str = "0,add,a\n0,add,b\n0,add,c\n0,add,d\n0,add,e\n0,add,f\n0,add,g\n0,add,h\n60,remove,h\n";

/// A planner for workers with this much memory, in MiB.
fn limited(mib: u64) -> CostPlanner {
    let mut planner = planner(64);
    planner.constraints.device_memory_bytes = Some(mib << 20);
    planner
}

/// Whether the planner finds a plan for eight workers with this much memory.
fn is_planned(layout: Layout, mib: u64) -> bool {
    let worker = |id: u64| WorkerInfo::nominal(WorkerId(id), format!("node{id}"));
    let workers = (1..=8).map(worker).collect();
    let request = PlanRequest::first(workers, layout, setup().global_batch_size);
    limited(mib).explain(&request).is_ok()
}

/// The least memory, in MiB, for which there is a plan.
fn least_memory(layout: Layout) -> u64 {
    let (mut too_little, mut enough) = (0, 1 << 14);
    while too_little + 1 < enough {
        let middle = u64::midpoint(too_little, enough);
        if is_planned(layout, middle) {
            enough = middle;
        } else {
            too_little = middle;
        }
    }
    enough
}

#[test]
fn sharded_state_trains_where_whole_state_does_not_fit() {
    let undivided = planner(64).costs.layout();
    let shared = undivided.in_ranges(SHARDED_RANGES);
    let [least, enough] = [shared, undivided].map(least_memory);
    assert!(
        least < enough,
        "{least} MiB, and {enough} where nothing is shared"
    );
    let between = u64::midpoint(least, enough - 1);
    for (layout, has_plan) in [(undivided, false), (shared, true)] {
        assert_eq!(is_planned(layout, between), has_plan, "{between} MiB");
        let setup = Setup {
            planner: limited(between),
            layout,
            ..setup()
        };
        match replay(&trace(EIGHT), &setup) {
            Ok(report) => {
                sums_up(&report);
                assert!(has_plan && report.steps > 0, "{report:?}");
            }
            Err(why) => assert!(!has_plan && why == ReplayError::NoPlan(8), "{why}"),
        }
    }
}

#[test]
fn a_unit_that_is_a_range_has_its_part_of_the_segments_bytes() {
    let whole = unit_bytes(&setup());
    let shared = Setup {
        layout: setup().layout.in_ranges(SHARDED_RANGES),
        ..setup()
    };
    let ranges = unit_bytes(&shared);
    assert_eq!(ranges.len(), shared.layout.units());
    let joined: Vec<f64> = ranges
        .chunks(SHARDED_RANGES as usize)
        .map(|of_segment| of_segment.iter().sum())
        .collect();
    assert_eq!(joined.len(), whole.len());
    for (joined, whole) in joined.iter().zip(&whole) {
        assert!((joined - whole).abs() <= 1e-9 * whole, "{joined} {whole}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]
    #[test]
    fn any_trace_adds_up(seed in 0u64..1_000_000, noticed: bool) {
        let mut rng = crate::rng::Rng(seed);
        let mut text = String::new();
        let mut there: Vec<u64> = Vec::new();
        let (mut at, mut born) = (0u64, 0u64);
        for _ in 0..rng.range(4, 16) {
            for _ in 0..rng.range(1, 3) {
                if there.len() > 2 && rng.chance(50) {
                    let gone = there.remove(usize::try_from(rng.below(there.len() as u64)).unwrap());
                    text += &format!("{}.{:03},remove,n{gone}\n", at / 1000, at % 1000);
                } else {
                    born += 1;
                    there.push(born);
                    text += &format!("{}.{:03},add,n{born}\n", at / 1000, at % 1000);
                }
            }
            at += if rng.chance(30) { rng.range(1, 3_000) } else { rng.range(1_000, 300_000) };
        }
        text += &format!("{}.{:03},add,last\n", at / 1000, at % 1000);
        let notice_s = if noticed { 30.0 } else { 0.0 };
        match replay(&trace(&text), &Setup { notice_s, ..setup() }) {
            Ok(report) => sums_up(&report),
            Err(why) => proptest::prop_assert!(matches!(why, ReplayError::NoPlan(_)), "{why}\n{text}"),
        }
    }
}
