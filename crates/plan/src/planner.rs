//! The planner: the best shape for the workers there are, each one used or named a spare with the reason.
//!
//! Every number of pipelines and every pair of depths is scored in closed form, the best few are simulated. Pure and
//! deterministic: the same request gives the same shape.

mod compose;
mod place;

use crate::cost::Costs;
use crate::document::{Pipeline, Prediction, Recompute, SampleRange, ScheduleSpec, Shape, Spare, Stage};
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use crate::schedule::stash_max;
use compose::{Candidate, Composer};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Predictions closer than this count as equal; then redundancy and little movement decide.
const EQUAL: f64 = 1.03;

/// A worker that may be planned with.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerInfo {
    /// Who.
    pub id: WorkerId,
    /// Device memory, where known.
    pub memory_bytes: Option<u64>,
    /// Measured speed, 1.0 = nominal.
    pub speed: f64,
    /// The node it runs on.
    pub node: String,
}

/// What a plan is wanted for.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanRequest {
    /// Workers that may be used, in any order.
    pub workers: Vec<WorkerInfo>,
    /// The model's units.
    pub layout: Layout,
    /// Samples in a step (M).
    pub global_batch_size: u64,
    /// The shape in force.
    pub parent: Option<Shape>,
    /// Units at the base, by worker: keeping them where they are costs nothing.
    pub held: BTreeMap<WorkerId, Vec<Unit>>,
}

/// No plan exists; the text is for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Infeasible(pub String);

/// Makes shapes.
pub trait Planner {
    /// The best shape for the request.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible>;
}

/// What the job allows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Constraints {
    /// Fewest workers that may train.
    pub min_workers: u32,
    /// Most workers that may train.
    pub max_workers: u32,
    /// Samples in a micro-batch; none = the planner chooses.
    pub micro_batch_size: Option<u32>,
    /// Fewest stages in a pipeline.
    pub min_depth: u32,
    /// Most stages in a pipeline; none = the number of segments.
    pub max_depth: Option<u32>,
    /// Orders of work to choose from; the first of those that promise the same step time is taken.
    pub schedules: Vec<ScheduleSpec>,
    /// Memory that a worker may use; the smaller of this and what it reports counts.
    pub device_memory_bytes: Option<u64>,
}

/// The planner over costs.
#[derive(Clone, PartialEq, Debug)]
pub struct CostPlanner {
    /// What segments cost.
    pub costs: Costs,
    /// What the job allows.
    pub constraints: Constraints,
}

impl Planner for CostPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        let workers = self.offered(request)?;
        let pools = self.pools(&workers);
        let mut found: Vec<(Candidate, usize)> = Vec::new();
        let mut composers = Vec::new();
        for (i, pool) in pools.iter().enumerate() {
            let slowest = pool.iter().map(|w| pace(w.speed)).fold(f64::INFINITY, f64::min);
            for schedule in &self.constraints.schedules {
                let composer =
                    Composer::new(self, request, *schedule, pool.len(), slowest, self.memory(pool));
                found.extend(composer.candidates().into_iter().map(|c| (c, i)));
                composers.push((i, composer));
            }
        }
        let Some(best) = found.iter().map(|(c, _)| c.step_ms).min_by(f64::total_cmp) else {
            return Err(Infeasible(self.why_not(request, workers.len())));
        };
        let near = found.iter().filter(|(c, _)| c.step_ms <= best * EQUAL);
        let ranked = near.map(|(c, i)| self.place(c, request, &pools[*i]));
        // The first of equals: pools go from all workers to few.
        let chosen = ranked.min_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(Ordering::Equal));
        let (_, shape) = chosen.ok_or_else(|| Infeasible(self.why_not(request, workers.len())))?;
        Ok(self.name_spares(shape, &workers, &pools, &composers))
    }
}

/// A measured speed in steps of 5 %, so that noise changes no plan. What is no positive number counts as nominal.
fn pace(speed: f64) -> f64 {
    if speed.is_finite() && speed > 0.0 {
        1.05f64.powf((speed.ln() / 1.05f64.ln()).round())
    } else {
        1.0
    }
}

/// At most four of the sorted values, first and last among them.
fn levels<T: Copy + PartialEq>(mut sorted: Vec<T>) -> Vec<T> {
    sorted.dedup();
    let last = sorted.len() - 1;
    if last < 4 {
        sorted
    } else {
        (0..4).map(|i| sorted[i * last / 3]).collect()
    }
}

/// Smaller is better: old and new state do not fit together somewhere, not every segment held twice, bytes to move, step
/// time, workers used.
type Rank = (bool, bool, u64, f64, usize);

impl CostPlanner {
    fn offered(&self, request: &PlanRequest) -> Result<Vec<WorkerInfo>, Infeasible> {
        let mut workers = request.workers.clone();
        workers.sort_by_key(|w| w.id);
        workers.dedup_by_key(|w| w.id);
        let (known, asked) = (self.costs.segments.len(), request.layout.segments);
        if known != asked as usize || asked == 0 {
            return Err(Infeasible(format!(
                "costs are known for {known} segments, the model has {asked}"
            )));
        }
        if request.global_batch_size == 0 {
            return Err(Infeasible(
                "training.globalBatchSize is 0, at least 1 sample is needed".into(),
            ));
        }
        let min = self.constraints.min_workers.max(1) as usize;
        if workers.len() < min {
            return Err(Infeasible(format!(
                "needs at least {min} workers, {} are there",
                workers.len()
            )));
        }
        Ok(workers)
    }

    /// Groups that a plan may be made for: all workers, then those with at least some memory and at least some speed. A
    /// worker that is too small or too slow thus costs the plan itself, not everybody's memory or pace.
    fn pools(&self, workers: &[WorkerInfo]) -> Vec<Vec<WorkerInfo>> {
        let mut paces: Vec<f64> = workers.iter().map(|w| pace(w.speed)).collect();
        paces.sort_by(f64::total_cmp);
        let mut memories: Vec<u64> = workers.iter().map(|w| self.capacity(w)).collect();
        memories.sort_unstable();
        let mut pools: Vec<Vec<WorkerInfo>> = Vec::new();
        for memory in levels(memories) {
            for least in levels(paces.clone()) {
                let fit = |w: &&WorkerInfo| self.capacity(w) >= memory && pace(w.speed) >= least;
                let mut pool: Vec<WorkerInfo> = workers.iter().filter(fit).cloned().collect();
                // With more workers than may train, the pace is that of the fastest of them.
                let most = self.constraints.max_workers.max(1) as usize;
                if pool.len() > most {
                    let mut fastest: Vec<f64> = pool.iter().map(|w| pace(w.speed)).collect();
                    fastest.sort_by(|a, b| b.total_cmp(a));
                    pool.retain(|w| pace(w.speed) >= fastest[most - 1]);
                }
                if !pool.is_empty() && !pools.contains(&pool) {
                    pools.push(pool);
                }
            }
        }
        pools
    }

    fn capacity(&self, worker: &WorkerInfo) -> u64 {
        let both = [self.constraints.device_memory_bytes, worker.memory_bytes];
        both.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Memory of the smallest worker: what every stage must fit into.
    fn memory(&self, workers: &[WorkerInfo]) -> Option<u64> {
        workers
            .iter()
            .map(|w| self.capacity(w))
            .min()
            .filter(|m| *m < u64::MAX)
    }

    /// Memory of the largest worker.
    fn largest(&self, workers: &[WorkerInfo]) -> u64 {
        workers.iter().map(|w| self.capacity(w)).max().unwrap_or(u64::MAX)
    }

    fn why_not(&self, request: &PlanRequest, workers: usize) -> String {
        let Constraints {
            min_depth, max_depth, ..
        } = self.constraints;
        let segments = request.layout.segments;
        if (workers as u64) < u64::from(min_depth) {
            return format!("needs at least {min_depth} workers (pipeline.minDepth), {workers} are there");
        }
        if min_depth > segments {
            return format!("pipeline.minDepth is {min_depth}, but the model has only {segments} segments");
        }
        let largest = (0..segments)
            .map(|s| SegmentRange { start: s, end: s + 1 })
            .max_by_key(|r| self.costs.memory_bytes(*r, 1, 1, true));
        let need = largest.map_or(0, |r| self.costs.memory_bytes(r, 1, 1, true));
        let memory = self.largest(&request.workers);
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        match largest {
            Some(r) if need > memory => format!(
                "segment {} needs {} MiB with its optimizer state, a worker has {} MiB",
                r.start,
                mib(need),
                mib(memory)
            ),
            _ => format!(
                "the model does not fit: {} MiB of state over {workers} workers of {} MiB{}",
                mib(self.costs.memory_bytes(request.layout.whole(), 1, 1, true)),
                mib(memory),
                max_depth.map_or(String::new(), |d| format!(", at most {d} stages in a pipeline")),
            ),
        }
    }

    /// Puts workers on the places of a candidate so that the fewest bytes move.
    fn place(&self, candidate: &Candidate, request: &PlanRequest, pool: &[WorkerInfo]) -> (Rank, Shape) {
        let placed = place::place(self, candidate, request, pool);
        let mut start = 0;
        let mut workers = placed.workers.iter();
        let mut pipelines = Vec::new();
        for p in &candidate.pipelines {
            let stages = p.stages.iter().zip(workers.by_ref());
            let stages = stages
                .map(|(segments, worker)| Stage {
                    worker: *worker,
                    segments: *segments,
                })
                .collect();
            let samples = SampleRange {
                start,
                end: start + p.samples,
            };
            start = samples.end;
            pipelines.push(Pipeline { stages, samples });
        }
        let shape = Shape {
            pipelines,
            spares: Vec::new(),
            micro_batch_size: candidate.micro_batch_size,
            schedule: candidate.schedule,
            predicted: Prediction {
                step_ms: candidate.step_ms,
                bubble: candidate.bubble,
                calibrated: self.costs.calibrated,
            },
        };
        let single = candidate.pipelines.len() < 2;
        (
            (
                placed.crowded,
                single,
                placed.moved_bytes,
                candidate.step_ms,
                placed.workers.len(),
            ),
            shape,
        )
    }

    fn name_spares(
        &self,
        mut shape: Shape,
        workers: &[WorkerInfo],
        pools: &[Vec<WorkerInfo>],
        composers: &[(usize, Composer)],
    ) -> Shape {
        let used: BTreeSet<WorkerId> = shape.members().into_iter().collect();
        let most = self.constraints.max_workers.max(1) as usize;
        let need = self.largest_stage(&shape);
        let step = shape.predicted.step_ms;
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let mut beyond: BTreeMap<usize, Option<(usize, f64)>> = BTreeMap::new();
        let mut reason = |worker: &WorkerInfo| {
            if used.len() >= most {
                return format!("the job uses at most {most} workers (elasticity.maxWorkers)");
            }
            let has = self.capacity(worker);
            if has < need {
                return format!(
                    "it has {} MiB of memory, a stage of this plan needs {} MiB",
                    mib(has),
                    mib(need)
                );
            }
            let with = pools
                .iter()
                .enumerate()
                .filter(|(_, pool)| pool.iter().any(|w| w.id == worker.id));
            let better = with.filter_map(|(i, _)| {
                *beyond.entry(i).or_insert_with(|| {
                    let of_pool = composers.iter().filter(|(pool, _)| *pool == i);
                    let found = of_pool.filter_map(|(_, c)| c.best_beyond(used.len()));
                    found.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)))
                })
            });
            match better.min_by(|a, b| a.1.total_cmp(&b.1)) {
                Some((_, ms)) if ms < step => {
                    format!("using it would shorten a step only from {step:.1} ms to {ms:.1} ms")
                }
                Some((_, ms)) => format!("using it would slow a step from {step:.1} ms to {ms:.1} ms"),
                None => format!("no cut into pipelines uses more than {} workers", used.len()),
            }
        };
        let idle = workers.iter().filter(|w| !used.contains(&w.id));
        shape.spares = idle
            .map(|w| Spare {
                worker: w.id,
                reason: reason(w),
            })
            .collect();
        shape
    }

    /// Memory of the stage that needs most.
    fn largest_stage(&self, shape: &Shape) -> u64 {
        let of = |p: &Pipeline| {
            let n = u32::try_from(p.micro_batches(shape.micro_batch_size)).unwrap_or(u32::MAX);
            let stage = |(s, stage): (usize, &Stage)| {
                let at = (p.stages.len(), s);
                self.stage_bytes(&shape.schedule, stage.segments, at, n, shape.micro_batch_size)
            };
            p.stages.iter().enumerate().map(stage).max().unwrap_or(0)
        };
        shape.pipelines.iter().map(of).max().unwrap_or(0)
    }

    /// Memory of stage `at.1` of a pipeline of `at.0` stages.
    fn stage_bytes(
        &self,
        schedule: &ScheduleSpec,
        range: SegmentRange,
        at: (usize, usize),
        micro_batches: u32,
        micro: u32,
    ) -> u64 {
        let stash = stash_max(schedule, at.0, at.1, micro_batches);
        self.costs
            .memory_bytes(range, stash, micro, schedule.recompute == Recompute::Full)
    }
}

#[cfg(test)]
mod tests;
