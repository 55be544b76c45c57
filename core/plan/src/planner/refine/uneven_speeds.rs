//! Workers of unequal speed within one plan: fewer segments, or fewer samples, for the slower ones.
//!
//! A few shapes are taken as they are (which worker runs which stage, how deep pipelines are), cut anew with each worker's own
//! speed, and given shares so that all pipelines end together. State moves only across the cuts. Where all workers are alike
//! this does nothing.

use crate::document::{Pipeline, Prediction, SampleRange, ScheduleSpec, Shape, Stage};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::partition::partition_all;
use crate::planner::problem::Problem;
use crate::planner::request::WorkerInfo;
use crate::planner::state_moves::move_ms;
use crate::predict::work::rounded_speed;
use std::collections::{BTreeMap, BTreeSet};

/// The best of these shapes with cuts and shares by speed, where it is better than what is predicted of another; none where all
/// workers are alike.
pub(in crate::planner) fn refine(
    problem: &Problem,
    shapes: &[Option<&Shape>],
    other: &Prediction,
) -> Option<Shape> {
    let request = problem.request;
    let speeds: BTreeSet<u64> = request
        .workers
        .iter()
        .map(|w| rounded_speed(w.speed).to_bits())
        .collect();
    if speeds.len() < 2 {
        return None;
    }
    let offered: BTreeMap<WorkerId, &WorkerInfo> = request.workers.iter().map(|w| (w.id, w)).collect();
    let fits = |shape: &&Shape| {
        let known = shape.members().iter().all(|w| offered.contains_key(w));
        let stages = shape.pipelines.iter().flat_map(|p| &p.stages);
        let last = stages.map(|s| s.segments.end).max();
        let plain = shape.schedule.kind.chunks() == 1;
        plain && known && last == Some(request.layout.segments)
    };
    let made = shapes
        .iter()
        .flatten()
        .copied()
        .filter(fits)
        .filter_map(|shape| by_speed(problem, shape, &offered));
    let effective_ms = |p: &Prediction| problem.effective_ms(p);
    let best = made.min_by(|a, b| effective_ms(&a.predicted).total_cmp(&effective_ms(&b.predicted)))?;
    (effective_ms(&best.predicted) < effective_ms(other) * (1.0 - 1e-9)).then_some(best)
}

/// One shape by speed; none where it does not fit into memory, or a pipeline would get no sample.
fn by_speed(problem: &Problem, shape: &Shape, offered: &BTreeMap<WorkerId, &WorkerInfo>) -> Option<Shape> {
    let m = shape.micro_batch_size;
    let micro_batches = problem.micro_batches(m);
    let mut cuts = Vec::with_capacity(shape.pipelines.len());
    for pipeline in &shape.pipelines {
        let stages = pipeline.stages.iter();
        let stages = stages.filter_map(|s| Some((*offered.get(&s.worker)?, shape.schedule_of(s))));
        let stages: Vec<(&WorkerInfo, ScheduleSpec)> = stages.collect();
        cuts.push(cut_by_speed(problem, m, &stages, micro_batches)?);
    }
    let shares = shares(&cuts, micro_batches)?;
    let mut start = 0;
    let mut pipelines = Vec::with_capacity(cuts.len());
    for ((pipeline, cut), share) in shape.pipelines.iter().zip(&cuts).zip(shares) {
        let end = (start + share * u64::from(m)).min(problem.request.global_batch_size);
        let stage = |(stage, segments): (&Stage, &SegmentRange)| Stage {
            segments: *segments,
            ..stage.clone()
        };
        pipelines.push(Pipeline {
            stages: pipeline.stages.iter().zip(&cut.stages).map(stage).collect(),
            samples: SampleRange { start, end },
        });
        start = end;
    }
    let mut made = Shape {
        pipelines,
        spares: Vec::new(),
        micro_batch_size: m,
        schedule: shape.schedule,
        predicted: Prediction {
            calibrated: problem.costs.calibrated,
            ..shape.predicted
        },
    };
    made.predicted.step_ms = problem.predict(&made).step_ms;
    made.predicted.move_ms = move_ms(problem, &made);
    let all_have_samples = made.pipelines.iter().all(|p| p.samples.start < p.samples.end);
    all_have_samples.then_some(made)
}

/// The cuts of one pipeline whose slowest stage is as fast as can be, each worker at its own speed.
pub(super) fn cut_by_speed(
    problem: &Problem,
    m: u32,
    workers: &[(&WorkerInfo, ScheduleSpec)],
    micro_batches: u64,
) -> Option<PipelineCut> {
    let (depth, costs) = (workers.len(), problem.costs);
    let work = |r: SegmentRange, at: usize| {
        let again = costs.recompute_ms(r, m, workers[at].1.recompute);
        let ms = costs.forward_ms(r, m) + costs.backward_ms(r, m) + again;
        ms / rounded_speed(workers[at].0.speed)
    };
    // Shares are not known yet: room for all of the batch is enough for any.
    let most = u32::try_from(micro_batches).unwrap_or(u32::MAX).min(u32::MAX / 2);
    let cost = |r: SegmentRange, later: u32| {
        let at = depth.checked_sub(later as usize + 1)?;
        let (worker, schedule) = &workers[at];
        let need = problem.stage_bytes(schedule.kind, schedule.recompute, r, (depth, at), most, m);
        (need <= problem.capacity(worker)).then(|| work(r, at))
    };
    let cuts = partition_all(costs.layout().segments, u32::try_from(depth).ok()?, cost);
    let stages = cuts.stages(u32::try_from(depth).ok()?)?;
    let each: Vec<f64> = stages.iter().enumerate().map(|(at, r)| work(*r, at)).collect();
    let period_ms = each.iter().copied().fold(0.0, f64::max);
    Some(PipelineCut {
        fill_ms: each.iter().sum::<f64>() - period_ms,
        stages,
        period_ms,
    })
}

/// How a pipeline is cut: it takes `fill_ms + period_ms * n` for n micro-batches.
pub(super) struct PipelineCut {
    pub(super) stages: Vec<SegmentRange>,
    period_ms: f64,
    fill_ms: f64,
}

/// Micro-batches of each pipeline: the next one always to the one that would end first; at least one each.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn shares(cuts: &[PipelineCut], micro_batches: u64) -> Option<Vec<u64>> {
    let left = micro_batches.checked_sub(cuts.len() as u64)?;
    let mut shares = vec![1u64; cuts.len()];
    for _ in 0..left {
        let end = |(i, cut): (usize, &PipelineCut)| (cut.fill_ms + cut.period_ms * (shares[i] + 1) as f64, i);
        let ends = cuts.iter().enumerate().map(end);
        let (_, first) = ends.min_by(|a, b| a.0.total_cmp(&b.0))?;
        shares[first] += 1;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check_shape;
    use crate::cost::{Costs, Device};
    use crate::document::{Recompute, ScheduleKind};
    use crate::planner::{Constraints, CostPlanner, PlanRequest, Planner};
    use varuna_model::{Transformer, gpt2};

    fn planner(min_depth: u32, max_depth: u32) -> CostPlanner {
        let gpt = Transformer {
            layers: 10,
            hidden_size: 256,
            sequence_length: 64,
            vocabulary_size: 100,
            tied_head: false,
            ..gpt2::SMALL
        };
        CostPlanner {
            costs: Costs::estimate(&gpt.spec(), Device::CPU_CORE),
            constraints: Constraints {
                min_workers: 1,
                max_workers: u32::MAX,
                micro_batch_size: Some(1),
                min_depth,
                max_depth: Some(max_depth),
                schedules: vec![ScheduleSpec {
                    kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                    recompute: Recompute::None,
                }],
                device_memory_bytes: None,
            },
        }
    }

    fn request(planner: &CostPlanner, speeds: &[f64], parent: Option<Shape>) -> PlanRequest {
        let worker = |(id, speed): (u64, &f64)| WorkerInfo {
            speed: *speed,
            ..WorkerInfo::nominal(WorkerId(id), "")
        };
        let workers = (1..).zip(speeds).map(worker).collect();
        PlanRequest {
            parent,
            ..PlanRequest::first(workers, planner.costs.layout(), 24)
        }
    }

    fn of(shape: &Shape, worker: u64) -> (u32, u64) {
        let (i, j) = shape.place(WorkerId(worker)).unwrap();
        let pipeline = &shape.pipelines[i];
        let r = pipeline.stages[j].segments;
        (r.end - r.start, pipeline.samples.len())
    }

    #[test]
    fn a_slow_stage_gets_fewer_segments_and_stays_where_it_is() {
        let planner = planner(3, 3);
        let even = planner.plan(&request(&planner, &[1.0; 3], None)).unwrap();
        let asked = request(&planner, &[1.0, 0.4, 1.0], Some(even.clone()));
        let shape = planner.plan(&asked).unwrap();
        let all: Vec<WorkerId> = asked.workers.iter().map(|w| w.id).collect();
        check_shape(&shape, &asked.layout, 24, &all).unwrap();
        assert_eq!(shape.place(WorkerId(2)), even.place(WorkerId(2)));
        assert!(of(&shape, 2).0 < of(&even, 2).0, "{shape:?}");
        let before = planner.predicted_ms(&even, &asked.workers).unwrap();
        assert!(
            shape.predicted.step_ms < before * 0.7,
            "{} of {before}",
            shape.predicted.step_ms
        );
    }

    #[test]
    fn a_slow_pipeline_gets_fewer_samples() {
        let planner = planner(1, 1);
        let even = planner.plan(&request(&planner, &[1.0; 3], None)).unwrap();
        let asked = request(&planner, &[1.0, 1.0, 0.5], Some(even.clone()));
        let shape = planner.plan(&asked).unwrap();
        assert_eq!(
            shape.members().len(),
            3,
            "a worker of half the speed is still worth having"
        );
        assert!(of(&shape, 3).1 < of(&shape, 1).1, "{shape:?}");
        assert!(shape.predicted.step_ms < planner.predicted_ms(&even, &asked.workers).unwrap() * 0.75);
    }

    #[test]
    fn a_prediction_at_equal_speeds_is_the_planners_own() {
        for (least, most) in [(1, 1), (3, 3)] {
            let planner = planner(least, most);
            let asked = request(&planner, &[1.0; 3], None);
            let shape = planner.plan(&asked).unwrap();
            let again = planner.predicted_ms(&shape, &asked.workers).unwrap();
            assert!(
                (again / shape.predicted.step_ms - 1.0).abs() < 1e-6,
                "{again} {shape:?}"
            );
        }
    }
}
