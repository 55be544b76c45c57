//! The planner: the best shape for the workers there are, each one used or named a spare with the reason.
//!
//! Every number of pipelines and every pair of depths is scored in closed form, the best few are simulated. Pure and
//! deterministic: the same request gives the same shape.

mod compose;

use crate::cost::Costs;
use crate::document::{Pipeline, Prediction, SampleRange, ScheduleSpec, Shape, Spare, Stage};
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use compose::{Candidate, Composer};
use serde::{Deserialize, Serialize};
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
    /// Order of work.
    pub schedule: ScheduleSpec,
    /// Memory of a worker, in place of what workers report.
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
        let composer = Composer::new(self, request, &workers);
        let candidates = composer.candidates();
        let Some(best) = candidates.iter().map(|c| c.step_ms).min_by(f64::total_cmp) else {
            return Err(Infeasible(self.why_not(request, workers.len())));
        };
        let shapes = candidates
            .iter()
            .filter(|c| c.step_ms <= best * EQUAL)
            .map(|c| self.place(c, request, &workers));
        let (_, shape) = shapes
            .min_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal))
            .ok_or_else(|| Infeasible(self.why_not(request, workers.len())))?;
        Ok(self.name_spares(shape, request, best, &composer))
    }
}

/// Smaller is better: not every segment held twice, bytes to move, step time, workers used.
type Rank = (bool, u64, f64, usize);

impl CostPlanner {
    fn offered(&self, request: &PlanRequest) -> Result<Vec<WorkerInfo>, Infeasible> {
        let mut workers = request.workers.clone();
        workers.sort_by(|a, b| a.id.cmp(&b.id));
        workers.dedup_by(|a, b| a.id == b.id);
        let min = self.constraints.min_workers.max(1) as usize;
        if workers.len() < min {
            return Err(Infeasible(format!("needs at least {min} workers, {} are there", workers.len())));
        }
        Ok(workers)
    }

    /// Memory of the smallest worker: what every stage must fit into.
    fn memory(&self, workers: &[WorkerInfo]) -> Option<u64> {
        self.constraints.device_memory_bytes.or_else(|| workers.iter().filter_map(|w| w.memory_bytes).min())
    }

    fn why_not(&self, request: &PlanRequest, workers: usize) -> String {
        let Constraints { min_depth, max_depth, .. } = self.constraints;
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
        let memory = self.memory(&request.workers).unwrap_or(u64::MAX);
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
    fn place(&self, candidate: &Candidate, request: &PlanRequest, workers: &[WorkerInfo]) -> (Rank, Shape) {
        let layout = &request.layout;
        let bytes = |unit: Unit| {
            let end = SegmentRange { start: unit.0, end: unit.0 + 1 };
            if Some(unit) == layout.tied_unit() {
                self.costs.tied_parameters
            } else {
                self.costs.segments.get(end.start as usize).map_or(0, |s| s.parameters)
            }
        };
        let places: Vec<(usize, usize, SegmentRange)> = candidate
            .pipelines
            .iter()
            .enumerate()
            .flat_map(|(i, p)| p.stages.iter().enumerate().map(move |(j, r)| (i, j, *r)))
            .collect();
        let assigned = assign(&places, workers, request, |range, worker| {
            let held = request.held.get(&worker);
            let units = layout.units_of(range);
            units.into_iter().filter(|u| held.is_some_and(|h| h.contains(u))).map(bytes).sum()
        });
        let needed: u64 =
            places.iter().map(|(_, _, r)| layout.units_of(*r).into_iter().map(bytes).sum::<u64>()).sum();
        let moved = needed.saturating_sub(assigned.kept);
        let mut start = 0;
        let mut pipelines = Vec::new();
        for (i, p) in candidate.pipelines.iter().enumerate() {
            let stages = p.stages.iter().enumerate().map(|(j, r)| Stage {
                worker: assigned.worker[&(i, j)],
                segments: *r,
            });
            let samples = SampleRange { start, end: start + p.samples };
            start = samples.end;
            pipelines.push(Pipeline { stages: stages.collect(), samples });
        }
        let shape = Shape {
            pipelines,
            spares: Vec::new(),
            micro_batch_size: candidate.micro_batch_size,
            schedule: self.constraints.schedule,
            predicted: Prediction {
                step_ms: candidate.step_ms,
                bubble: candidate.bubble,
                calibrated: self.costs.calibrated,
            },
        };
        let single = candidate.pipelines.len() < 2;
        ((single, moved, candidate.step_ms, places.len()), shape)
    }

    fn name_spares(&self, mut shape: Shape, request: &PlanRequest, best: f64, composer: &Composer) -> Shape {
        let used: BTreeSet<WorkerId> = shape.members().into_iter().collect();
        let mut idle: Vec<WorkerId> = request.workers.iter().map(|w| w.id).filter(|w| !used.contains(w)).collect();
        idle.sort_unstable();
        idle.dedup();
        let most = self.constraints.max_workers as usize;
        let reason = if used.len() >= most {
            format!("the job uses at most {most} workers (elasticity.maxWorkers)")
        } else {
            match composer.best_with(used.len() + 1) {
                Some(ms) => format!("using it would take a step from {best:.0} ms to {ms:.0} ms"),
                None => format!("no cut into pipelines uses more than {} workers", used.len()),
            }
        };
        shape.spares = idle.into_iter().map(|worker| Spare { worker, reason: reason.clone() }).collect();
        shape
    }
}

struct Assigned {
    worker: BTreeMap<(usize, usize), WorkerId>,
    kept: u64,
}

/// Greedy assignment: the pair that keeps the most bytes first; ties by the parent's place, then faster, then lower id.
fn assign(
    places: &[(usize, usize, SegmentRange)],
    workers: &[WorkerInfo],
    request: &PlanRequest,
    kept_bytes: impl Fn(SegmentRange, WorkerId) -> u64,
) -> Assigned {
    let mut pairs = Vec::new();
    for (n, (i, j, range)) in places.iter().enumerate() {
        for worker in workers {
            let kept = kept_bytes(*range, worker.id);
            let same = request.parent.as_ref().is_some_and(|p| p.place(worker.id) == Some((*i, *j)));
            pairs.push((kept, same, worker.speed, worker.id, n));
        }
    }
    pairs.sort_by(|a, b| {
        let key = b.0.cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.total_cmp(&a.2));
        key.then(a.4.cmp(&b.4)).then(a.3.cmp(&b.3))
    });
    let mut assigned = Assigned { worker: BTreeMap::new(), kept: 0 };
    let mut taken = BTreeSet::new();
    for (kept, _, _, worker, n) in pairs {
        let (i, j, _) = places[n];
        if taken.contains(&worker) || assigned.worker.contains_key(&(i, j)) {
            continue;
        }
        taken.insert(worker);
        assigned.worker.insert((i, j), worker);
        assigned.kept += kept;
    }
    assigned
}

#[cfg(test)]
mod tests;
