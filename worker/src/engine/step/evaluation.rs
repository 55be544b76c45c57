//! Evaluation on the held-out split, before the steps at which it is due.

use super::super::EngineError;
use super::Run;
use crate::model::dropout::Dropout;
use crate::model::{forward, loss};
use crate::state::UnitBuffers;
use crate::transport::{EVALUATION, Tag};
use std::collections::BTreeMap;
use varuna_plan::Unit;

impl Run<'_> {
    /// Whether this step begins with an evaluation.
    pub(super) fn evaluates(&self) -> bool {
        let due = |e: &varuna_api::Evaluation| self.step.0.is_multiple_of(e.interval_steps.max(1));
        self.config.training.evaluation.as_ref().is_some_and(due) && self.config.samples.held_out_len() > 0
    }

    /// Forward only, over this pipeline's share of the held-out samples; shared out like the batch.
    pub(super) fn evaluate(&mut self, units: &BTreeMap<Unit, UnitBuffers>) -> Result<(), EngineError> {
        let Some(evaluation) = self
            .config
            .training
            .evaluation
            .as_ref()
            .filter(|_| self.evaluates())
        else {
            return Ok(());
        };
        let total = evaluation.samples.min(self.config.samples.held_out_len());
        let batch = self.config.training.global_batch_size;
        let share = self.samples.start * total / batch..self.samples.end * total / batch;
        let numbers: Vec<u64> = share.collect();
        let _guard = tch::no_grad_guard();
        let mut sum = 0.0;
        for (i, chunk) in (EVALUATION..).zip(numbers.chunks(self.plan.shape.micro_batch_size.max(1) as usize))
        {
            let tag = Tag::Activation {
                step: self.step,
                micro_batch: i,
            };
            let mut x = match self.previous {
                None => self.tokens(chunk, true)?.0,
                Some(worker) => self.receive(worker, tag)?,
            };
            for segment in self.stage.start..self.stage.end {
                x = forward(&self.config.model, segment, units, &x, &Dropout::OFF)?;
            }
            match self.next {
                Some(worker) => self.send(worker, tag, &x)?,
                #[expect(clippy::cast_precision_loss, reason = "sample counts are small")]
                None => {
                    let targets = self.tokens(chunk, true)?.1;
                    sum += loss(&x, &targets).double_value(&[]) * chunk.len() as f64 / total as f64;
                }
            }
        }
        self.eval_loss = Some(sum);
        Ok(())
    }
}
