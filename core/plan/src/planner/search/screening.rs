//! Scores every composition in closed form and keeps the best for each number of workers.
//!
//! Since the list for k workers does not depend on how many there are, one more worker never removes a good plan from the list.

use super::composition::{Bounds, Composition, PipelineClass, closed_form_ms, may_be_below};
use super::partitions::{PartitionSet, Partitioner};
use crate::planner::problem::Problem;

/// Number of compositions that are kept for each number of workers.
const PER_WORKERS: usize = 8;
/// A composition that is worse than the best by this factor is not kept: taking the rings into account in partitions gains less than that.
/// For many workers, with many similar compositions, the factor is smaller.
const NEAR: [f64; 2] = [1.12, 1.03];
/// Up to this many workers every mixture of two depths is scored.
const EXACT: usize = 128;
/// Up to this many workers all depths are mixed; beyond, unequal pipelines are made of depths that shorten the period.
const SMALL: usize = 256;

/// A composition with its step in closed form, milliseconds.
#[derive(Clone, Copy, Debug)]
pub(in crate::planner) struct Scored {
    pub(in crate::planner) step_ms: f64,
    /// Index of its set of partitions.
    pub(in crate::planner) set: usize,
    pub(in crate::planner) composition: Composition,
}

/// The best compositions.
pub(in crate::planner) struct Screening {
    /// At most this many workers may be used.
    workers: usize,
    min_workers: usize,
    /// By number of pipelines: whether a plan may have that many.
    allowed: Vec<bool>,
    /// By number of workers used: the factor by which everything slows because workers take turns on cores.
    turns: Vec<f64>,
    /// By number of workers used: the best compositions, in ascending order of step time.
    best: Vec<Vec<Scored>>,
    best_ms: f64,
    pub(in crate::planner) scored: u64,
}

impl Screening {
    /// Scores the compositions that can be made from these sets of partitions.
    pub(in crate::planner) fn new(partitioner: &Partitioner, sets: &[PartitionSet]) -> Screening {
        let problem: Problem = partitioner.problem;
        let workers = partitioner.workers;
        let mut screening = Screening {
            workers,
            min_workers: problem.constraints.min_workers as usize,
            allowed: (0..=workers).map(|n| problem.allows(n)).collect(),
            turns: (0..=workers).map(|n| problem.turns(n)).collect(),
            best: vec![Vec::new(); workers + 1],
            best_ms: f64::INFINITY,
            scored: 0,
        };
        // Equal pipelines first: with their best score most other compositions need not be examined.
        for equal in [true, false] {
            for (i, set) in sets.iter().enumerate() {
                screening.score_set(i, set, equal);
            }
        }
        screening
    }

    /// Scores D - k pipelines of depth p and k of depth q > p, for every D, p and q; for many workers only with k as large as
    /// they allow.
    fn score_set(&mut self, index: usize, set: &PartitionSet, equal: bool) {
        let depths = set.depths();
        let Some(shallowest) = depths.first() else {
            return;
        };
        let most = usize::try_from(set.micro_batches)
            .unwrap_or(usize::MAX)
            .min(self.workers / shallowest);
        let quick = quicker(set);
        let bounds = Bounds::new(set);
        // With few workers, also fewer deep pipelines than would fit, so that plans for fewer workers are never missed.
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
                    self.consider(index, set, Composition::equal(*p, pipelines));
                    continue;
                }
                for q in &of[i + 1..] {
                    let deep = (idle / (q - p)).min(pipelines);
                    if deep == 0 {
                        break;
                    }
                    // If all pipelines are deep, the composition is an equal one.
                    for count in (deep.saturating_sub(fewer) + 1..=deep.min(pipelines - 1)).rev() {
                        let deep = PipelineClass { depth: *q, count };
                        let shallow = PipelineClass {
                            depth: *p,
                            count: pipelines - count,
                        };
                        let classes = [deep, shallow];
                        self.consider(index, set, Composition { classes });
                    }
                }
            }
        }
    }

    fn near(&self) -> f64 {
        self.best_ms * NEAR[usize::from(self.workers > SMALL)]
    }

    /// Keeps a composition if it is among the best for its number of workers.
    fn consider(&mut self, index: usize, set: &PartitionSet, composition: Composition) {
        let workers = composition.workers();
        if workers < self.min_workers || !self.allowed[composition.pipelines()] {
            return;
        }
        self.scored += 1;
        let worst = self.best[workers].get(PER_WORKERS - 1);
        let worst = worst.map_or(f64::INFINITY, |e| e.step_ms);
        let limit = if self.workers <= SMALL {
            worst
        } else {
            worst.min(self.near())
        };
        let turns = self.turns[workers];
        if !may_be_below(set, &composition, limit / turns) {
            return;
        }
        let step_ms = closed_form_ms(set, &composition, composition.partitions(set));
        let Some(step_ms) = step_ms.map(|ms| ms * turns).filter(|ms| *ms < limit) else {
            return;
        };
        self.best_ms = self.best_ms.min(step_ms);
        let list = &mut self.best[workers];
        let at = list.partition_point(|e| e.step_ms <= step_ms);
        let scored = Scored {
            step_ms,
            set: index,
            composition,
        };
        list.insert(at, scored);
        list.truncate(PER_WORKERS);
    }

    /// The best compositions of all numbers of workers, best first, at most `most`.
    pub(in crate::planner) fn short_list(&self, most: usize) -> Vec<Scored> {
        let limit = self.near();
        let near = self.best.iter().flatten().filter(|e| e.step_ms <= limit);
        let mut list: Vec<Scored> = near.copied().collect();
        list.sort_by(|a, b| {
            let key = |e: &Scored| (e.set, e.composition);
            a.step_ms.total_cmp(&b.step_ms).then_with(|| key(a).cmp(&key(b)))
        });
        list.truncate(most);
        list
    }

    /// The least number of workers above `used` that some kept composition uses, and its best score.
    pub(in crate::planner) fn best_above(&self, used: usize) -> Option<(usize, f64)> {
        let beyond = self.best.iter().enumerate().skip(used + 1);
        let first = |(n, list): (usize, &Vec<Scored>)| list.first().map(|e| (n, e.step_ms));
        beyond.filter_map(first).next()
    }
}

/// Depths whose period is shorter than that of all shallower ones, from which unequal compositions for many workers are made.
fn quicker(set: &PartitionSet) -> Vec<usize> {
    let mut least = f64::INFINITY;
    let mut quick = Vec::new();
    for partition in set.partitions() {
        if partition.form.period_ms < least * (1.0 - 1e-6) {
            quick.push(partition.stages.len());
            least = partition.form.period_ms;
        }
    }
    quick
}
