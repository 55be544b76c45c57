//! The model that a worker computes: a transformer that is described by sizes and features, or a user-defined model.

use super::dropout::Dropout;
use super::exported::{ExportedError, ExportedModule};
use super::{Tables, head, transformer};
use crate::state::{UnitSpec, Units};
use std::sync::Arc;
use tch::Tensor;
use varuna_model::{Layout, Model, Transformer, Unit};
use varuna_torch::{Device, HeadLoss, TorchError};

/// A model with all that a worker needs to compute it.
#[derive(Clone)]
pub enum Module {
    /// One that sizes and features describe.
    Transformer(Transformer),
    /// A user-defined model.
    Exported(Arc<ExportedModule>),
}

impl From<Transformer> for Module {
    fn from(transformer: Transformer) -> Module {
        Module::Transformer(transformer)
    }
}

impl Module {
    /// The module of a job's model, on a device.
    ///
    /// # Errors
    /// The folder of an exported model cannot be used.
    pub fn open(model: &Model, device: Device) -> Result<Module, ExportedError> {
        Ok(match model {
            Model::Transformer(transformer) => Module::Transformer(transformer.clone()),
            Model::Exported(exported) => Module::Exported(Arc::new(ExportedModule::open(exported, device)?)),
        })
    }

    /// The transformer that it is.
    #[must_use]
    pub fn transformer(&self) -> Option<&Transformer> {
        match self {
            Module::Transformer(transformer) => Some(transformer),
            Module::Exported(_) => None,
        }
    }

    /// Segments and units.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Module::Transformer(transformer) => transformer.layout(),
            Module::Exported(module) => module.description().layout(),
        }
    }

    /// What a unit consists of.
    #[must_use]
    pub fn unit(&self, unit: Unit) -> UnitSpec {
        match self {
            Module::Transformer(transformer) => UnitSpec::of(transformer, unit),
            Module::Exported(module) => module.unit(unit),
        }
    }

    /// The initial values of a unit's parameters, one after the other, where they are not drawn from the job's seed.
    ///
    /// # Errors
    /// The values cannot be read.
    pub fn initial_values(&self, unit: Unit) -> Result<Option<Vec<f32>>, ExportedError> {
        match self {
            Module::Transformer(_) => Ok(None),
            Module::Exported(module) => module.initial_values(unit).map(Some),
        }
    }

    /// Tokens of a sample, or the numbers that it consists of.
    #[must_use]
    pub fn sample_length(&self) -> usize {
        let length = match self {
            Module::Transformer(transformer) => transformer.sequence_length,
            Module::Exported(module) => module.description().sample.length,
        };
        length as usize
    }

    /// What the tokens of its data are less than.
    #[must_use]
    pub fn vocabulary_size(&self) -> u32 {
        match self {
            Module::Transformer(transformer) => transformer.vocabulary_size,
            Module::Exported(module) => module.description().sample.values,
        }
    }

    /// How many losses each sample contributes to the mean of a batch, if all are taken.
    #[must_use]
    pub fn losses_of_sample(&self) -> u64 {
        match self {
            Module::Transformer(transformer) => transformer.sequence_length.into(),
            Module::Exported(_) => 1,
        }
    }

    /// Shape of the input of a segment after the first, for this many samples.
    #[must_use]
    pub fn input_shape(&self, segment: u32, samples: usize) -> Vec<usize> {
        let of_sample = match self {
            Module::Transformer(t) => vec![t.sequence_length, t.hidden_size],
            Module::Exported(module) => {
                let before = (segment as usize).checked_sub(1);
                let before = before.and_then(|s| module.description().segments.get(s));
                before.map_or(Vec::new(), |s| s.output.clone())
            }
        };
        let of_sample = of_sample.into_iter().map(|size| size as usize);
        [samples].into_iter().chain(of_sample).collect()
    }

    /// Whether selective recomputation runs a segment's forward again.
    #[must_use]
    pub fn is_recomputed_selectively(&self, segment: u32) -> bool {
        let transformer = self.transformer();
        transformer.is_some_and(|t| t.kind(segment).is_recomputed_selectively())
    }

    /// Whether a segment's forward depends on where documents begin.
    #[must_use]
    pub fn reads_documents(&self, segment: u32) -> bool {
        let transformer = self.transformer();
        transformer.is_some_and(|t| segment == 0 || t.kind(segment).attends())
    }

    /// Probability with which the model's dropout leaves an element out.
    #[must_use]
    pub fn dropout(&self) -> f64 {
        self.transformer().map_or(0.0, |t| t.dropout)
    }

    /// Reads what the forward of a segment needs from files, where that was not done before.
    ///
    /// # Errors
    /// The code of a segment of a user-defined model cannot be read.
    pub fn read_segment(&self, segment: u32) -> Result<(), ExportedError> {
        match self {
            Module::Transformer(_) => Ok(()),
            Module::Exported(module) => module.read_segment(segment),
        }
    }

    /// The forward of one segment. `x` is the segment's input; for the first segment it is the contents of samples (b, n). Returns the
    /// output; from the last segment's output [`Module::add_loss`] computes the loss.
    ///
    /// # Errors
    /// A token is outside the vocabulary, or libtorch refuses.
    pub fn forward(
        &self,
        segment: u32,
        units: &impl Units,
        x: &Tensor,
        dropout: &Dropout<'_>,
        tables: &Tables,
    ) -> Result<Tensor, TorchError> {
        match self {
            Module::Transformer(model) => transformer::forward(model, segment, units, x, dropout, tables),
            Module::Exported(module) => module.forward(segment, units, x, dropout),
        }
    }

    /// The part of the rows of samples, (b, n + 1), that the loss uses: for a transformer without the first token, which has no token
    /// before it.
    pub fn targets(&self, rows: &Tensor) -> Tensor {
        match self {
            Module::Transformer(model) => rows.narrow(1, 1, model.sequence_length.into()),
            Module::Exported(_) => rows.shallow_clone(),
        }
    }

    /// Adds the losses (nats) of the last segment's output to the sum.
    ///
    /// # Errors
    /// A target is outside the vocabulary, or libtorch refuses.
    pub fn add_loss(
        &self,
        units: &impl Units,
        output: &Tensor,
        loss: &HeadLoss<'_>,
    ) -> Result<(), TorchError> {
        match self {
            Module::Transformer(model) => head::add_loss(model, units, output, loss),
            Module::Exported(module) => module.add_loss(output, loss),
        }
    }

    /// The same; adds `scale` times the loss's gradient to those of the head's parameters and returns `scale` times that of the output.
    ///
    /// # Errors
    /// As [`Module::add_loss`].
    pub fn add_loss_with_gradients(
        &self,
        units: &impl Units,
        output: &Tensor,
        loss: &HeadLoss<'_>,
        scale: f64,
    ) -> Result<Tensor, TorchError> {
        match self {
            Module::Transformer(model) => head::add_loss_with_gradients(model, units, output, loss, scale),
            Module::Exported(module) => module.add_loss_with_gradients(output, loss, scale),
        }
    }
}
