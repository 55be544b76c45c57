use super::*;
use crate::cost::{Device, GptSizes};
use crate::document::{Recompute, ScheduleKind};
use crate::sync::{self, Pipelines};

fn costs() -> Costs {
    let gpt = GptSizes {
        layers: 6,
        hidden: 128,
        sequence: 64,
        vocabulary: 300,
        tied: false,
    };
    Costs::estimate(gpt, Device::CPU_CORE)
}

fn schedule() -> ScheduleSpec {
    ScheduleSpec {
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
        recompute: Recompute::None,
    }
}

fn host(cores: u32) -> Host {
    Host {
        cores,
        threads: 1,
        slowdown: vec![1.0],
    }
}

fn cuts(costs: &Costs, stages: u32) -> Vec<SegmentRange> {
    let n = costs.layout().segments;
    let cut = |s: u32| SegmentRange {
        start: s * n / stages,
        end: (s + 1) * n / stages,
    };
    (0..stages).map(cut).collect()
}

fn step(costs: &Costs, host: &Host, stages: u32, pipelines: usize) -> f64 {
    let stages = cuts(costs, stages);
    let line = Line {
        stages,
        samples: 16 / pipelines as u64,
        policies: Vec::new(),
        speeds: Vec::new(),
    };
    let setting = Setting {
        costs,
        host,
        schedule: schedule(),
        micro_batch_size: 2,
        per_node: usize::MAX,
    };
    step_ms(setting, &vec![line; pipelines])
}

/// The simulator of workers that share nothing.
fn alone(costs: &Costs, stages: u32, pipelines: usize) -> f64 {
    let stages = cuts(costs, stages);
    let n = u32::try_from(8 / pipelines).unwrap();
    let times: Vec<_> = stages
        .iter()
        .map(|r| crate::simulate::StageTimes {
            forward_ms: costs.forward_ms(*r, 2),
            backward_ms: costs.backward_ms(*r, 2),
            recompute_ms: 0.0,
            transfer_ms: if r.start == 0 {
                0.0
            } else {
                costs.transfer_ms(r.start, 2)
            },
        })
        .collect();
    let lists = crate::schedule::lists(&vec![schedule(); stages.len()], n);
    let run = crate::simulate::simulate(&lists, &times, n);
    let kinds = [Pipelines {
        stages: &stages,
        workers: stages.len(),
        ends_ms: &run.ends_ms,
        count: pipelines,
    }];
    sync::step_ms(costs, &kinds)
}

#[test]
fn with_cores_for_everyone_it_is_the_simulation_of_workers_that_share_nothing() {
    let costs = costs();
    for (stages, pipelines) in [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)] {
        // Each worker computes, sends and reduces at once at most.
        let shared = step(&costs, &host(64), stages, pipelines);
        let apart = alone(&costs, stages, pipelines) + costs.device.latency_ms;
        assert!(
            (shared / apart - 1.0).abs() < 1e-6,
            "P{stages} D{pipelines}: {shared} and {apart}"
        );
    }
}

#[test]
fn workers_beyond_the_cores_gain_nothing_but_their_rings() {
    let costs = costs();
    let (two, four) = (step(&costs, &host(2), 1, 2), step(&costs, &host(2), 1, 4));
    assert!(four >= two * 0.999, "{four} < {two}");
    let one = step(&costs, &host(2), 1, 1);
    assert!(
        two < one * 0.75,
        "two workers on two cores do help: {two} of {one}"
    );
    let single = step(&costs, &host(1), 1, 2);
    assert!(
        single >= one * 0.999,
        "on one core they do not: {single} of {one}"
    );
}

#[test]
fn a_bubble_is_time_for_others() {
    let costs = costs();
    // Four stages on two cores: less than twice as long as on four, since a stage waits about half of its time.
    let (on_two, on_four) = (step(&costs, &host(2), 4, 1), step(&costs, &host(4), 4, 1));
    assert!(
        on_two > on_four * 1.05 && on_two < on_four * 1.9,
        "{on_two} of {on_four}"
    );
}

#[test]
fn neighbours_slow_each_other_by_what_was_measured() {
    let costs = costs();
    let crowded = Host {
        slowdown: vec![1.0, 1.2],
        ..host(2)
    };
    assert!((step(&costs, &crowded, 1, 1) / step(&costs, &host(2), 1, 1) - 1.0).abs() < 1e-9);
    let ratio = step(&costs, &crowded, 1, 2) / step(&costs, &host(2), 1, 2);
    assert!(ratio > 1.15 && ratio < 1.21, "{ratio}");
}

#[test]
fn nodes_have_cores_of_their_own() {
    let costs = costs();
    let stages = cuts(&costs, 1);
    let line = Line {
        stages,
        samples: 4,
        policies: Vec::new(),
        speeds: Vec::new(),
    };
    let on = |per_node| {
        let setting = Setting {
            costs: &costs,
            host: &host(1),
            schedule: schedule(),
            micro_batch_size: 2,
            per_node,
        };
        step_ms(setting, &vec![line.clone(); 4])
    };
    assert!(on(1) < on(2) * 0.7 && on(2) < on(4) * 0.7);
}

#[test]
fn a_slow_worker_holds_its_pipeline_up() {
    let (costs, host) = (costs(), host(8));
    let stages = cuts(&costs, 2);
    let with = |speeds: Vec<f64>| {
        let line = Line {
            stages: stages.clone(),
            samples: 16,
            policies: Vec::new(),
            speeds,
        };
        let setting = Setting {
            costs: &costs,
            host: &host,
            schedule: schedule(),
            micro_batch_size: 2,
            per_node: usize::MAX,
        };
        step_ms(setting, &[line])
    };
    assert!(with(vec![1.0, 0.5]) > with(vec![1.0, 1.0]) * 1.6);
}
