//! Compositions: how many pipelines of which depths, cut where, with which share of the batch.

use super::{CostPlanner, PlanRequest, WorkerInfo};
use crate::document::Recompute;
use crate::layout::SegmentRange;
use crate::partition::partition;
use crate::schedule::{generate, stash_max};
use crate::simulate::{StageTimes, simulate};
use std::collections::BTreeMap;

/// Candidates that are simulated after the closed form has ranked all.
const SHORT_LIST: usize = 24;

/// One pipeline of a candidate.
#[derive(Clone, Debug)]
pub(super) struct CandidatePipeline {
    /// Segments of each stage.
    pub stages: Vec<SegmentRange>,
    /// Samples of each step.
    pub samples: u64,
}

/// A shape without workers.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub pipelines: Vec<CandidatePipeline>,
    pub micro_batch_size: u32,
    pub step_ms: f64,
    pub bubble: f64,
}

/// One depth's best cut and its closed form `fill + period * n` for n micro-batches.
#[derive(Clone, Debug)]
struct Depth {
    stages: Vec<SegmentRange>,
    period_ms: f64,
    fill_ms: f64,
}

pub(super) struct Composer<'a> {
    planner: &'a CostPlanner,
    request: &'a PlanRequest,
    workers: usize,
    /// The slowest worker sets a pipeline's pace as long as speeds are not placed one by one.
    slowest: f64,
    /// By (micro-batch size, depth).
    depths: BTreeMap<(u32, usize), Depth>,
}

impl<'a> Composer<'a> {
    pub(super) fn new(planner: &'a CostPlanner, request: &'a PlanRequest, workers: &[WorkerInfo]) -> Self {
        let slowest = workers.iter().map(|w| w.speed).fold(1.0, f64::min).max(1e-3);
        let count = workers.len().min(planner.constraints.max_workers.max(1) as usize);
        let mut composer = Composer { planner, request, workers: count, slowest, depths: BTreeMap::new() };
        let memory = planner.memory(workers);
        for m in composer.micro_batch_sizes() {
            composer.cut(m, memory);
        }
        composer
    }

    fn micro_batch_sizes(&self) -> Vec<u32> {
        match self.planner.constraints.micro_batch_size {
            Some(m) => vec![m.max(1)],
            None => (0..6)
                .map(|i| 1 << i)
                .filter(|m| *m == 1 || u64::from(*m) * 2 <= self.request.global_batch_size)
                .collect(),
        }
    }

    fn cut(&mut self, micro: u32, memory: Option<u64>) {
        let segments = self.request.layout.segments;
        let c = &self.planner.constraints;
        let deepest = c.max_depth.unwrap_or(segments).min(segments);
        let batches = u32::try_from(self.request.global_batch_size.div_ceil(u64::from(micro))).unwrap_or(u32::MAX);
        for depth in c.min_depth.max(1)..=deepest {
            if depth as usize > self.workers {
                break;
            }
            let mut cost = |range: SegmentRange, stage: u32, depth: u32| {
                let stash = stash_max(&c.schedule, depth as usize, stage as usize, batches);
                let recompute = c.schedule.recompute == Recompute::Full;
                let need = self.planner.costs.memory_bytes(range, stash, micro, recompute);
                memory.is_none_or(|m| need <= m).then(|| self.stage_ms(range, micro, stage + 1 == depth))
            };
            if let Some(stages) = partition(segments, depth, &mut cost) {
                let last = stages.len() - 1;
                let each: Vec<f64> =
                    stages.iter().enumerate().map(|(i, r)| self.stage_ms(*r, micro, i == last)).collect();
                let transfers: f64 =
                    stages.iter().skip(1).map(|r| 2.0 * self.planner.costs.transfer_ms(r.start, micro)).sum();
                let period_ms = each.iter().copied().fold(0.0, f64::max);
                let fill_ms = each.iter().sum::<f64>() - period_ms + transfers;
                self.depths.insert((micro, depth as usize), Depth { stages, period_ms, fill_ms });
            }
        }
    }

    /// Forward, backward and, where needed, recompute of one micro-batch on a stage.
    fn stage_ms(&self, range: SegmentRange, micro: u32, last: bool) -> f64 {
        let costs = &self.planner.costs;
        let forward = costs.forward_ms(range);
        let again = self.planner.constraints.schedule.recompute == Recompute::Full && !last;
        let one = forward + costs.backward_ms(range) + if again { forward } else { 0.0 };
        one * f64::from(micro) / self.slowest
    }

    /// All compositions worth a simulation, simulated.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let mut scored: Vec<(f64, u32, Vec<usize>)> = Vec::new();
        for micro in self.micro_batch_sizes() {
            for depths in self.compositions(micro) {
                if let Some(ms) = self.closed_form(micro, &depths) {
                    scored.push((ms, micro, depths));
                }
            }
        }
        scored.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)).then_with(|| a.2.cmp(&b.2)));
        scored.truncate(SHORT_LIST);
        scored.into_iter().filter_map(|(_, micro, depths)| self.simulated(micro, &depths)).collect()
    }

    /// Depth lists, deepest first: D - k pipelines of depth p and k of depth q >= p, for every D, p, q.
    fn compositions(&self, micro: u32) -> Vec<Vec<usize>> {
        let depths: Vec<usize> = self.depths.keys().filter(|(m, _)| *m == micro).map(|(_, d)| *d).collect();
        let batches = self.request.global_batch_size.div_ceil(u64::from(micro));
        let mut all = Vec::new();
        for (i, p) in depths.iter().enumerate() {
            let most = (self.workers / p).min(usize::try_from(batches).unwrap_or(usize::MAX));
            for count in 1..=most {
                all.push(vec![*p; count]);
                for q in &depths[i + 1..] {
                    let deep = ((self.workers - count * p) / (q - p)).min(count - 1);
                    if deep > 0 {
                        let mut list = vec![*q; deep];
                        list.extend(vec![*p; count - deep]);
                        all.push(list);
                    }
                }
            }
        }
        let min = self.planner.constraints.min_workers as usize;
        all.retain(|list| list.iter().sum::<usize>() >= min);
        all
    }

    /// Micro-batches of each pipeline so that all end together: one more to whoever would end first.
    fn shares(&self, micro: u32, depths: &[usize]) -> Option<Vec<u64>> {
        let batches = self.request.global_batch_size.div_ceil(u64::from(micro));
        let of: Vec<&Depth> = depths.iter().map(|d| self.depths.get(&(micro, *d))).collect::<Option<_>>()?;
        if (batches as usize) < of.len() {
            return None;
        }
        let mut shares = vec![1u64; of.len()];
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        for _ in of.len() as u64..batches {
            let ends = shares.iter().zip(&of).map(|(n, d)| d.fill_ms + d.period_ms * (*n + 1) as f64);
            let first = ends.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(i, _)| i)?;
            shares[first] += 1;
        }
        Some(shares)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn closed_form(&self, micro: u32, depths: &[usize]) -> Option<f64> {
        let shares = self.shares(micro, depths)?;
        let mut step: f64 = 0.0;
        for (n, depth) in shares.iter().zip(depths) {
            let d = self.depths.get(&(micro, *depth))?;
            let ring = d.stages.iter().map(|r| self.planner.costs.ring_ms(*r, depths.len()));
            step = step.max(d.fill_ms + d.period_ms * *n as f64 + ring.fold(0.0, f64::max));
        }
        Some(step)
    }

    fn simulated(&self, micro: u32, depths: &[usize]) -> Option<Candidate> {
        let costs = &self.planner.costs;
        let spec = &self.planner.constraints.schedule;
        let shares = self.shares(micro, depths)?;
        let total = self.request.global_batch_size;
        let mut left = total;
        let (mut step_ms, mut busy, mut pipelines) = (0.0f64, 0.0, Vec::new());
        for (i, (n, depth)) in shares.iter().zip(depths).enumerate() {
            let d = self.depths.get(&(micro, *depth))?;
            // Whole micro-batches; the last pipeline takes what remains.
            let samples = if i + 1 == depths.len() { left } else { (n * u64::from(micro)).min(left) };
            left -= samples;
            let batches = u32::try_from(samples.div_ceil(u64::from(micro))).ok()?;
            if batches == 0 {
                return None;
            }
            let times: Vec<StageTimes> = d.stages.iter().enumerate().map(|(s, r)| self.times(*r, micro, s)).collect();
            let lists: Vec<_> = (0..*depth).map(|s| generate(spec, *depth, s, batches)).collect();
            let took = simulate(&lists, &times, batches);
            busy += took.busy_ms.iter().sum::<f64>();
            for (end, range) in took.ends_ms.iter().zip(&d.stages) {
                step_ms = step_ms.max(end + costs.ring_ms(*range, depths.len()));
            }
            pipelines.push(CandidatePipeline { stages: d.stages.clone(), samples });
        }
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let workers = depths.iter().sum::<usize>() as f64;
        let bubble = (1.0 - busy / (workers * step_ms)).clamp(0.0, 1.0);
        Some(Candidate { pipelines, micro_batch_size: micro, step_ms, bubble })
    }

    fn times(&self, range: SegmentRange, micro: u32, stage: usize) -> StageTimes {
        let costs = &self.planner.costs;
        let scale = f64::from(micro) / self.slowest;
        StageTimes {
            forward_ms: costs.forward_ms(range) * scale,
            backward_ms: costs.backward_ms(range) * scale,
            transfer_ms: if stage == 0 { 0.0 } else { costs.transfer_ms(range.start, micro) },
        }
    }

    /// The best step time with exactly so many workers, where some composition uses them all.
    pub(super) fn best_with(&self, workers: usize) -> Option<f64> {
        let of = |micro: &u32| {
            let lists = self.compositions(*micro).into_iter().filter(|l| l.iter().sum::<usize>() == workers);
            lists.filter_map(|l| self.closed_form(*micro, &l)).collect::<Vec<_>>()
        };
        self.micro_batch_sizes().iter().flat_map(of).min_by(f64::total_cmp)
    }
}
