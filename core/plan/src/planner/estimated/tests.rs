use super::*;
use crate::cost::{Device, SegmentKind};
use crate::document::{Recompute, ScheduleKind, ScheduleSpec};
use crate::ids::WorkerId;
use proptest::prelude::*;
use varuna_model::{Transformer, gpt2};

fn model() -> Transformer {
    Transformer {
        layers: 6,
        hidden_size: 512,
        sequence_length: 256,
        vocabulary_size: 4096,
        ..gpt2::SMALL
    }
}

fn planner() -> EstimatedPlanner {
    let constraints = Constraints {
        min_workers: 1,
        max_workers: 64,
        micro_batch_size: None,
        min_depth: 1,
        max_depth: None,
        schedules: vec![ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            recompute: Recompute::None,
        }],
        device_memory_bytes: None,
    };
    EstimatedPlanner::new(model().spec(), 2, constraints)
}

fn request(workers: u64) -> PlanRequest {
    let worker = |i| WorkerInfo::nominal(WorkerId(i), "n");
    PlanRequest::first((1..=workers).map(worker).collect(), model().layout(), 32)
}

fn gpu(name: &str) -> Hardware {
    Hardware::Gpu {
        name: name.to_owned(),
        memory_bytes: 80 << 30,
    }
}

#[test]
fn costs_are_those_of_the_device_that_workers_have() {
    let of = |kind: &str, one_node| {
        let device = DeviceKind::named(kind).unwrap().device(one_node, 2);
        Costs::estimate(&model().spec(), device)
    };
    let mut planner = planner();
    assert_eq!(*planner.costs(), of("cpu-core", true), "nobody has said anything");
    planner.note_worker(&gpu("NVIDIA H100 80GB HBM3"), "a");
    assert_eq!(*planner.costs(), of("h100-80g", true));
    planner.note_worker(&gpu("NVIDIA H100 80GB HBM3"), "a");
    assert_eq!(*planner.costs(), of("h100-80g", true), "still one node");
    planner.note_worker(&gpu("NVIDIA H100 80GB HBM3"), "b");
    assert_eq!(*planner.costs(), of("h100-80g", false));
    planner.note_worker(&gpu("NVIDIA H100 80GB HBM3"), "a");
    assert_eq!(*planner.costs(), of("h100-80g", false));
    let shape = planner.plan(&request(8)).unwrap();
    assert!(shape.predicted.step_ms < 100.0 && !shape.predicted.calibrated);
}

#[test]
fn what_the_job_keeps_stays_with_the_costs_of_any_device() {
    let mut planner = planner().masking(1000).keeping(Moments::Muon);
    planner.note_worker(&gpu("NVIDIA H100 80GB HBM3"), "a");
    assert_eq!(planner.costs().mask_bytes, 1000);
    assert!(planner.costs().parameter.matrix_step > 0);
}

#[test]
fn unknown_gpu_is_planned_as_the_default_one() {
    let mut planner = planner();
    planner.note_worker(&gpu("Graphics 9000"), "a");
    assert_eq!(
        planner.costs().device,
        DeviceKind::named("a100-40g").unwrap().device(true, 2)
    );
}

#[test]
fn workers_of_another_kind_count_by_their_speed() {
    let mut planner = planner();
    assert_eq!(planner.speed_of(&gpu("Tesla T4")).to_bits(), 1.0_f64.to_bits());
    planner.note_worker(&gpu("NVIDIA A100-SXM4-80GB"), "a");
    assert!((planner.speed_of(&gpu("NVIDIA A100-SXM4-80GB")) - 1.0).abs() < 1e-12);
    let h100 = planner.speed_of(&gpu("NVIDIA H100 80GB HBM3"));
    assert!((h100 - 989.0 * 0.40 / (312.0 * 0.45)).abs() < 1e-9, "{h100}");
    assert!(planner.speed_of(&Hardware::Processor) < 1e-3);
}

#[test]
fn small_errors_and_slow_links_do_not_change_compute_costs() {
    let mut planner = planner();
    planner.note_worker(&gpu("NVIDIA A100-SXM4-80GB"), "a");
    let asked = request(4);
    let shape = planner.plan(&asked).unwrap();
    let predicted = planner.predicted_ms(&shape, &asked.workers).unwrap();
    let before = planner.clone();
    for observed in [
        predicted * 1.2,
        predicted * 0.8,
        0.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
    ] {
        assert_eq!(planner.correct(&shape, &asked.workers, observed), None);
    }
    // Any compute takes longer than that.
    assert_eq!(planner.correct(&shape, &asked.workers, predicted * 1e-6), None);
    assert_eq!(planner, before);
}

#[test]
fn plans_after_a_correction_are_chosen_by_it() {
    // On a slow link it does not pay to use many workers if compute is as fast as in the table, but it does if compute is a hundred times
    // slower.
    let mut planner = planner();
    planner.note_worker(&gpu("NVIDIA H100 80GB HBM3"), "a");
    planner.planner.costs.device = Device {
        bytes_per_s: 1e9,
        latency_ms: 0.1,
        ..planner.planner.costs.device
    };
    let asked = request(16);
    let fast = planner.plan(&asked).unwrap();
    let alone = planner.plan(&request(1)).unwrap();
    let one = &request(1).workers;
    let predicted = planner.predicted_ms(&alone, one).unwrap();
    let factor = planner.correct(&alone, one, predicted * 100.0).unwrap();
    assert!((50.0..200.0).contains(&factor), "{factor}");
    let slow = planner.plan(&asked).unwrap();
    assert!(
        slow.members().len() > fast.members().len(),
        "{} and {}",
        slow.summary(),
        fast.summary()
    );
}

/// A plan with eight micro-batches in one stage, on a worker whose memory is just enough for the activations that fused attention keeps.
fn planned_with(reports: &[ScoreMemory], is_met_first: bool) -> Recompute {
    let mut planner = planner();
    let constraints = &mut planner.planner.constraints;
    constraints.micro_batch_size = Some(4);
    constraints.schedules = [Recompute::None, Recompute::Selective, Recompute::Full]
        .map(|recompute| ScheduleSpec {
            kind: ScheduleKind::Gpipe,
            recompute,
        })
        .to_vec();
    let mut asked = request(1);
    let whole = asked.layout.whole();
    let needed = planner.costs().memory_bytes(whole, 8, 4, Recompute::None);
    asked.workers[0].memory_bytes = Some(needed);
    if is_met_first {
        planner.note_worker(&Hardware::Processor, "n");
    }
    for scores in reports {
        planner.meet_scores(*scores);
    }
    planner.note_worker(&Hardware::Processor, "n");
    let shape = planner.plan(&asked).unwrap();
    shape.schedule_of(&shape.pipelines[0].stages[0]).recompute
}

/// Measured with 12 heads and 256 tokens.
const SCORES: ScoreMemory = ScoreMemory {
    saved_bytes: 12 * 256 * 256 * 4,
    forward_bytes: 12 * 256 * 256 * 5,
    backward_bytes: 12 * 256 * 256 * 8,
};

#[test]
fn stored_scores_are_recomputed_if_memory_is_short() {
    assert_eq!(planned_with(&[], true), Recompute::None);
    for is_met_first in [true, false] {
        assert_eq!(planned_with(&[SCORES], is_met_first), Recompute::Selective);
    }
}

#[test]
fn largest_score_report_counts_once() {
    let half = ScoreMemory {
        saved_bytes: SCORES.saved_bytes / 2,
        ..SCORES
    };
    let counted = |reports: &[ScoreMemory]| {
        let mut planner = planner();
        for scores in reports {
            planner.meet_scores(*scores);
        }
        planner.costs().clone()
    };
    let once = counted(&[SCORES]);
    assert_eq!(counted(&[half, SCORES, half, SCORES]), once);
    let fused = counted(&[]);
    let grown = once.segments.iter().zip(&fused.segments);
    for (scores, fused) in grown {
        let more = match fused.kind {
            SegmentKind::Attention => SCORES.saved_bytes,
            _ => 0,
        };
        assert_eq!(scores.saved_bytes - fused.saved_bytes, more, "{:?}", fused.kind);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_correction_predicts_what_was_observed(
        workers in 1u64..12,
        exponent in -2.0f64..4.0,
    ) {
        let mut planner = planner();
        planner.note_worker(&Hardware::Processor, "a");
        let asked = request(workers);
        let shape = planner.plan(&asked).unwrap();
        let mut real = planner.planner.clone();
        let truth = 10f64.powf(exponent);
        real.costs.calibration.compute = truth;
        let observed = real.predicted_ms(&shape, &asked.workers).unwrap();
        let before = planner.predicted_ms(&shape, &asked.workers).unwrap();
        match planner.correct(&shape, &asked.workers, observed) {
            Some(factor) => {
                let after = planner.predicted_ms(&shape, &asked.workers).unwrap();
                prop_assert!((after / observed - 1.0).abs() <= CLOSE, "{after} for {observed}");
                prop_assert!((factor / truth - 1.0).abs() < 0.3, "{factor} for {truth}");
                // The second time there is nothing left to correct.
                prop_assert_eq!(planner.correct(&shape, &asked.workers, observed), None);
            }
            None => prop_assert!(
                (observed / before - 1.0).abs() <= OFF || truth < 0.5,
                "{} for {}", before, observed
            ),
        }
    }
}
