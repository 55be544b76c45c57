//! Tokens: which samples a step reads when, and how they reach the device.

use super::super::EngineError;
use super::super::read_ahead::{ReadAhead, Rows, Split};
use super::evaluation::evaluated;
use super::exchange::ENDING;
use super::{Place, Run};
use crate::backend::Backend;
use tch::{Kind, Tensor};
use varuna_plan::Step;
use varuna_plan::schedule::{Instruction, Task};
use varuna_torch::{Bring, TorchError};

/// What a step reads, and what of it is on its way to the device.
pub(super) struct Tokens<'a> {
    pub(super) reader: &'a mut ReadAhead,
    /// What is asked for next, brought to the device beside what is computed until then.
    coming: Option<(Rows, Bring)>,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(reader: &'a mut ReadAhead) -> Tokens<'a> {
        Tokens { reader, coming: None }
    }
}

impl Run<'_> {
    pub(super) fn sample_count(&self, micro_batch: u32) -> usize {
        self.sample_numbers(micro_batch).len()
    }

    /// The samples of a micro-batch, as numbers of the seeded order.
    pub(super) fn sample_numbers(&self, micro_batch: u32) -> Vec<u64> {
        self.numbers_at(self.step, micro_batch)
    }

    fn numbers_at(&self, step: Step, micro_batch: u32) -> Vec<u64> {
        let size = u64::from(self.plan.shape.micro_batch_size);
        let samples = self.pipeline.samples;
        let start = samples.start + u64::from(micro_batch) * size;
        let first = step.0 * self.config.training.global_batch_size;
        (start..(start + size).min(samples.end))
            .map(|offset| first + offset)
            .collect()
    }

    /// Held-out samples of this pipeline before a step, by micro-batch.
    pub(super) fn held_out_at(&self, step: Step) -> Vec<Vec<u64>> {
        let total = evaluated(self.config, step);
        let batch = self.config.training.global_batch_size;
        let numbers: Vec<u64> = self.pipeline.evaluation_samples(total, batch).collect();
        let size = self.plan.shape.micro_batch_size.max(1) as usize;
        numbers.chunks(size).map(<[u64]>::to_vec).collect()
    }

    /// All that a step reads under this plan, in order: inputs on the first stage, targets on the last.
    pub(super) fn reads(&self, step: Step, list: &[Task]) -> Vec<Rows> {
        let place = |task: &Task| self.places.iter().find(|p| p.stage == task.stage).copied();
        let ends = |p: Place| [p.previous.is_none(), p.next.is_none()];
        let mut reads = Vec::new();
        let held_out = self.held_out_at(step);
        for task in self.evaluation_tasks(&held_out) {
            if let (Some(place), Instruction::Forward(m)) = (place(&task), task.instruction) {
                let rows = Rows {
                    split: Split::HeldOut,
                    samples: held_out[m as usize].clone(),
                };
                let times = ends(place).into_iter().filter(|end| *end).count();
                reads.extend(std::iter::repeat_n(rows, times));
            }
        }
        for task in list {
            let [is_first, is_last] = place(task).map_or([false; 2], ends);
            let micro_batch = match task.instruction {
                Instruction::Forward(m) if is_first => m,
                Instruction::Backward(m) if is_last => m,
                _ => continue,
            };
            reads.push(Rows {
                split: Split::Train,
                samples: self.numbers_at(step, micro_batch),
            });
        }
        reads
    }

    /// Tokens of some samples: (inputs, targets), each (b, t).
    pub(super) fn tokens(&mut self, split: Split, samples: &[u64]) -> Result<(Tensor, Tensor), EngineError> {
        let wanted = Rows {
            split,
            samples: samples.to_vec(),
        };
        let all = match self.tokens.coming.take().filter(|(rows, _)| *rows == wanted) {
            Some((_, coming)) => coming.arrive()?,
            None => {
                // A store that is merely slow is planned around.
                let read = self.tokens.reader.take(&wanted, self.deadline + ENDING)?;
                self.on_device(read)?
            }
        };
        self.bring_next()?;
        let length = i64::from(self.config.model.sequence_length);
        let rows = all.view([-1, length + 1]);
        Ok((rows.narrow(1, 0, length), rows.narrow(1, 1, length)))
    }

    /// Begins to bring what is asked for next to the device, if it is read already.
    fn bring_next(&mut self) -> Result<(), EngineError> {
        let Backend { device, streams, .. } = self.config.backend;
        if device.is_host() {
            return Ok(());
        }
        if let Some((rows, tokens)) = self.tokens.reader.take_ready() {
            let coming = streams.bring(&tokens, place(&tokens, &self.config.backend)?)?;
            self.tokens.coming = Some((rows, coming));
        }
        Ok(())
    }

    fn on_device(&self, tokens: Vec<i64>) -> Result<Tensor, EngineError> {
        let Backend { device, streams, .. } = self.config.backend;
        if device.is_host() {
            return Ok(Tensor::from_slice(&tokens));
        }
        let place = place(&tokens, &self.config.backend)?;
        Ok(streams.bring(&tokens, place)?.arrive()?)
    }
}

/// Where tokens go on the device.
fn place(tokens: &[i64], backend: &Backend) -> Result<Tensor, TorchError> {
    let count = i64::try_from(tokens.len()).unwrap_or(i64::MAX);
    let place = Tensor::f_empty([count], (Kind::Int64, backend.device.tensors()));
    place.map_err(|e| TorchError(e.to_string()))
}
