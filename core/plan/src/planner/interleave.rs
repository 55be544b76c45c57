//! Pipelines whose workers have several stages each, where the job allows that and it is faster.
//!
//! After the search: the plan in force, the plan found, and the grids that should gain most are cut into as many stages as
//! their workers have chunks, in the order in which the workers stand. Filling and draining gets shorter with the number of
//! chunks, and boundaries are crossed as many times as often: the simulation says which of the two weighs more.

use super::candidate::{Candidate, CandidatePipeline, StepParts};
use super::choose::{EQUAL, score};
use super::compose::Composer;
use super::place::{Pool, fullest_node};
use super::{CostPlanner, PlanRequest, WorkerInfo, pace};
use crate::cost::Runtime;
use crate::document::{
    Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage,
};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::schedule::lists;
use crate::simulate::{What, simulate};
use crate::trace::{PipelineTrace, step_ms, trace};
use std::collections::{BTreeMap, BTreeSet};

/// Grids of each pool of workers that are tried.
const GRIDS: usize = 8;
/// Groups of micro-batches that cuts are balanced with: enough for the steady state to show.
const GROUPS: u64 = 6;
/// Times that all cuts are looked at.
const ROUNDS: usize = 6;

/// Who stands where in pipelines of one depth.
struct Grid {
    /// By pipeline.
    workers: Vec<Vec<WorkerId>>,
    micro_batch_size: u32,
}

impl Grid {
    /// The grid of a shape, interleaved or not; none where pipelines are of one worker, or of several depths.
    fn of(shape: &Shape) -> Option<Grid> {
        let first_round = |p: &Pipeline| {
            let workers = shape.schedule.kind.workers(p.stages.len());
            p.stages.iter().take(workers).map(|s| s.worker).collect()
        };
        let workers: Vec<Vec<WorkerId>> = shape.pipelines.iter().map(first_round).collect();
        let depth = workers.first()?.len();
        let even = depth > 1 && workers.iter().all(|w| w.len() == depth);
        even.then_some(Grid {
            workers,
            micro_batch_size: shape.micro_batch_size,
        })
    }
}

impl CostPlanner {
    /// The best interleaved plan, where it scores better than what is predicted of another by more than counts as equal.
    pub(super) fn interleaved(
        &self,
        request: &PlanRequest,
        shape: &Shape,
        composers: &[Composer],
        pools: &[Vec<&WorkerInfo>],
    ) -> Option<(Shape, Candidate)> {
        let kinds = self.constraints.schedules.iter().map(|s| s.kind);
        let chunks: BTreeSet<usize> = kinds.map(ScheduleKind::chunks).filter(|c| *c > 1).collect();
        let most = *chunks.last()?;
        if self.costs.runtime == Runtime::Rendezvous {
            return None;
        }
        let offered: BTreeMap<WorkerId, &WorkerInfo> = request.workers.iter().map(|w| (w.id, w)).collect();
        let mut bases: Vec<Grid> = [request.parent.as_ref(), Some(shape)]
            .into_iter()
            .flatten()
            .filter_map(Grid::of)
            .collect();
        for (composer, pool) in composers.iter().zip(pools) {
            bases.extend(self.grids(request, composer, pool, most));
        }
        bases.retain(|g| g.workers.iter().flatten().all(|w| offered.contains_key(w)));
        let made = bases.iter().flat_map(|grid| {
            let of = |count: &usize| self.interleave(request, grid, *count, &offered);
            chunks.iter().filter_map(of).collect::<Vec<_>>()
        });
        let score = |p: &Prediction| score(p.step_ms, p.move_ms, request.horizon_ms);
        let made: Vec<Shape> = made.collect();
        let least = made
            .iter()
            .map(|s| score(&s.predicted))
            .fold(f64::INFINITY, f64::min);
        // Of those that count as equal the one that moves least, of these the fastest.
        let near = made.into_iter().filter(|s| score(&s.predicted) <= least * EQUAL);
        let best = near.min_by(|a, b| {
            let moved = a.predicted.move_ms.total_cmp(&b.predicted.move_ms);
            moved.then(score(&a.predicted).total_cmp(&score(&b.predicted)))
        })?;
        (score(&best.predicted) * EQUAL < score(&shape.predicted)).then(|| self.described(best))
    }

    /// The grids that so many chunks should make fastest, with workers on their places. Any depth and number of pipelines may
    /// be among them, whatever the search has thought of it without chunks.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn grids(
        &self,
        request: &PlanRequest,
        composer: &Composer,
        pool: &[&WorkerInfo],
        chunks: usize,
    ) -> Vec<Grid> {
        let most = pool.len().min(self.constraints.max_workers.max(1) as usize);
        let mut hoped: Vec<Candidate> = Vec::new();
        for family in &composer.families {
            let m = family.micro;
            let whole = request.layout.whole();
            let work = self.costs.forward_ms(whole, m) + self.costs.backward_ms(whole, m);
            for (depth, cut) in family.cuts.iter().enumerate().skip(2) {
                let groups = family.batches / depth as u64;
                let widest = (most / depth) as u64;
                let (Some(cut), true) = (cut, family.batches.is_multiple_of(depth as u64)) else {
                    continue;
                };
                if widest.min(groups) == 0 {
                    continue;
                }
                // No more pipelines than make the longest one shorter.
                let longest = groups.div_ceil(widest.min(groups));
                let count = groups.div_ceil(longest);
                let n = longest * depth as u64;
                let ms = work / depth as f64 * (n as f64 + (depth - 1) as f64 / chunks as f64);
                let share =
                    |i: u64| (groups / count + u64::from(i < groups % count)) * depth as u64 * u64::from(m);
                let pipeline = |i: u64| CandidatePipeline {
                    stages: cut.stages.clone(),
                    policies: cut.policies.clone(),
                    samples: share(i),
                };
                hoped.push(Candidate {
                    pipelines: (0..count).map(pipeline).collect(),
                    micro_batch_size: m,
                    schedule: ScheduleSpec {
                        kind: family.schedules[0],
                        recompute: cut.policies[0],
                    },
                    step_ms: ms,
                    bubble: 0.0,
                    parts: StepParts::default(),
                });
            }
        }
        hoped.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        let places = Pool::new(self, request, pool);
        let on_places = |candidate: &Candidate| {
            let placed = places.place(self, candidate, &request.layout);
            let depth = candidate.pipelines[0].stages.len();
            Grid {
                workers: placed.workers.chunks(depth).map(<[WorkerId]>::to_vec).collect(),
                micro_batch_size: candidate.micro_batch_size,
            }
        };
        hoped.iter().take(GRIDS).map(on_places).collect()
    }

    /// A grid with so many stages for each worker, keeping as much of a forward as fits into memory; none where it does not fit,
    /// or micro-batches make no whole groups.
    fn interleave(
        &self,
        request: &PlanRequest,
        grid: &Grid,
        chunks: usize,
        offered: &BTreeMap<WorkerId, &WorkerInfo>,
    ) -> Option<Shape> {
        let kind = ScheduleKind::Interleaved {
            chunks: u32::try_from(chunks).ok()?,
        };
        let mut policies: Vec<Recompute> = self.constraints.schedules.iter().map(|s| s.recompute).collect();
        policies.sort_unstable();
        policies.dedup();
        policies.into_iter().find_map(|recompute| {
            let schedule = ScheduleSpec { kind, recompute };
            let mut made = self.cut_grid(request, grid, schedule, offered)?;
            if !self.fits(request, &made, offered) {
                return None;
            }
            // Equal pipelines are simulated once where all workers are nominal.
            let nominal = request
                .workers
                .iter()
                .all(|w| pace(w.speed).to_bits() == 1f64.to_bits());
            made.predicted.step_ms = match nominal {
                true => step_ms(&self.costs, &made, fullest_node(&request.workers)),
                false => self.predict_ms(&made, &request.workers),
            };
            made.predicted.move_ms = self.move_ms(request, &made);
            Some(made)
        })
    }

    fn cut_grid(
        &self,
        request: &PlanRequest,
        grid: &Grid,
        schedule: ScheduleSpec,
        offered: &BTreeMap<WorkerId, &WorkerInfo>,
    ) -> Option<Shape> {
        let m = u64::from(grid.micro_batch_size.max(1));
        let (depth, count) = (grid.workers[0].len() as u64, grid.workers.len() as u64);
        let batches = request.global_batch_size.div_ceil(m);
        let groups = batches / depth;
        if !batches.is_multiple_of(depth) || groups < count {
            return None;
        }
        let stages = grid.workers[0].len() * schedule.kind.chunks();
        let mut cuts: BTreeMap<Vec<(u64, u64)>, Vec<SegmentRange>> = BTreeMap::new();
        let mut start = 0;
        let mut pipelines = Vec::with_capacity(grid.workers.len());
        for (i, workers) in (0u64..).zip(&grid.workers) {
            let round = workers.iter().filter_map(|w| offered.get(w).copied());
            let places: Vec<_> = round.map(|w| (w, schedule)).cycle().take(stages).collect();
            // Pipelines of workers that are alike are cut alike.
            let alike = |(w, _): &(&WorkerInfo, ScheduleSpec)| (pace(w.speed).to_bits(), self.capacity(w));
            let key: Vec<(u64, u64)> = places.iter().map(alike).collect();
            let cut = match cuts.get(&key) {
                Some(cut) => cut.clone(),
                None => {
                    let cut = self.cut_by_speed(grid.micro_batch_size, &places, batches)?.stages;
                    let n = (groups / count).min(GROUPS) * depth;
                    self.balanced(cut, &places, grid.micro_batch_size, u32::try_from(n).ok()?)
                }
            };
            let share = (groups / count + u64::from(i < groups % count)) * depth * m;
            let end = (start + share).min(request.global_batch_size);
            let stage = |(segments, worker): (&SegmentRange, &WorkerId)| Stage {
                worker: *worker,
                segments: *segments,
                recompute: None,
            };
            pipelines.push(Pipeline {
                stages: cut.iter().zip(workers.iter().cycle()).map(stage).collect(),
                samples: SampleRange { start, end },
            });
            cuts.insert(key, cut);
            start = end;
        }
        Some(Shape {
            pipelines,
            spares: Vec::new(),
            micro_batch_size: grid.micro_batch_size,
            schedule,
            predicted: Prediction {
                calibrated: self.costs.calibrated,
                ..Prediction::default()
            },
        })
    }

    /// Moves cuts by a segment at a time while that shortens a step of `n` micro-batches: the slowest stage says little where
    /// each worker has several.
    fn balanced(
        &self,
        mut cut: Vec<SegmentRange>,
        places: &[(&WorkerInfo, ScheduleSpec)],
        m: u32,
        n: u32,
    ) -> Vec<SegmentRange> {
        let specs: Vec<ScheduleSpec> = places.iter().map(|(_, spec)| *spec).collect();
        let lists = lists(&specs, n);
        let fits = |cut: &[SegmentRange], s: usize| {
            let (worker, spec) = places[s];
            let need = self.stage_bytes(spec.kind, spec.recompute, cut[s], (cut.len(), s), n, m);
            !cut[s].is_empty() && need <= self.capacity(worker)
        };
        let took = |cut: &[SegmentRange]| {
            let times = cut.iter().zip(places);
            let times = times.map(|(r, (w, spec))| self.stage_times(*r, m, spec.recompute, pace(w.speed)));
            simulate(&lists, &times.collect::<Vec<_>>(), n).makespan_ms()
        };
        let mut best = took(&cut);
        for _ in 0..ROUNDS {
            let before = best;
            for at in 1..cut.len() {
                for forth in [true, false] {
                    let end = cut[at].start;
                    let moved = if forth { end + 1 } else { end - 1 };
                    let mut other = cut.clone();
                    (other[at - 1].end, other[at].start) = (moved, moved);
                    if !fits(&other, at - 1) || !fits(&other, at) {
                        continue;
                    }
                    let ms = took(&other);
                    if ms < best * (1.0 - 1e-9) {
                        (best, cut) = (ms, other);
                    }
                }
            }
            if best >= before {
                break;
            }
        }
        cut
    }

    /// Whether each worker's memory holds all of its stages together with what it must still give away.
    fn fits(&self, request: &PlanRequest, shape: &Shape, offered: &BTreeMap<WorkerId, &WorkerInfo>) -> bool {
        let bytes = self.unit_bytes();
        let mut needs: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (p, each) in shape.pipelines.iter().zip(self.memory_bytes(shape)) {
            for (stage, need) in p.stages.iter().zip(each) {
                *needs.entry(stage.worker).or_default() += need;
            }
        }
        needs.iter().all(|(worker, need)| {
            let units = shape.units(&request.layout, *worker);
            let held = request.held.get(worker).map_or(&[][..], Vec::as_slice);
            let old = held.iter().filter(|u| !units.contains(u));
            let old: u64 = old.map(|u| bytes.get(u.index()).copied().unwrap_or(0)).sum();
            offered
                .get(worker)
                .is_some_and(|w| need.saturating_add(old) <= self.capacity(w))
        })
    }

    /// The plan with its bubble, and what is said of it.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn described(&self, mut shape: Shape) -> (Shape, Candidate) {
        let traces = trace(&self.costs, &shape);
        let compute = |t: &PipelineTrace, worker: usize| -> f64 {
            let own = t.spans.iter().filter(|s| s.stage % t.workers == worker);
            let compute = own.filter(|s| matches!(s.what, What::Compute(_)));
            compute.map(|s| s.end_ms - s.start_ms).sum()
        };
        let (mut busy, mut steady_ms, mut makespan_ms) = (0.0, 0.0f64, 0.0f64);
        for t in &traces {
            let each: Vec<f64> = (0..t.workers).map(|w| compute(t, w)).collect();
            busy += t.count as f64 * each.iter().sum::<f64>();
            steady_ms = steady_ms.max(each.into_iter().fold(0.0, f64::max));
            let ends = t.ends.iter().map(|e| e.rings_from_ms);
            makespan_ms = makespan_ms.max(ends.fold(0.0, f64::max));
        }
        let step_ms = shape.predicted.step_ms;
        let makespan_ms = makespan_ms.min(step_ms);
        let workers = shape.members().len() as f64;
        shape.predicted.bubble = (1.0 - busy / (workers * step_ms)).clamp(0.0, 1.0);
        let pipeline = |p: &Pipeline| CandidatePipeline {
            stages: p.stages.iter().map(|s| s.segments).collect(),
            policies: vec![shape.schedule.recompute; p.stages.len()],
            samples: p.samples.len(),
        };
        let candidate = Candidate {
            pipelines: shape.pipelines.iter().map(pipeline).collect(),
            micro_batch_size: shape.micro_batch_size,
            schedule: shape.schedule,
            step_ms,
            bubble: shape.predicted.bubble,
            parts: StepParts {
                steady_ms,
                fill_ms: makespan_ms - steady_ms,
                rings_ms: step_ms - makespan_ms,
            },
        };
        (shape, candidate)
    }
}

#[cfg(test)]
mod tests;
