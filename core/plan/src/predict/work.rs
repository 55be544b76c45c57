//! The work of a step for predictions: which segments at which speed, and how workers are distributed over nodes.

use crate::document::{Pipeline, Recompute, ScheduleKind, ScheduleSpec, Shape};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use std::collections::BTreeMap;

/// A measured speed rounded to steps of 5 %, so that noise changes no plan. An invalid or non-positive number counts as nominal.
pub(crate) fn rounded_speed(speed: f64) -> f64 {
    if speed.is_finite() && speed > 0.0 {
        1.05f64.powf((speed.ln() / 1.05f64.ln()).round())
    } else {
        1.0
    }
}

/// Speeds of workers, 1.0 = nominal.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Speeds(BTreeMap<WorkerId, f64>);

impl Speeds {
    /// Every worker has the nominal speed.
    #[must_use]
    pub fn nominal() -> Speeds {
        Speeds::default()
    }

    /// Rounds these speeds to steps of 5 %; all other workers are nominal.
    #[must_use]
    pub fn new(speeds: impl IntoIterator<Item = (WorkerId, f64)>) -> Speeds {
        let rounded = speeds.into_iter().map(|(id, speed)| (id, rounded_speed(speed)));
        Speeds(rounded.collect())
    }

    pub(crate) fn of(&self, worker: WorkerId) -> f64 {
        self.0.get(&worker).copied().unwrap_or(1.0)
    }
}

/// How workers are distributed over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Workers of a node; the workers of a plan fill nodes in order, pipeline by pipeline.
    pub workers_per_node: usize,
}

impl Topology {
    /// All workers are on one node.
    pub const ONE_NODE: Topology = Topology {
        workers_per_node: usize::MAX,
    };

    /// As many workers on each node as the fullest of these has; `nodes` has one name per worker.
    pub fn of_nodes<'a>(nodes: impl IntoIterator<Item = &'a str>) -> Topology {
        let mut workers: BTreeMap<&str, usize> = BTreeMap::new();
        for node in nodes {
            *workers.entry(node).or_default() += 1;
        }
        Topology {
            workers_per_node: workers.into_values().max().unwrap_or(1),
        }
    }
}

/// One stage's work for each micro-batch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct StageWork {
    pub(crate) segments: SegmentRange,
    /// The part that is recomputed before a backward.
    pub(crate) recompute: Recompute,
    /// Speed of its worker.
    pub(crate) speed: f64,
}

/// One pipeline's part of a step.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PipelineWork {
    pub(crate) stages: Vec<StageWork>,
    /// The last micro-batch may be short.
    pub(crate) samples: u64,
}

impl PipelineWork {
    pub(crate) fn new(pipeline: &Pipeline, shape: &Shape, speeds: &Speeds) -> PipelineWork {
        let stages = pipeline.stages.iter().map(|s| StageWork {
            segments: s.segments,
            recompute: shape.schedule_of(s).recompute,
            speed: speeds.of(s.worker),
        });
        PipelineWork {
            stages: stages.collect(),
            samples: pipeline.samples.len(),
        }
    }

    pub(crate) fn micro_batches(&self, micro_batch_size: u32) -> u32 {
        u32::try_from(self.samples.div_ceil(u64::from(micro_batch_size.max(1)))).unwrap_or(u32::MAX)
    }
}

/// Segments of each stage.
pub(crate) fn ranges(stages: &[StageWork]) -> Vec<SegmentRange> {
    stages.iter().map(|s| s.segments).collect()
}

/// Schedule of each stage.
pub(crate) fn schedules(stages: &[StageWork], kind: ScheduleKind) -> Vec<ScheduleSpec> {
    let of = |stage: &StageWork| ScheduleSpec {
        kind,
        recompute: stage.recompute,
    };
    stages.iter().map(of).collect()
}

/// All pipelines of a step.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct StepWork {
    pub(crate) pipelines: Vec<PipelineWork>,
    /// Samples in a micro-batch.
    pub(crate) micro_batch_size: u32,
    pub(crate) kind: ScheduleKind,
}

impl StepWork {
    pub(crate) fn new(shape: &Shape, speeds: &Speeds) -> StepWork {
        let pipelines = shape.pipelines.iter();
        StepWork {
            pipelines: pipelines.map(|p| PipelineWork::new(p, shape, speeds)).collect(),
            micro_batch_size: shape.micro_batch_size,
            kind: shape.schedule.kind,
        }
    }

    /// Workers of each pipeline.
    pub(crate) fn depths(&self) -> impl Iterator<Item = usize> {
        self.pipelines.iter().map(|p| self.kind.workers(p.stages.len()))
    }

    /// Workers of all pipelines.
    pub(crate) fn workers(&self) -> usize {
        self.depths().sum()
    }
}
