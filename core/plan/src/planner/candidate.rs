//! A plan without workers, as the search finds it.

use crate::document::{Pipeline, Prediction, Recompute, SampleRange, ScheduleSpec, Shape, Stage};
use crate::ids::WorkerId;
use crate::predict::StepParts;
use crate::predict::work::{PipelineWork, StageWork, StepWork};

#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) work: StepWork,
    /// What stages recompute unless they say otherwise.
    pub(super) recompute: Recompute,
    pub(super) step_ms: f64,
    pub(super) bubble: f64,
    pub(super) parts: StepParts,
}

impl Candidate {
    pub(super) fn pipelines(&self) -> &[PipelineWork] {
        &self.work.pipelines
    }

    pub(super) fn workers(&self) -> usize {
        self.work.workers()
    }

    pub(super) fn schedule(&self) -> ScheduleSpec {
        ScheduleSpec {
            kind: self.work.kind,
            recompute: self.recompute,
        }
    }

    /// The plan with these workers, one for each stage, pipeline by pipeline.
    pub(super) fn shape(&self, workers: &[WorkerId], move_ms: f64, calibrated: bool) -> Shape {
        let mut start = 0;
        let mut workers = workers.iter();
        let mut pipelines = Vec::with_capacity(self.pipelines().len());
        for p in self.pipelines() {
            let stage = |(stage, worker): (&StageWork, &WorkerId)| Stage {
                worker: *worker,
                segments: stage.segments,
                recompute: Some(stage.recompute).filter(|r| *r != self.recompute),
            };
            let samples = SampleRange {
                start,
                end: start + p.samples,
            };
            start = samples.end;
            pipelines.push(Pipeline {
                stages: p.stages.iter().zip(workers.by_ref()).map(stage).collect(),
                samples,
            });
        }
        Shape {
            pipelines,
            spares: Vec::new(),
            micro_batch_size: self.work.micro_batch_size,
            schedule: self.schedule(),
            predicted: Prediction {
                step_ms: self.step_ms,
                bubble: self.bubble,
                move_ms,
                calibrated,
            },
        }
    }
}
