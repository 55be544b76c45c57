//! Workers of unequal speed within one plan: fewer segments, or fewer samples, for the slower ones.
//!
//! A few shapes are taken as they are (who stands where, how deep), cut anew with each worker's own speed, and given shares
//! so that all pipelines end together. State moves only across the cuts. Where all workers are alike this does nothing.

use super::candidate::Candidate;
use super::choose::score;
use super::place::{Pool, fullest_node};
use super::{CostPlanner, PlanRequest, Planner, WorkerInfo, pace};
use crate::document::{Pipeline, Prediction, Recompute, SampleRange, ScheduleSpec, Shape, Stage};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::partition::partition_all;
use crate::schedule::lists;
use crate::shared;
use crate::simulate::{StageTimes, simulate};
use crate::sync::{self, Pipelines};
use std::collections::{BTreeMap, BTreeSet};

impl CostPlanner {
    /// The predicted step of a shape on workers of these speeds, milliseconds.
    #[must_use]
    pub fn predict_ms(&self, shape: &Shape, workers: &[WorkerInfo]) -> f64 {
        let speeds: BTreeMap<WorkerId, f64> = workers.iter().map(|w| (w.id, pace(w.speed))).collect();
        let speed = |w: WorkerId| speeds.get(&w).copied().unwrap_or(1.0);
        if let Some(host) = &self.costs.host {
            return shared::shape_ms(&self.costs, host, shape, fullest_node(workers), speed);
        }
        let pipelines = shape.pipelines.iter();
        let runs: Vec<(Vec<SegmentRange>, Vec<f64>)> =
            pipelines.map(|p| self.pipeline_ends(p, shape, &speed)).collect();
        let kinds: Vec<Pipelines> = runs
            .iter()
            .map(|(stages, ends_ms)| Pipelines {
                stages,
                workers: shape.schedule.kind.workers(stages.len()),
                ends_ms,
                count: 1,
            })
            .collect();
        sync::step_ms(&self.costs, &kinds)
    }

    /// Scales the compute of segments by what was observed of it.
    pub(super) fn scale_segments(&mut self, factors: &BTreeMap<u32, f64>) {
        // Workers that take turns on shared cores look slow to themselves: how long segments take in all is the profile's to
        // say there, and observations correct their proportions.
        let whole = |segment: &u32| self.expected_ms(*segment, 1).unwrap_or(0.0);
        let scale = match &self.costs.host {
            Some(_) => {
                let before: f64 = factors.keys().map(whole).sum();
                let after: f64 = factors.iter().map(|(s, f)| whole(s) * f).sum();
                before / after.max(f64::MIN_POSITIVE)
            }
            None => 1.0,
        };
        for (segment, factor) in factors {
            let Some(cost) = self.costs.segments.get_mut(*segment as usize) else {
                continue;
            };
            for ms in [
                &mut cost.forward_ms,
                &mut cost.backward_ms,
                &mut cost.forward_fixed_ms,
                &mut cost.backward_fixed_ms,
            ] {
                *ms *= factor * scale;
            }
        }
    }

    /// The fastest of what was found for the pool of all workers, with workers on its places.
    pub(super) fn best_of_all(
        &self,
        request: &PlanRequest,
        found: &[(Candidate, usize)],
        pool: &[&WorkerInfo],
    ) -> Option<Shape> {
        let all = found.iter().filter(|(_, pool)| *pool == 0);
        let (best, _) = all.min_by(|(a, _), (b, _)| a.step_ms.total_cmp(&b.step_ms))?;
        let placed = Pool::new(self, request, pool).place(self, best, &request.layout);
        Some(self.shape(best, &placed))
    }

    /// When each stage of a pipeline ends its last backward.
    fn pipeline_ends(
        &self,
        pipeline: &Pipeline,
        shape: &Shape,
        speed: &impl Fn(WorkerId) -> f64,
    ) -> (Vec<SegmentRange>, Vec<f64>) {
        let m = shape.micro_batch_size;
        let n = u32::try_from(pipeline.micro_batches(m)).unwrap_or(u32::MAX);
        let stages: Vec<SegmentRange> = pipeline.stages.iter().map(|s| s.segments).collect();
        let times = pipeline.stages.iter().map(|s| {
            let policy = shape.schedule_of(s).recompute;
            self.stage_times(s.segments, m, policy, speed(s.worker))
        });
        let times: Vec<StageTimes> = times.collect();
        let specs: Vec<ScheduleSpec> = pipeline.stages.iter().map(|s| shape.schedule_of(s)).collect();
        let ran = simulate(&lists(&specs, n), &times, n);
        (stages, ran.ends_ms)
    }

    /// The times of a stage on a worker of this speed.
    pub(super) fn stage_times(&self, r: SegmentRange, m: u32, policy: Recompute, speed: f64) -> StageTimes {
        StageTimes {
            forward_ms: self.costs.forward_ms(r, m) / speed,
            backward_ms: self.costs.backward_ms(r, m) / speed,
            recompute_ms: self.costs.recompute_ms(r, m, policy) / speed,
            transfer_ms: match r.start {
                0 => 0.0,
                start => self.costs.transfer_ms(start, m),
            },
        }
    }

    /// The best of these shapes with cuts and shares by speed, where it scores better than what is predicted of another; none
    /// where all workers are alike.
    pub(super) fn uneven(
        &self,
        request: &PlanRequest,
        shapes: &[Option<&Shape>],
        other: &Prediction,
    ) -> Option<Shape> {
        let paces: BTreeSet<u64> = request.workers.iter().map(|w| pace(w.speed).to_bits()).collect();
        if paces.len() < 2 {
            return None;
        }
        let offered: BTreeMap<WorkerId, &WorkerInfo> = request.workers.iter().map(|w| (w.id, w)).collect();
        let fits = |shape: &&Shape| {
            let known = shape.members().iter().all(|w| offered.contains_key(w));
            let ends = shape
                .pipelines
                .iter()
                .flat_map(|p| &p.stages)
                .map(|s| s.segments.end);
            let plain = shape.schedule.kind.chunks() == 1;
            plain && known && ends.max() == Some(request.layout.segments)
        };
        let made = shapes
            .iter()
            .flatten()
            .copied()
            .filter(fits)
            .filter_map(|shape| self.by_speed(request, shape, &offered));
        let score = |p: &Prediction| score(p.step_ms, p.move_ms, request.horizon_ms);
        let best = made.min_by(|a, b| score(&a.predicted).total_cmp(&score(&b.predicted)))?;
        (score(&best.predicted) < score(other) * (1.0 - 1e-9)).then_some(best)
    }

    /// One shape by speed; none where it does not fit into memory, or somebody would get no sample.
    fn by_speed(
        &self,
        request: &PlanRequest,
        shape: &Shape,
        offered: &BTreeMap<WorkerId, &WorkerInfo>,
    ) -> Option<Shape> {
        let m = shape.micro_batch_size;
        let batches = request.global_batch_size.div_ceil(u64::from(m.max(1)));
        let mut cuts = Vec::with_capacity(shape.pipelines.len());
        for pipeline in &shape.pipelines {
            let stages = pipeline.stages.iter();
            let places = stages.filter_map(|s| Some((*offered.get(&s.worker)?, shape.schedule_of(s))));
            let places: Vec<(&WorkerInfo, ScheduleSpec)> = places.collect();
            cuts.push(self.cut_by_speed(shape.micro_batch_size, &places, batches)?);
        }
        let shares = shares(&cuts, batches)?;
        let mut start = 0;
        let mut pipelines = Vec::with_capacity(cuts.len());
        for ((pipeline, cut), share) in shape.pipelines.iter().zip(&cuts).zip(shares) {
            let end = (start + share * u64::from(m)).min(request.global_batch_size);
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
                calibrated: self.costs.calibrated,
                ..shape.predicted
            },
        };
        made.predicted.step_ms = self.predict_ms(&made, &request.workers);
        made.predicted.move_ms = self.move_ms(request, &made);
        made.pipelines
            .iter()
            .all(|p| p.samples.start < p.samples.end)
            .then_some(made)
    }

    /// The cuts of one pipeline whose slowest stage is as fast as can be, each worker at its own speed.
    pub(super) fn cut_by_speed(
        &self,
        m: u32,
        places: &[(&WorkerInfo, ScheduleSpec)],
        batches: u64,
    ) -> Option<Line> {
        let depth = places.len();
        let work = |r: SegmentRange, at: usize| {
            let again = self.costs.recompute_ms(r, m, places[at].1.recompute);
            let ms = self.costs.forward_ms(r, m) + self.costs.backward_ms(r, m) + again;
            ms / pace(places[at].0.speed)
        };
        // Shares are not known yet: room for all of the batch is enough for any.
        let most = u32::try_from(batches).unwrap_or(u32::MAX).min(u32::MAX / 2);
        let cost = |r: SegmentRange, later: u32| {
            let at = depth.checked_sub(later as usize + 1)?;
            let (worker, schedule) = &places[at];
            let need = self.stage_bytes(schedule.kind, schedule.recompute, r, (depth, at), most, m);
            (need <= self.capacity(worker)).then(|| work(r, at))
        };
        let segments = self.costs.layout().segments;
        let cuts = partition_all(segments, u32::try_from(depth).ok()?, cost);
        let stages = cuts.stages(u32::try_from(depth).ok()?)?;
        let each: Vec<f64> = stages.iter().enumerate().map(|(at, r)| work(*r, at)).collect();
        let period = each.iter().copied().fold(0.0, f64::max);
        Some(Line {
            fill: each.iter().sum::<f64>() - period,
            stages,
            period,
        })
    }
}

/// A pipeline's cut: it takes `fill + period * n` for n micro-batches.
pub(super) struct Line {
    pub(super) stages: Vec<SegmentRange>,
    period: f64,
    fill: f64,
}

/// Micro-batches of each pipeline: the next one always to whoever would end first; at least one each.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn shares(lines: &[Line], batches: u64) -> Option<Vec<u64>> {
    let left = batches.checked_sub(lines.len() as u64)?;
    let mut shares = vec![1u64; lines.len()];
    for _ in 0..left {
        let end = |(i, line): (usize, &Line)| (line.fill + line.period * (shares[i] + 1) as f64, i);
        let ends = lines.iter().enumerate().map(end);
        let (_, first) = ends.min_by(|a, b| a.0.total_cmp(&b.0))?;
        shares[first] += 1;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check_shape;
    use crate::cost::{Costs, Device, GptSizes};
    use crate::document::ScheduleKind;
    use crate::planner::Constraints;

    fn planner(min_depth: u32, max_depth: u32) -> CostPlanner {
        let gpt = GptSizes {
            layers: 10,
            hidden: 256,
            sequence: 64,
            vocabulary: 100,
            tied: false,
        };
        CostPlanner {
            costs: Costs::estimate(gpt, Device::CPU_CORE),
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
            id: WorkerId(id),
            memory_bytes: None,
            speed: *speed,
            node: String::new(),
        };
        PlanRequest {
            workers: (1..).zip(speeds).map(worker).collect(),
            layout: planner.costs.layout(),
            global_batch_size: 24,
            parent,
            held: BTreeMap::new(),
            horizon_ms: None,
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
        let before = planner.predict_ms(&even, &asked.workers);
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
        assert!(shape.predicted.step_ms < planner.predict_ms(&even, &asked.workers) * 0.75);
    }

    #[test]
    fn a_prediction_at_equal_speeds_is_the_planners_own() {
        for (least, most) in [(1, 1), (3, 3)] {
            let planner = planner(least, most);
            let asked = request(&planner, &[1.0; 3], None);
            let shape = planner.plan(&asked).unwrap();
            let again = planner.predict_ms(&shape, &asked.workers);
            assert!(
                (again / shape.predicted.step_ms - 1.0).abs() < 1e-6,
                "{again} {shape:?}"
            );
        }
    }
}
