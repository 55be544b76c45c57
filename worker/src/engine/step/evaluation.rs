//! Evaluation on the held-out split, before the steps at which it is due.

use super::super::{EngineConfig, EngineError, Split};
use super::loss::LossSum;
use super::{Place, Run, small};
use crate::model::dropout::Dropout;
use crate::state::Computing;
use crate::transport::{EVALUATION, Tag};
use varuna_plan::Step;
use varuna_plan::schedule::{Instruction, Task, evaluation_list};

/// Held-out samples that all pipelines together evaluate before a step; 0 where none is due.
pub(super) fn evaluated(config: &EngineConfig, step: Step) -> u64 {
    let due = |e: &&varuna_api::Evaluation| step.0.is_multiple_of(e.interval_steps.max(1));
    let evaluation = config.training.evaluation.as_ref().filter(due);
    evaluation.map_or(0, |e| e.samples.min(config.samples.held_out_len()))
}

impl Run<'_> {
    /// This worker's part of an evaluation of these micro-batches.
    pub(super) fn evaluation_tasks(&self, micro_batches: &[Vec<u64>]) -> Vec<Task> {
        let (kind, stages) = (self.plan.shape.schedule.kind, self.pipeline.stages.len());
        let count = u32::try_from(micro_batches.len()).unwrap_or(u32::MAX);
        evaluation_list(kind, stages, self.places[0].stage, count)
    }

    /// Forward only, over this pipeline's share of the held-out samples; shared out like the batch.
    pub(super) fn evaluate(&mut self, units: Computing<'_>) -> Result<(), EngineError> {
        let total = evaluated(self.config, self.step);
        if total == 0 {
            return Ok(());
        }
        let chunks = self.held_out_at(self.step);
        let _guard = tch::no_grad_guard();
        let mut sum = LossSum::new(self.config.backend.device, total, &self.config.model)?;
        if self.counts_targets() {
            let count = self.target_count(Split::HeldOut, self.all_held_out(self.step))?;
            sum.set_targets(count);
        }
        for task in self.evaluation_tasks(&chunks) {
            let place = self.places.iter().find(|p| p.stage == task.stage).copied();
            let (Some(place), Instruction::Forward(m)) = (place, task.instruction) else {
                continue;
            };
            // As in training, the host is not far ahead of the device, and a fence is seen between two of them.
            self.before_task()?;
            self.evaluate_on(place, units, EVALUATION + m, &chunks[m as usize], &sum)?;
            self.after_task()?;
        }
        // Workers before the last stage do not know the count: so the forwards were run all the same.
        self.eval_loss = Some(sum).filter(LossSum::has_targets);
        Ok(())
    }

    /// One micro-batch on one stage; the last stage adds its loss to the sum.
    fn evaluate_on(
        &mut self,
        place: Place,
        units: Computing<'_>,
        micro_batch: u32,
        numbers: &[u64],
        sum: &LossSum,
    ) -> Result<(), EngineError> {
        let tag = |stage: usize| Tag::Activation {
            stage: small(stage),
            step: self.step,
            micro_batch,
        };
        let (here, next) = (tag(place.stage), tag(place.stage + 1));
        let mut x = match place.previous {
            None => self.inputs(Split::HeldOut, numbers)?,
            Some(worker) => self.receive(worker, here, (place.segments.start, numbers.len()))?,
        };
        let own = self.document_tables(place, Split::HeldOut, numbers)?;
        let tables = own.as_ref().unwrap_or(self.tables);
        for segment in place.segments.start..place.segments.end {
            self.exchange.use_parameters(segment)?;
            x = self.computed(units, segment, &x, &Dropout::OFF, tables)?;
        }
        match place.next {
            Some(worker) => self.send(worker, next, &x),
            None => self.evaluation_loss(units, &x, numbers, sum),
        }
    }
}
