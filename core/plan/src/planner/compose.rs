//! Compositions: how many pipelines of which depths, cut where, with which share of the batch.
//!
//! All are scored in closed form; the best for each number of workers are kept, and the best of those are simulated
//! ([`super::candidate`]). As the list for k workers does not depend on how many there are, one worker more never takes a
//! good plan off the list.

use super::cut::Cut;
use super::family::{Bounds, Composition, Family};
use super::place::fullest_node;
use super::tables::Tables;
use super::{CostPlanner, PlanRequest};
use crate::cost::SegmentKind;
use crate::document::{Recompute, ScheduleKind};
use crate::layout::SegmentRange;
use crate::partition::partition_all;
use crate::schedule::stash_max;

/// Compositions that are kept for each number of workers.
const PER_WORKERS: usize = 8;
/// What scores worse than the best by this factor is not kept: cuts that weigh the rings gain less than that. For many
/// workers, where compositions are many and alike, less is kept.
const NEAR: [f64; 2] = [1.12, 1.03];
/// Up to so many workers every mixture of two depths is scored.
const EXACT: usize = 128;
/// Up to so many workers all depths are mixed; beyond, unequal pipelines are made of depths that shorten the period.
const SMALL: usize = 256;

/// A composition with its score, milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) score: f64,
    pub(super) family: usize,
    pub(super) composition: Composition,
}

pub(super) struct Composer<'a> {
    pub(super) planner: &'a CostPlanner,
    pub(super) request: &'a PlanRequest,
    /// At most so many may be used.
    pub(super) workers: usize,
    pub(super) families: Vec<Family>,
    pub(super) memory: Option<u64>,
    /// Workers of the fullest node.
    pub(super) per_node: usize,
    /// By workers used, each list in ascending order of score.
    best: Vec<Vec<Entry>>,
    best_score: f64,
    pub(super) scored: u64,
}

impl<'a> Composer<'a> {
    /// Cuts the model for a pool of `workers` that are at least as fast as `slowest` and have at least `memory` bytes, and
    /// scores what they can be composed to.
    pub(super) fn new(
        planner: &'a CostPlanner,
        request: &'a PlanRequest,
        workers: usize,
        slowest: f64,
        memory: Option<u64>,
    ) -> Self {
        let workers = workers.min(planner.constraints.max_workers.max(1) as usize);
        let mut composer = Composer {
            planner,
            request,
            workers,
            families: Vec::new(),
            memory,
            per_node: fullest_node(&request.workers),
            best: vec![Vec::new(); workers + 1],
            best_score: f64::INFINITY,
            scored: 0,
        };
        for micro in composer.micro_batch_sizes() {
            for (policies, kinds) in composer.choices() {
                composer.cut(micro, &policies, &kinds, slowest);
            }
        }
        // Equal pipelines first: their best score spares most of the others.
        for equal in [true, false] {
            for family in 0..composer.families.len() {
                composer.score(family, equal);
            }
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

    /// Orders of work with the same choice of what stages may keep. Selective recompute is none where no attention is known.
    fn choices(&self) -> Vec<(Vec<Recompute>, Vec<ScheduleKind>)> {
        let known = self.planner.costs.segments.iter();
        let attention = known.into_iter().any(|s| s.kind == SegmentKind::Attention);
        let mut choices: Vec<(Vec<Recompute>, Vec<ScheduleKind>)> = Vec::new();
        let mut seen: Vec<ScheduleKind> = Vec::new();
        for spec in &self.planner.constraints.schedules {
            if seen.contains(&spec.kind) || spec.kind.chunks() > 1 {
                continue;
            }
            seen.push(spec.kind);
            let same = self
                .planner
                .constraints
                .schedules
                .iter()
                .filter(|s| s.kind == spec.kind);
            let mut policies: Vec<Recompute> = same.map(|s| s.recompute).collect();
            policies.sort_unstable();
            policies.dedup();
            if policies.len() > 1 && !attention {
                policies.retain(|p| *p != Recompute::Selective);
            }
            match choices.iter_mut().find(|(p, _)| *p == policies) {
                Some((_, kinds)) => kinds.push(spec.kind),
                None => choices.push((policies, vec![spec.kind])),
            }
        }
        choices
    }

    /// Adds the families of a micro-batch size: one for all schedules where memory binds none of them.
    fn cut(&mut self, micro: u32, policies: &[Recompute], schedules: &[ScheduleKind], slowest: f64) {
        let c = &self.planner.constraints;
        let lightest = policies.first().copied().unwrap_or(Recompute::None);
        let segments = self.request.layout.segments;
        let widest = u32::try_from(self.workers).unwrap_or(u32::MAX);
        let deepest = c.max_depth.unwrap_or(segments).min(segments).min(widest);
        let tables = Tables::new(&self.planner.costs, micro, lightest, slowest);
        let batches = self.request.global_batch_size.div_ceil(u64::from(micro));
        let cut =
            |of: &dyn Fn(SegmentRange, u32) -> Option<Recompute>, in_flight: &[u32]| -> Vec<Option<Cut>> {
                let all = partition_all(segments, deepest, |r, later| {
                    Some(tables.stage_ms(r, of(r, later)?))
                });
                let latency_ms = self.planner.costs.device.latency_ms;
                let one = |p: u32| {
                    let stages = all.stages(p)?;
                    let kept = policies_of(&stages, of)?;
                    Some(Cut::new(&tables, stages, kept, in_flight, latency_ms))
                };
                let shallow = (0..c.min_depth.max(1)).map(|_| None);
                shallow.chain((c.min_depth.max(1)..=deepest).map(one)).collect()
            };
        // The schedule that keeps most on the way stalls least: the others of a family are tried in the simulation.
        let most = self.most_stashes(schedules, deepest, batches);
        let free = cut(&|_, _| Some(lightest), &most);
        let unbound = |kind: &ScheduleKind| {
            self.memory.is_none() || self.fitting(&tables, &free, *kind, batches).is_none()
        };
        let (roomy, tight): (Vec<ScheduleKind>, Vec<ScheduleKind>) =
            schedules.iter().partition(|k| unbound(k));
        let mut found: Vec<(Vec<ScheduleKind>, Vec<Option<Cut>>)> = Vec::new();
        for kind in tight {
            let cuts = match self.fitting(&tables, &free, kind, batches) {
                Some(Some(some)) => some,
                _ => {
                    let stashes = self.stashes(kind, deepest, batches);
                    let keeps = |r: SegmentRange, later: u32| {
                        self.keeps(&tables, policies, r, stashes[later as usize])
                    };
                    cut(&keeps, &stashes)
                }
            };
            found.push((vec![kind], cuts));
        }
        if !roomy.is_empty() {
            found.insert(0, (roomy, free));
        }
        for (schedules, cuts) in found {
            if cuts.iter().any(Option::is_some) {
                self.families.push(Family {
                    micro,
                    batches,
                    schedules,
                    policies: policies.to_vec(),
                    tables: tables.clone(),
                    cuts,
                });
            }
        }
    }

    /// What memory does to cuts that were made without regard to it: nothing (none); or it leaves those that fit, the others
    /// being hopeless; or (inner none) other cuts might fit.
    #[expect(clippy::option_option, reason = "three cases, named above")]
    fn fitting(
        &self,
        tables: &Tables,
        free: &[Option<Cut>],
        kind: ScheduleKind,
        batches: u64,
    ) -> Option<Option<Vec<Option<Cut>>>> {
        let deepest = u32::try_from(free.len()).unwrap_or(u32::MAX);
        let stashes = self.stashes(kind, deepest, batches);
        let least = tables.memory_bytes(self.request.layout.whole(), 1, Recompute::None);
        let (mut all, mut some) = (true, Vec::with_capacity(free.len()));
        for cut in free {
            let holds = |cut: &&Cut| {
                let stages = cut.stages.iter().zip(&cut.policies).rev().zip(&stashes);
                stages
                    .into_iter()
                    .all(|((r, policy), stash)| self.keeps(tables, &[*policy], *r, *stash).is_some())
            };
            let fits = cut.as_ref().filter(holds);
            if let (Some(cut), None) = (cut, fits) {
                all = false;
                let memory = self.memory.unwrap_or(u64::MAX);
                if least <= memory.saturating_mul(cut.stages.len() as u64) {
                    return Some(None);
                }
            }
            some.push(fits.cloned());
        }
        (!all).then_some(Some(some))
    }

    /// Micro-batches that a stage keeps, by the number of stages behind it (it depends on nothing else).
    pub(super) fn stashes(&self, kind: ScheduleKind, deepest: u32, batches: u64) -> Vec<u32> {
        let batches = u32::try_from(batches).unwrap_or(u32::MAX);
        (1..=deepest as usize)
            .map(|p| stash_max(kind, p, 0, batches))
            .collect()
    }

    /// The largest of the stashes of several schedules.
    pub(super) fn most_stashes(&self, kinds: &[ScheduleKind], deepest: u32, batches: u64) -> Vec<u32> {
        let all = kinds.iter().map(|kind| self.stashes(*kind, deepest, batches));
        let most = |a: Vec<u32>, b: Vec<u32>| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect();
        all.reduce(most).unwrap_or_default()
    }

    /// The quickest of these policies under which a stage with so many micro-batches fits into memory.
    pub(super) fn keeps(
        &self,
        tables: &Tables,
        policies: &[Recompute],
        range: SegmentRange,
        stash: u32,
    ) -> Option<Recompute> {
        let fits = |p: &&Recompute| {
            self.memory
                .is_none_or(|m| tables.memory_bytes(range, stash, **p) <= m)
        };
        policies.iter().find(fits).copied()
    }

    /// Scores D - k pipelines of depth p and k of depth q > p, for every D, p and q; for many workers only with k as large as
    /// they allow.
    fn score(&mut self, family: usize, equal: bool) {
        let f = &self.families[family];
        let depths: Vec<usize> = (1..f.cuts.len()).filter(|p| f.cuts[*p].is_some()).collect();
        let Some(shallowest) = depths.first() else {
            return;
        };
        let most = usize::try_from(f.batches)
            .unwrap_or(usize::MAX)
            .min(self.workers / shallowest);
        let quick = quicker(&f.cuts, &depths);
        let bounds = Bounds::new(f);
        // Few workers: also fewer deep pipelines than fit, so that what fewer workers can do is never missed.
        let fewer = match self.workers {
            0..=EXACT => usize::MAX,
            n if n <= SMALL => 4,
            _ => 1,
        };
        for pipelines in 1..=most {
            if bounds.least_ms(pipelines, self.workers) > self.near() {
                continue;
            }
            let few = self.workers <= SMALL || pipelines <= 4;
            let of = if few || equal { &depths } else { &quick };
            for (i, p) in of.iter().enumerate() {
                let Some(idle) = self.workers.checked_sub(p * pipelines) else {
                    break;
                };
                if equal {
                    self.consider(
                        family,
                        Composition {
                            classes: [(0, 0), (*p, pipelines)],
                        },
                    );
                    continue;
                }
                for q in &of[i + 1..] {
                    let deep = (idle / (q - p)).min(pipelines);
                    if deep == 0 {
                        break;
                    }
                    // All deep is an equal composition.
                    for deep in (deep.saturating_sub(fewer) + 1..=deep.min(pipelines - 1)).rev() {
                        self.consider(
                            family,
                            Composition {
                                classes: [(*q, deep), (*p, pipelines - deep)],
                            },
                        );
                    }
                }
            }
        }
    }

    fn near(&self) -> f64 {
        self.best_score * NEAR[usize::from(self.workers > SMALL)]
    }

    /// Keeps a composition where it is among the best of its number of workers.
    fn consider(&mut self, family: usize, composition: Composition) {
        let workers = composition.workers();
        if workers < self.planner.constraints.min_workers as usize {
            return;
        }
        self.scored += 1;
        let list = &self.best[workers];
        let worst = list.get(PER_WORKERS - 1).map_or(f64::INFINITY, |e| e.score);
        let limit = if self.workers <= SMALL {
            worst
        } else {
            worst.min(self.near())
        };
        let f = &self.families[family];
        let turns = self.turns(workers);
        if !f.may_be_below(limit / turns, &composition) {
            return;
        }
        let score = f.closed_form(&composition).map(|score| score * turns);
        let Some(score) = score.filter(|score| *score < limit) else {
            return;
        };
        self.best_score = self.best_score.min(score);
        let list = &mut self.best[workers];
        let at = list.partition_point(|e| e.score <= score);
        list.insert(
            at,
            Entry {
                score,
                family,
                composition,
            },
        );
        list.truncate(PER_WORKERS);
    }

    /// The best compositions of all numbers of workers, best first, at most `most`.
    pub(super) fn short_list(&self, most: usize) -> Vec<Entry> {
        let limit = self.near();
        let mut list: Vec<Entry> = self
            .best
            .iter()
            .flatten()
            .filter(|e| e.score <= limit)
            .copied()
            .collect();
        list.sort_by(|a, b| {
            let key = |e: &Entry| (e.family, e.composition);
            a.score.total_cmp(&b.score).then_with(|| key(a).cmp(&key(b)))
        });
        list.truncate(most);
        list
    }

    /// The least number of workers above `used` that some kept composition uses, and its best score.
    pub(super) fn best_beyond(&self, used: usize) -> Option<(usize, f64)> {
        let beyond = self.best.iter().enumerate().skip(used + 1);
        let first = |(n, list): (usize, &Vec<Entry>)| list.first().map(|e| (n, e.score));
        beyond.filter_map(first).next()
    }
}

/// What each stage keeps, by its segments and the number of stages behind it.
pub(super) fn policies_of(
    stages: &[SegmentRange],
    of: &dyn Fn(SegmentRange, u32) -> Option<Recompute>,
) -> Option<Vec<Recompute>> {
    let later = |j: usize| u32::try_from(stages.len() - 1 - j).unwrap_or(u32::MAX);
    let stages = stages.iter().enumerate();
    stages.map(|(j, r)| of(*r, later(j))).collect()
}

/// Depths that shorten the period of all shallower ones: what unequal compositions of many workers are made of.
fn quicker(cuts: &[Option<Cut>], depths: &[usize]) -> Vec<usize> {
    let mut least = f64::INFINITY;
    let mut quick = Vec::new();
    for p in depths {
        let period = cuts[*p].as_ref().map_or(f64::INFINITY, |c| c.period_ms);
        if period < least * (1.0 - 1e-6) {
            quick.push(*p);
            least = period;
        }
    }
    quick
}
