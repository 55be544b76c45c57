//! The planner: the best shape for the workers there are, each one used or named a spare with the reason.
//!
//! Every number of pipelines and every pair of depths is scored in closed form, the best few are simulated. Pure and
//! deterministic: the same request gives the same shape.

mod candidate;
mod choose;
mod compose;
mod cut;
mod explain;
mod family;
mod interleave;
mod place;
mod spares;
mod tables;
mod uneven;

use crate::cost::Costs;
use crate::document::{
    Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage,
};
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use crate::schedule::stash_max;
use candidate::Candidate;
use compose::Composer;
use place::Placed;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use candidate::StepParts;
pub use explain::{Explained, RunnerUp};

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
    /// Expected time until other workers will be there, milliseconds: plans are judged by what they train until then, the way
    /// there included. None: for ever.
    pub horizon_ms: Option<f64>,
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

    /// What a forward and backward of a micro-batch of `samples` through a segment should take on a worker of speed 1,
    /// milliseconds; none where the planner has no costs, which turns feedback off.
    fn expected_ms(&self, _segment: u32, _samples: u32) -> Option<f64> {
        None
    }

    /// The predicted step of a shape on these workers, milliseconds.
    fn predicted_ms(&self, _shape: &Shape, _workers: &[WorkerInfo]) -> Option<f64> {
        None
    }

    /// Observations say that segments take so many times what was expected of them.
    fn learn(&mut self, _factors: &BTreeMap<u32, f64>) {}
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
    /// Orders of work to choose from; the first of those that promise the same step time is taken. Where one stands with
    /// several kinds of recompute, each stage keeps as much as fits into its memory.
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
        Ok(self.search(request)?.shape)
    }

    fn expected_ms(&self, segment: u32, samples: u32) -> Option<f64> {
        let range = SegmentRange {
            start: segment,
            end: segment + 1,
        };
        let known = (segment as usize) < self.costs.segments.len();
        known.then(|| self.costs.forward_ms(range, samples) + self.costs.backward_ms(range, samples))
    }

    fn predicted_ms(&self, shape: &Shape, workers: &[WorkerInfo]) -> Option<f64> {
        Some(self.predict_ms(shape, workers))
    }

    fn learn(&mut self, factors: &BTreeMap<u32, f64>) {
        self.scale_segments(factors);
    }
}

/// What a search found.
struct Search {
    shape: Shape,
    /// All simulated candidates, fastest first, and the one that the shape is made of.
    found: Vec<Candidate>,
    chosen: Candidate,
    moved_bytes: u64,
    /// Compositions scored in closed form.
    scored: u64,
}

impl CostPlanner {
    fn search(&self, request: &PlanRequest) -> Result<Search, Infeasible> {
        let workers = self.offered(request)?;
        let pools = self.pools(&workers);
        let mut found: Vec<(Candidate, usize)> = Vec::new();
        let mut composers = Vec::new();
        for (i, pool) in pools.iter().enumerate() {
            let slowest = pool.iter().map(|w| pace(w.speed)).fold(f64::INFINITY, f64::min);
            let composer = Composer::new(self, request, pool.len(), slowest, self.memory(pool));
            found.extend(composer.candidates().into_iter().map(|c| (c, i)));
            composers.push(composer);
        }
        let Some((mut chosen, placed)) = self.choose(request, &found, &pools, workers.len()) else {
            return Err(Infeasible(self.why_not(request, workers.len())));
        };
        let mut shape = self.shape(&chosen, &placed);
        let everyone = self.best_of_all(request, &found, &pools[0]);
        let bases = [request.parent.as_ref(), everyone.as_ref(), Some(&shape)];
        let mut moved_bytes = placed.moved_bytes;
        if let Some(uneven) = self.uneven(request, &bases, &shape.predicted) {
            moved_bytes = self.moved_bytes(request, &uneven);
            shape = uneven;
        }
        if let Some((interleaved, described)) = self.interleaved(request, &shape, &composers, &pools) {
            found.push((chosen, 0));
            moved_bytes = self.moved_bytes(request, &interleaved);
            (shape, chosen) = (interleaved, described);
        }
        let shape = self.name_spares(shape, &workers, &pools, &composers);
        let scored = composers.iter().map(|c| c.scored).sum();
        drop(composers);
        let mut found: Vec<Candidate> = found.into_iter().map(|(c, _)| c).collect();
        found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        Ok(Search {
            shape,
            found,
            chosen,
            moved_bytes,
            scored,
        })
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

    fn capacity(&self, worker: &WorkerInfo) -> u64 {
        let both = [self.constraints.device_memory_bytes, worker.memory_bytes];
        both.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Memory of the smallest worker: what every stage must fit into.
    fn memory(&self, workers: &[&WorkerInfo]) -> Option<u64> {
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
            .max_by_key(|r| self.costs.memory_bytes(*r, 1, 1, Recompute::Full));
        let need = largest.map_or(0, |r| self.costs.memory_bytes(r, 1, 1, Recompute::Full));
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
                mib(self
                    .costs
                    .memory_bytes(request.layout.whole(), 1, 1, Recompute::Full)),
                mib(memory),
                max_depth.map_or(String::new(), |d| format!(", at most {d} stages in a pipeline")),
            ),
        }
    }

    /// The shape of a candidate with its workers on their places.
    fn shape(&self, candidate: &Candidate, placed: &Placed) -> Shape {
        let mut start = 0;
        let mut workers = placed.workers.iter();
        let mut pipelines = Vec::with_capacity(candidate.pipelines.len());
        for p in &candidate.pipelines {
            let stages = p.stages.iter().zip(&p.policies).zip(workers.by_ref());
            let stages = stages.map(|((segments, policy), worker)| Stage {
                worker: *worker,
                segments: *segments,
                recompute: Some(*policy).filter(|p| *p != candidate.schedule.recompute),
            });
            let samples = SampleRange {
                start,
                end: start + p.samples,
            };
            start = samples.end;
            pipelines.push(Pipeline {
                stages: stages.collect(),
                samples,
            });
        }
        Shape {
            pipelines,
            spares: Vec::new(),
            micro_batch_size: candidate.micro_batch_size,
            schedule: candidate.schedule,
            predicted: Prediction {
                step_ms: candidate.step_ms,
                bubble: candidate.bubble,
                move_ms: placed.move_ms,
                calibrated: self.costs.calibrated,
            },
        }
    }

    /// Memory that each stage of each pipeline needs, bytes.
    fn memory_bytes(&self, shape: &Shape) -> Vec<Vec<u64>> {
        let of = |p: &Pipeline| {
            let n = u32::try_from(p.micro_batches(shape.micro_batch_size)).unwrap_or(u32::MAX);
            let stage = |(s, stage): (usize, &Stage)| {
                let (at, spec) = ((p.stages.len(), s), shape.schedule_of(stage));
                let m = shape.micro_batch_size;
                self.stage_bytes(spec.kind, spec.recompute, stage.segments, at, n, m)
            };
            p.stages.iter().enumerate().map(stage).collect()
        };
        shape.pipelines.iter().map(of).collect()
    }

    /// Memory of stage `at.1` of a pipeline of `at.0` stages.
    fn stage_bytes(
        &self,
        kind: ScheduleKind,
        recompute: Recompute,
        range: SegmentRange,
        at: (usize, usize),
        micro_batches: u32,
        micro: u32,
    ) -> u64 {
        let stash = stash_max(kind, at.0, at.1, micro_batches);
        self.costs.memory_bytes(range, stash, micro, recompute)
    }
}

#[cfg(test)]
mod tests;
