use super::*;
use crate::cost::Device;
use crate::document::{Recompute, ScheduleKind};
use crate::predict::step::{PipelineGroup, StepTotals};
use crate::predict::work::StageWork;
use varuna_model::{Transformer, gpt2};

fn costs() -> Costs {
    let gpt = Transformer {
        layers: 6,
        hidden_size: 128,
        sequence_length: 64,
        vocabulary_size: 300,
        tied_head: false,
        ..gpt2::SMALL
    };
    Costs::estimate(&gpt.spec(), Device::CPU_CORE)
}

fn work(stages: &[SegmentRange], speeds: &[f64], samples: u64, pipelines: usize) -> StepWork {
    let stage = |(segments, speed): (&SegmentRange, &f64)| StageWork {
        segments: *segments,
        recompute: Recompute::None,
        speed: *speed,
    };
    let pipeline = PipelineWork {
        stages: stages.iter().zip(speeds).map(stage).collect(),
        samples,
    };
    StepWork {
        pipelines: vec![pipeline; pipelines],
        micro_batch_size: 2,
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
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
    let work = work(&cuts(costs, stages), &[1.0; 8], 16 / pipelines as u64, pipelines);
    step_ms(costs, host, &work, Topology::ONE_NODE)
}

/// The step time by the simulator for workers that share no cores.
fn alone(costs: &Costs, stages: u32, pipelines: usize) -> f64 {
    let work = work(&cuts(costs, stages), &[1.0; 8], 16 / pipelines as u64, pipelines);
    let group = PipelineGroup::new(costs, &work, &work.pipelines[0], pipelines, |_, ms| ms, |_| {});
    StepTotals::new(costs, &[group], None).step_ms
}

#[test]
fn enough_cores_equal_the_simulation_without_sharing() {
    let costs = costs();
    for (stages, pipelines) in [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4), (2, 2)] {
        // Each worker computes, sends and reduces at most one thing at a time.
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
    // Four stages on two cores take less than twice as long as on four, because a stage waits for about half of its time.
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
    let work = work(&cuts(&costs, 1), &[1.0], 4, 4);
    let on = |workers_per_node| step_ms(&costs, &host(1), &work, Topology { workers_per_node });
    assert!(on(1) < on(2) * 0.7 && on(2) < on(4) * 0.7);
}

#[test]
fn a_slow_worker_holds_its_pipeline_up() {
    let (costs, host) = (costs(), host(8));
    let stages = cuts(&costs, 2);
    let with = |speeds: [f64; 2]| step_ms(&costs, &host, &work(&stages, &speeds, 16, 1), Topology::ONE_NODE);
    assert!(with([1.0, 0.5]) > with([1.0, 1.0]) * 1.6);
}
