//! Tokens and their documents: which samples a step reads, what it needs of them and when, and how the data reaches the device.

use super::super::read_ahead::{Field, ReadAhead, Rows};
use super::super::{EngineError, Split};
use super::evaluation::evaluated;
use super::{Place, Run};
use crate::backend::Backend;
use crate::model::{Tables, targets_within_documents};
use tch::{Kind, Tensor};
use varuna_plan::Step;
use varuna_plan::schedule::{Instruction, Task};
use varuna_torch::{HostToDeviceCopy, TorchError};

/// The data that a step reads, and which of it is being copied to the device.
pub(super) struct Tokens<'a> {
    pub(super) reader: &'a mut ReadAhead,
    /// The data that is needed next. It is copied to the device while other work is computed.
    coming: Option<(Rows, HostToDeviceCopy)>,
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

    /// All that a step reads under this plan, in the order in which it is asked for.
    pub(super) fn reads(&self, step: Step, list: &[Task]) -> Vec<Rows> {
        let mut reads = Vec::new();
        let mut read = |field, split, samples: &[u64]| {
            let samples = samples.to_vec();
            reads.push(Rows {
                field,
                split,
                samples,
            });
        };
        let place = |task: &Task| self.places.iter().find(|p| p.stage == task.stage).copied();
        let held_out = self.held_out_at(step);
        if self.counts_targets() && evaluated(self.config, step) > 0 {
            read(Field::TargetCount, Split::HeldOut, &self.all_held_out(step));
        }
        for task in self.evaluation_tasks(&held_out) {
            if let (Some(place), Instruction::Forward(m)) = (place(&task), task.instruction) {
                let samples = &held_out[m as usize];
                let forward = self.fields_of_forward(place).into_iter();
                forward
                    .chain(self.fields_of_loss(place))
                    .for_each(|field| read(field, Split::HeldOut, samples));
            }
        }
        if self.counts_targets() {
            read(Field::TargetCount, Split::Train, &self.batch_at(step));
        }
        for task in list {
            let Some(place) = place(task) else { continue };
            let (fields, m) = match task.instruction {
                Instruction::Forward(m) => (self.fields_of_forward(place), m),
                Instruction::Recompute(m) => (self.fields_of_recompute(place), m),
                Instruction::Backward(m) => (self.fields_of_loss(place), m),
            };
            let samples = self.numbers_at(step, m);
            fields
                .into_iter()
                .for_each(|field| read(field, Split::Train, &samples));
        }
        reads
    }

    /// What a stage's forward asks for: the first one's input, and what attention needs of documents.
    fn fields_of_forward(&self, place: Place) -> Vec<Field> {
        let tokens = place.previous.is_none().then_some(Field::Tokens);
        tokens
            .into_iter()
            .chain(self.fields_of_recompute(place))
            .collect()
    }

    /// The same where the input was kept.
    fn fields_of_recompute(&self, place: Place) -> Vec<Field> {
        let needs = self.needs_documents(place);
        needs.then_some(Field::Positions).into_iter().collect()
    }

    /// What the loss asks for, after the last stage.
    fn fields_of_loss(&self, place: Place) -> Vec<Field> {
        match place.next {
            Some(_) => Vec::new(),
            None if self.config.training.masking.is_some() => vec![Field::MaskedTargets],
            None if self.config.training.packing.mask_loss => vec![Field::Tokens, Field::Positions],
            None => vec![Field::Tokens],
        }
    }

    /// Whether a stage's forward depends on where documents begin: where it attends, or looks positions up.
    fn needs_documents(&self, place: Place) -> bool {
        let mut segments = place.segments.start..place.segments.end;
        let depends = |segment| self.config.model.reads_documents(segment);
        self.config.training.packing.is_in_forward() && segments.any(depends)
    }

    /// Whether this worker needs to know how many targets a batch has: it computes a loss, and some targets may be missing.
    pub(super) fn counts_targets(&self) -> bool {
        let takes_loss = self.places.iter().any(|place| place.next.is_none());
        let training = &self.config.training;
        (training.packing.mask_loss || training.masking.is_some()) && takes_loss
    }

    /// All samples of a step, those of other pipelines too.
    pub(super) fn batch_at(&self, step: Step) -> Vec<u64> {
        let batch = self.config.training.global_batch_size;
        let first = step.0 * batch;
        (first..first + batch).collect()
    }

    /// All held-out samples that are evaluated before a step, likewise.
    pub(super) fn all_held_out(&self, step: Step) -> Vec<u64> {
        (0..evaluated(self.config, step)).collect()
    }

    /// How many targets of this many samples count in the loss.
    pub(super) fn target_count(&mut self, split: Split, samples: Vec<u64>) -> Result<u64, EngineError> {
        let rows = Rows {
            field: Field::TargetCount,
            split,
            samples,
        };
        let read = self.take(&rows)?;
        self.copy_next_to_device()?;
        Ok(read.first().copied().unwrap_or(0).unsigned_abs())
    }

    /// The tables for attention and positions of these samples, if they differ from the model's.
    pub(super) fn document_tables(
        &mut self,
        place: Place,
        split: Split,
        samples: &[u64],
    ) -> Result<Option<Tables>, EngineError> {
        let transformer = self.config.model.transformer();
        let Some(model) = transformer.filter(|_| self.needs_documents(place)) else {
            return Ok(None);
        };
        let all = self.rows(Field::Positions, split, samples)?;
        let positions_bt = all.narrow(1, 0, self.sample_length());
        let backend = self.config.backend;
        let packing = self.config.training.packing;
        Ok(Some(self.tables.of_documents(
            model,
            backend,
            packing,
            &positions_bt,
        )?))
    }

    fn sample_length(&self) -> i64 {
        i64::try_from(self.config.model.sample_length()).unwrap_or(i64::MAX)
    }

    /// Tokens of some samples as inputs (b, t).
    pub(super) fn inputs(&mut self, split: Split, samples: &[u64]) -> Result<Tensor, EngineError> {
        let length = self.sample_length();
        Ok(self.rows(Field::Tokens, split, samples)?.narrow(1, 0, length))
    }

    /// What is to be predicted at each token of some samples (b, t), without what the loss leaves out.
    pub(super) fn targets(&mut self, split: Split, samples: &[u64]) -> Result<Tensor, EngineError> {
        let field = match self.config.training.masking {
            Some(_) => Field::MaskedTargets,
            None => Field::Tokens,
        };
        let targets = self.config.model.targets(&self.rows(field, split, samples)?);
        if !self.config.training.packing.mask_loss {
            return Ok(targets);
        }
        let positions = self
            .rows(Field::Positions, split, samples)?
            .narrow(1, 1, self.sample_length());
        Ok(targets_within_documents(&targets, &positions)?)
    }

    /// What is read of some samples, (b, t + 1).
    fn rows(&mut self, field: Field, split: Split, samples: &[u64]) -> Result<Tensor, EngineError> {
        let wanted = Rows {
            field,
            split,
            samples: samples.to_vec(),
        };
        let all = match self.tokens.coming.take().filter(|(rows, _)| *rows == wanted) {
            Some((_, coming)) => coming.arrive()?,
            None => {
                let read = self.take(&wanted)?;
                self.on_device(read)?
            }
        };
        self.copy_next_to_device()?;
        Ok(all.view([-1, self.sample_length() + 1]))
    }

    /// Waits for a read, by the step's deadline or until a fence; meanwhile what others wait for is sent on.
    fn take(&mut self, rows: &Rows) -> Result<Vec<i64>, EngineError> {
        let Run {
            tokens,
            exchange,
            deadline,
            ..
        } = self;
        tokens.reader.take(rows, *deadline, || exchange.poll_pending())
    }

    /// Begins to bring what is asked for next to the device, if it is read already.
    fn copy_next_to_device(&mut self) -> Result<(), EngineError> {
        let Backend { device, streams, .. } = self.config.backend;
        if device.is_host() {
            return Ok(());
        }
        if let Some((rows, tokens)) = self.tokens.reader.take_ready() {
            let coming = streams.copy_to_device(&tokens, place(&tokens, &self.config.backend)?)?;
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
        Ok(streams.copy_to_device(&tokens, place)?.arrive()?)
    }
}

/// Where tokens go on the device.
fn place(tokens: &[i64], backend: &Backend) -> Result<Tensor, TorchError> {
    let count = i64::try_from(tokens.len()).unwrap_or(i64::MAX);
    let place = Tensor::f_empty([count], (Kind::Int64, backend.device.tensors()));
    place.map_err(|e| TorchError(e.to_string()))
}
