//! Gathers the workers' measurements of a step of their plan. Pure.

use std::collections::BTreeMap;
use varuna_plan::measured_step::{MeasuredStep, MeasuredWork, measured_workers};
use varuna_plan::{Generation, Plan, Step, WorkerId};

/// The parts of a measured step that have arrived so far.
#[derive(Default)]
pub(crate) struct MeasuredSteps {
    coming: Option<MeasuredStep>,
}

impl MeasuredSteps {
    /// Takes one worker's measurement of a step of `plan`, which is in force. Returns the step once all measuring workers have reported.
    pub(crate) fn take(
        &mut self,
        plan: &Plan,
        (generation, step): (Generation, Step),
        worker: WorkerId,
        work: MeasuredWork,
    ) -> Option<MeasuredStep> {
        let expected = measured_workers(&plan.shape);
        if generation != plan.generation || !expected.contains(&worker) {
            return None;
        }
        // A newer step replaces one that some worker never reported.
        let newer = |coming: &MeasuredStep| (coming.generation, coming.step) < (generation, step);
        if self.coming.as_ref().is_none_or(newer) {
            self.coming = Some(MeasuredStep {
                generation,
                step,
                workers: BTreeMap::new(),
            });
        }
        let coming = self
            .coming
            .as_mut()
            .filter(|c| (c.generation, c.step) == (generation, step))?;
        coming.workers.insert(worker, work);
        let complete = expected.iter().all(|w| coming.workers.contains_key(w));
        complete.then(|| self.coming.take()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::document::{Prediction, Recompute, ScheduleKind};
    use varuna_plan::{Layout, Pipeline, SampleRange, ScheduleSpec, SegmentRange, Shape, Stage};

    /// A plan with this many pipelines, each with one worker: 1, 2, ...
    fn plan(generation: u64, pipelines: u64) -> Plan {
        let layout = Layout::new(4, false);
        let pipeline = |i: u64| Pipeline {
            stages: vec![Stage {
                worker: WorkerId(i + 1),
                segments: SegmentRange { start: 0, end: 4 },
                recompute: None,
            }],
            samples: SampleRange { start: i, end: i + 1 },
        };
        let shape = Shape {
            pipelines: (0..pipelines).map(pipeline).collect(),
            spares: Vec::new(),
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::Gpipe,
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        };
        Plan {
            generation: Generation(generation),
            ..Plan::first(layout, shape)
        }
    }

    /// Stores a worker's report of a step. Returns which step is complete, and the number of its workers.
    fn take(
        steps: &mut MeasuredSteps,
        plan: &Plan,
        of: (u64, u64),
        worker: u64,
    ) -> Option<(u64, u64, usize)> {
        let of = (Generation(of.0), Step(of.1));
        let step = steps.take(plan, of, WorkerId(worker), MeasuredWork::default())?;
        Some((step.generation.0, step.step.0, step.workers.len()))
    }

    #[test]
    fn a_step_is_complete_once_all_who_measure_it_have_told() {
        let (mut steps, plan) = (MeasuredSteps::default(), plan(1, 6));
        for worker in [2, 5, 6, 99, 1, 1, 4] {
            assert_eq!(take(&mut steps, &plan, (1, 7), worker), None);
        }
        assert_eq!(take(&mut steps, &plan, (1, 7), 3), Some((1, 7, 4)));
        assert_eq!(take(&mut steps, &plan, (1, 7), 3), None, "once");
    }

    #[test]
    fn newer_measured_step_replaces_an_incomplete_one() {
        let (mut steps, first, second) = (MeasuredSteps::default(), plan(1, 2), plan(2, 2));
        assert_eq!(take(&mut steps, &first, (1, 7), 1), None);
        assert_eq!(
            take(&mut steps, &second, (1, 7), 2),
            None,
            "not the plan in force"
        );
        assert_eq!(take(&mut steps, &second, (2, 7), 2), None);
        assert_eq!(take(&mut steps, &second, (2, 9), 1), None);
        assert_eq!(take(&mut steps, &second, (2, 7), 1), None, "an older step");
        assert_eq!(take(&mut steps, &second, (2, 9), 2), Some((2, 9, 2)));
    }
}
