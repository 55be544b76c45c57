//! One planning problem: the request, the costs of segments, the job's constraints, and what follows from them for a worker or a stage.

use super::at_risk::AtRisk;
use super::request::{Constraints, PlanRequest, WorkerInfo};
use crate::cost::Costs;
use crate::document::{Pipeline, Prediction, Recompute, ScheduleKind, Shape, Stage};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::predict::{Speeds, StepPrediction, Topology, predict};
use crate::schedule::stash_max;
use std::collections::BTreeMap;

#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub(super) costs: &'a Costs,
    pub(super) constraints: &'a Constraints,
    pub(super) request: &'a PlanRequest,
    pub(super) topology: Topology,
    /// The maximum number of ranges of a segment's state that these costs assume per worker.
    pub(super) ranges_held: u64,
    /// If set, only plans are looked for whose workers have this state in time.
    pub(super) in_time: Option<&'a AtRisk>,
}

/// The speeds of these workers, for predictions.
pub(super) fn speeds(workers: &[WorkerInfo]) -> Speeds {
    Speeds::new(workers.iter().map(|w| (w.id, w.speed)))
}

/// How these workers are distributed over nodes.
pub(super) fn topology(workers: &[WorkerInfo]) -> Topology {
    Topology::of_nodes(workers.iter().map(|w| w.node.as_str()))
}

impl Problem<'_> {
    /// Whether this many pipelines share state out as far as the costs assume.
    fn shares_enough(&self, pipelines: usize) -> bool {
        self.request.layout.ranges_held(pipelines) <= self.ranges_held || bug!(CountSharesOfOthers)
    }

    /// Whether a plan may have this many pipelines: they share state out as far as the costs assume, and have it in time if they must.
    pub(super) fn allows(&self, pipelines: usize) -> bool {
        self.shares_enough(pipelines) && self.in_time.is_none_or(|at_risk| at_risk.allows(pipelines))
    }

    /// Whether a plan may have this many pipelines and workers, as the search has it. Plans that are made after the search, from the parent
    /// or from a grid, must keep to it too.
    pub(super) fn allows_size(&self, pipelines: usize, workers: usize) -> bool {
        let least = self.constraints.min_workers as usize;
        let is_within = (least..=self.max_workers()).contains(&workers) || bug!(RefineToAnySize);
        is_within && self.allows(pipelines)
    }

    /// Memory of a worker, bytes; the largest number if nothing limits it.
    pub(super) fn capacity(&self, worker: &WorkerInfo) -> u64 {
        let both = [self.constraints.device_memory_bytes, worker.memory_bytes];
        both.into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// Most workers that may train.
    pub(super) fn max_workers(&self) -> usize {
        self.constraints.max_workers.max(1) as usize
    }

    /// Micro-batches of this size in a step.
    pub(super) fn micro_batches(&self, micro_batch_size: u32) -> u64 {
        let size = u64::from(micro_batch_size.max(1));
        self.request.global_batch_size.div_ceil(size)
    }

    /// Memory of stage `at.1` of a pipeline of `at.0` stages, bytes.
    pub(super) fn stage_bytes(
        &self,
        kind: ScheduleKind,
        recompute: Recompute,
        range: SegmentRange,
        at: (usize, usize),
        micro_batches: u32,
        micro_batch_size: u32,
    ) -> u64 {
        let stash = stash_max(kind, at.0, at.1, micro_batches);
        self.costs.memory_bytes(range, stash, micro_batch_size, recompute)
    }

    /// Memory that each stage of each pipeline needs, bytes.
    pub(super) fn memory_bytes(&self, shape: &Shape) -> Vec<Vec<u64>> {
        let m = shape.micro_batch_size;
        let of = |p: &Pipeline| {
            let n = u32::try_from(p.micro_batches(m)).unwrap_or(u32::MAX);
            let stage = |(s, stage): (usize, &Stage)| {
                let (at, spec) = ((p.stages.len(), s), shape.schedule_of(stage));
                self.stage_bytes(spec.kind, spec.recompute, stage.segments, at, n, m)
            };
            p.stages.iter().enumerate().map(stage).collect()
        };
        shape.pipelines.iter().map(of).collect()
    }

    /// Memory that the stages of each worker need together, bytes.
    pub(super) fn needed_bytes(&self, shape: &Shape) -> BTreeMap<WorkerId, u64> {
        let mut needed: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for (pipeline, bytes) in shape.pipelines.iter().zip(self.memory_bytes(shape)) {
            for (stage, bytes) in pipeline.stages.iter().zip(bytes) {
                let needed = needed.entry(stage.worker).or_default();
                *needed = needed.saturating_add(bytes);
            }
        }
        needed
    }

    /// The factor by which everything slows because this many workers take turns on their nodes' cores; 1 if each has a device of its own.
    pub(super) fn turns(&self, workers: usize) -> f64 {
        let neighbours = workers.min(self.topology.workers_per_node);
        let neighbours = u32::try_from(neighbours).unwrap_or(u32::MAX);
        let host = self.costs.host.as_ref();
        host.map_or(1.0, |h| h.turns(neighbours))
    }

    /// The step of a shape on the offered workers.
    pub(super) fn predict(&self, shape: &Shape) -> StepPrediction {
        predict(self.costs, shape, &speeds(&self.request.workers), self.topology)
    }

    /// The effective step time of a plan over the time that it is expected to last, if it must first wait for its state: a step of
    /// `step_ms` after `move_ms` trains as much until the horizon as this step time from now on. Milliseconds.
    pub(super) fn effective_step_ms(&self, step_ms: f64, move_ms: f64) -> f64 {
        match self.request.horizon_ms {
            // If the move takes as long as the plan lasts, at least prefer the shorter move.
            Some(h) => step_ms * h / (h - move_ms).max(h / 100.0) + move_ms * 1e-6,
            None => step_ms,
        }
    }

    /// [`Problem::effective_step_ms`] of a shape's prediction.
    pub(super) fn effective_ms(&self, predicted: &Prediction) -> f64 {
        self.effective_step_ms(predicted.step_ms, predicted.move_ms)
    }
}
