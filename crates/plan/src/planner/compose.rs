//! Compositions: how many pipelines of which depths, cut where, with which share of the batch.

use super::{CostPlanner, PlanRequest};
use crate::document::{Recompute, ScheduleSpec};
use crate::layout::SegmentRange;
use crate::partition::partition_all;
use crate::schedule::{generate, stash_max};
use crate::simulate::{Simulated, StageTimes, simulate};
use std::collections::BTreeMap;

/// Candidates that are simulated after the closed form has ranked all.
const SHORT_LIST: usize = 24;

/// One pipeline of a candidate.
#[derive(Clone, Debug)]
pub(super) struct CandidatePipeline {
    /// Segments of each stage.
    pub(super) stages: Vec<SegmentRange>,
    /// Samples of each step.
    pub(super) samples: u64,
}

/// A shape without workers.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) pipelines: Vec<CandidatePipeline>,
    pub(super) micro_batch_size: u32,
    pub(super) schedule: ScheduleSpec,
    pub(super) step_ms: f64,
    pub(super) bubble: f64,
}

/// One depth's best cut and its closed form `fill + period * n` for n micro-batches.
#[derive(Clone, Debug)]
struct Depth {
    stages: Vec<SegmentRange>,
    period_ms: f64,
    fill_ms: f64,
    /// The stage with the most parameters: its ring takes longest.
    heaviest: u64,
}

/// `count` pipelines of one depth.
type Class = (usize, usize);

/// Deep pipelines, then shallow ones (either may be none).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Composition {
    classes: [Class; 2],
}

impl Composition {
    fn workers(&self) -> usize {
        self.classes.iter().map(|(depth, count)| depth * count).sum()
    }
    fn pipelines(&self) -> usize {
        self.classes.iter().map(|(_, count)| count).sum()
    }
}

/// Micro-batches of a class: each pipeline runs `each`, the first `extra` of them one more.
#[derive(Clone, Copy, Default, Debug)]
struct Share {
    each: u64,
    extra: u64,
}

pub(super) struct Composer<'a> {
    planner: &'a CostPlanner,
    request: &'a PlanRequest,
    schedule: ScheduleSpec,
    workers: usize,
    /// All stages run at the pace of the slowest worker of the pool.
    slowest: f64,
    /// By (micro-batch size, depth).
    depths: BTreeMap<(u32, usize), Depth>,
}

impl<'a> Composer<'a> {
    /// Cuts the model for a pool of `workers` that are at least as fast as `slowest` and have at least `memory` bytes.
    pub(super) fn new(
        planner: &'a CostPlanner,
        request: &'a PlanRequest,
        schedule: ScheduleSpec,
        workers: usize,
        slowest: f64,
        memory: Option<u64>,
    ) -> Self {
        let workers = workers.min(planner.constraints.max_workers.max(1) as usize);
        let mut composer = Composer {
            planner,
            request,
            schedule,
            workers,
            slowest,
            depths: BTreeMap::new(),
        };
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

    fn batches(&self, micro: u32) -> u64 {
        self.request.global_batch_size.div_ceil(u64::from(micro))
    }

    fn cut(&mut self, micro: u32, memory: Option<u64>) {
        let segments = self.request.layout.segments;
        let c = &self.planner.constraints;
        let costs = &self.planner.costs;
        let widest = u32::try_from(self.workers).unwrap_or(u32::MAX);
        let deepest = c.max_depth.unwrap_or(segments).min(segments).min(widest);
        let batches = u32::try_from(self.batches(micro)).unwrap_or(u32::MAX);
        let recompute = self.schedule.recompute == Recompute::Full;
        let cuts = partition_all(segments, deepest, |range, later| {
            // The stash depends on the stages behind this one only.
            let stash = stash_max(&self.schedule, later as usize + 1, 0, batches);
            let fits = memory.is_none_or(|m| costs.memory_bytes(range, stash, micro, recompute) <= m);
            fits.then(|| self.stage_ms(range, micro, later == 0))
        });
        for depth in c.min_depth.max(1)..=deepest {
            let Some(stages) = cuts.stages(depth) else {
                continue;
            };
            let last = stages.len() - 1;
            let each = stages
                .iter()
                .enumerate()
                .map(|(i, r)| self.stage_ms(*r, micro, i == last));
            let (period_ms, sum) = each.fold((0.0f64, 0.0), |(max, sum), ms| (max.max(ms), sum + ms));
            let transfers: f64 = stages
                .iter()
                .skip(1)
                .map(|r| 2.0 * costs.transfer_ms(r.start, micro))
                .sum();
            let heaviest = stages.iter().map(|r| costs.parameters(*r)).max().unwrap_or(0);
            let fill_ms = sum - period_ms + transfers;
            self.depths.insert(
                (micro, depth as usize),
                Depth {
                    stages,
                    period_ms,
                    fill_ms,
                    heaviest,
                },
            );
        }
    }

    /// Forward, backward and, where needed, recompute of one micro-batch on a stage.
    fn stage_ms(&self, range: SegmentRange, micro: u32, last: bool) -> f64 {
        let costs = &self.planner.costs;
        let forward = costs.forward_ms(range, micro);
        let again = self.schedule.recompute == Recompute::Full && !last;
        let one = forward + costs.backward_ms(range, micro) + if again { forward } else { 0.0 };
        one / self.slowest
    }

    /// The compositions that the closed form likes best, simulated.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let mut scored: Vec<(f64, u32, Composition)> = Vec::new();
        for micro in self.micro_batch_sizes() {
            for composition in self.compositions(micro) {
                scored.extend(
                    self.closed_form(micro, composition)
                        .map(|ms| (ms, micro, composition)),
                );
            }
        }
        let order = |a: &(f64, u32, Composition), b: &(f64, u32, Composition)| {
            a.0.total_cmp(&b.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2)))
        };
        if scored.len() > SHORT_LIST {
            scored.select_nth_unstable_by(SHORT_LIST - 1, order);
            scored.truncate(SHORT_LIST);
        }
        scored.sort_by(order);
        let mut simulated = BTreeMap::new();
        scored
            .into_iter()
            .filter_map(|(_, micro, c)| self.simulated(micro, c, &mut simulated))
            .collect()
    }

    /// D - k pipelines of depth p and k of depth q > p, for every D, p and q; k as large as the workers allow.
    fn compositions(&self, micro: u32) -> Vec<Composition> {
        let depths: Vec<usize> = self
            .depths
            .range((micro, 0)..=(micro, usize::MAX))
            .map(|((_, d), _)| *d)
            .collect();
        let batches = usize::try_from(self.batches(micro)).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        for (i, p) in depths.iter().enumerate() {
            for count in 1..=(self.workers / p).min(batches) {
                all.push(Composition {
                    classes: [(0, 0), (*p, count)],
                });
                let idle = self.workers - count * p;
                for q in &depths[i + 1..] {
                    let deep = (idle / (q - p)).min(count);
                    // All deep is the same as no shallow: it stands under q.
                    if deep == 0 {
                        break;
                    }
                    if deep < count {
                        all.push(Composition {
                            classes: [(*q, deep), (*p, count - deep)],
                        });
                    }
                }
            }
        }
        let min = self.planner.constraints.min_workers as usize;
        all.retain(|c| c.workers() >= min);
        all
    }

    /// Micro-batches of each class so that all pipelines end together, at least one each: first what fits into the time
    /// that all would need with fractions, then one more to whoever would end first.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded by the batch"
    )]
    fn shares(&self, micro: u32, composition: Composition) -> Option<[Share; 2]> {
        let batches = self.batches(micro);
        let mut left = batches.checked_sub(composition.pipelines() as u64)?;
        let classes = composition
            .classes
            .map(|(depth, count)| (self.depths.get(&(micro, depth)), count as u64));
        let (mut fill, mut rate) = (0.0, 0.0);
        for (depth, count) in classes {
            if let Some(d) = depth {
                fill += count as f64 * d.fill_ms / d.period_ms;
                rate += count as f64 / d.period_ms;
            }
        }
        let together = (batches as f64 + fill) / rate;
        let mut shares = [Share::default(); 2];
        for (share, (depth, count)) in shares.iter_mut().zip(classes) {
            let Some(d) = depth else { continue };
            let whole = (((together - d.fill_ms) / d.period_ms).floor() as u64).max(1);
            share.each = whole.min(1 + left / count.max(1));
            left -= (share.each - 1) * count;
        }
        while left > 0 {
            let end = |i: usize| {
                classes[i].0.map_or(f64::INFINITY, |d| {
                    d.fill_ms + d.period_ms * (shares[i].each + 1) as f64
                })
            };
            let first = usize::from(end(1) < end(0));
            let given = left.min(classes[first].1 - shares[first].extra);
            left -= given;
            shares[first].extra += given;
            if shares[first].extra == classes[first].1 {
                shares[first] = Share {
                    each: shares[first].each + 1,
                    extra: 0,
                };
            }
        }
        Some(shares)
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn closed_form(&self, micro: u32, composition: Composition) -> Option<f64> {
        let shares = self.shares(micro, composition)?;
        let mut step: f64 = 0.0;
        for (share, (depth, _)) in shares.iter().zip(composition.classes) {
            let Some(d) = self.depths.get(&(micro, depth)) else {
                continue;
            };
            let n = share.each + u64::from(share.extra > 0);
            let ring = self.planner.costs.ring_of(d.heaviest, composition.pipelines());
            step = step.max(d.fill_ms + d.period_ms * n as f64 + ring);
        }
        Some(step)
    }

    fn simulated(
        &self,
        micro: u32,
        composition: Composition,
        known: &mut BTreeMap<(u32, usize, u32), Simulated>,
    ) -> Option<Candidate> {
        let costs = &self.planner.costs;
        let shares = self.shares(micro, composition)?;
        let holders = composition.pipelines();
        let mut left = self.request.global_batch_size;
        let (mut step_ms, mut busy, mut pipelines) = (0.0f64, 0.0, Vec::new());
        for (share, (depth, count)) in shares.iter().zip(composition.classes) {
            for i in 0..count as u64 {
                let d = self.depths.get(&(micro, depth))?;
                // Whole micro-batches; only the last pipeline's last one can be short.
                let n = share.each + u64::from(i < share.extra);
                let samples = (n * u64::from(micro)).min(left);
                left -= samples;
                let batches = u32::try_from(n).ok()?;
                let took = known
                    .entry((micro, depth, batches))
                    .or_insert_with(|| self.simulate_pipeline(d, micro, batches));
                busy += took.busy_ms.iter().sum::<f64>();
                for (end, range) in took.ends_ms.iter().zip(&d.stages) {
                    step_ms = step_ms.max(end + costs.ring_ms(*range, holders));
                }
                pipelines.push(CandidatePipeline {
                    stages: d.stages.clone(),
                    samples,
                });
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "counts are small")]
        let bubble = (1.0 - busy / (composition.workers() as f64 * step_ms)).clamp(0.0, 1.0);
        Some(Candidate {
            pipelines,
            micro_batch_size: micro,
            schedule: self.schedule,
            step_ms,
            bubble,
        })
    }

    /// Simulates the fill and some steady state; a longer step goes on at the period of the dearest stage.
    fn simulate_pipeline(&self, depth: &Depth, micro: u32, batches: u32) -> Simulated {
        let stages = depth.stages.len();
        let steady = u32::try_from(4 * stages + 16).unwrap_or(u32::MAX);
        let n = batches.min(steady);
        let times: Vec<StageTimes> = depth
            .stages
            .iter()
            .enumerate()
            .map(|(s, r)| self.times(*r, micro, s))
            .collect();
        let spec = &self.schedule;
        let lists: Vec<_> = (0..stages).map(|s| generate(spec, stages, s, n)).collect();
        let mut took = simulate(&lists, &times, n);
        let more = depth.period_ms * f64::from(batches - n);
        took.ends_ms.iter_mut().for_each(|end| *end += more);
        took.busy_ms
            .iter_mut()
            .for_each(|busy| *busy *= f64::from(batches) / f64::from(n));
        took
    }

    fn times(&self, range: SegmentRange, micro: u32, stage: usize) -> StageTimes {
        let costs = &self.planner.costs;
        StageTimes {
            forward_ms: costs.forward_ms(range, micro) / self.slowest,
            backward_ms: costs.backward_ms(range, micro) / self.slowest,
            transfer_ms: if stage == 0 {
                0.0
            } else {
                costs.transfer_ms(range.start, micro)
            },
        }
    }

    /// The least number of workers above `used` that some composition uses, and its best step time.
    pub(super) fn best_beyond(&self, used: usize) -> Option<(usize, f64)> {
        let of = |micro: u32| {
            let all = self
                .compositions(micro)
                .into_iter()
                .filter(move |c| c.workers() > used);
            all.filter_map(move |c| self.closed_form(micro, c).map(|ms| (c.workers(), ms)))
        };
        let all = self.micro_batch_sizes().into_iter().flat_map(of);
        all.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
    }
}
