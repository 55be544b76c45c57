//! The data of a job: one dataset or a blend of several, and what is held out of them.

use crate::blend::{Blend, BlendSample};
use crate::dataset::TokenDataset;
use crate::error::DataError;
use crate::files::Files;
use crate::order::seed_of_source;
use crate::sample_shape::{SampleData, SampleShape};
use crate::sidecar::Sidecar;
use sha2::{Digest, Sha256};
use std::path::Path;
use varuna_api::{Data, DataSource, HeldOut};

/// The open datasets of a job. The [`Blend`] decides from which source each sample comes, and it is the next sample in that source's seeded
/// order. A source begins its next pass when all of its samples were used, whatever remains of the others.
pub struct TrainingData {
    sources: Vec<TokenDataset>,
    blend: Blend,
    validation: Option<TokenDataset>,
    held_out: u64,
}

impl TrainingData {
    /// Opens all datasets.
    ///
    /// # Errors
    /// There is no source, there are too many, a weight is no number above 0, or a dataset cannot be opened, as for [`TokenDataset::open`].
    pub fn open(data: &Data, shape: SampleShape, seed: u64) -> Result<TrainingData, DataError> {
        let sources = &data.train;
        if !(1..=Blend::SOURCES_MAX).contains(&sources.len()) {
            return Err(DataError::Argument {
                what: "datasets to train on",
                value: sources.len().to_string(),
                allowed: format!("1 to {}", Blend::SOURCES_MAX),
            });
        }
        let weights: Vec<f64> = sources.iter().map(|source| source.weight).collect();
        if let Some(weight) = weights.iter().find(|w| !w.is_finite() || **w <= 0.0) {
            return Err(DataError::Argument {
                what: "weight",
                value: weight.to_string(),
                allowed: "a number above 0".to_owned(),
            });
        }
        // One cache for all of them.
        let files = Files::default();
        let (fraction, validation) = match &data.held_out {
            HeldOut::Fraction(fraction) => (*fraction, None),
            HeldOut::Dataset(path) => {
                let all = TokenDataset::open_held_out(&files, Path::new(path), shape)?;
                (0.0, Some(all))
            }
        };
        let open = |(source, number): (&DataSource, u64)| {
            TokenDataset::open_in(
                &files,
                Path::new(&source.path),
                shape,
                (fraction, seed_of_source(seed, number)),
            )
        };
        let sources = sources.iter().zip(0..).map(open).collect::<Result<Vec<_>, _>>()?;
        let blend = Blend::new(&weights);
        let held_out = match &validation {
            Some(validation) => validation.held_out_len(),
            None => blend.prefix_of(&sources.iter().map(TokenDataset::held_out_len).collect::<Vec<_>>()),
        };
        Ok(TrainingData {
            sources,
            blend,
            validation,
            held_out,
        })
    }

    fn all(&self) -> impl Iterator<Item = &TokenDataset> {
        self.sources.iter().chain(&self.validation)
    }

    /// Checks that all token ids are below the model's vocabulary size, for the datasets that have a description.
    ///
    /// # Errors
    /// A dataset has more different tokens than the model has rows.
    pub fn check_vocabulary(&self, model: u32) -> Result<(), DataError> {
        self.all().try_for_each(|data| data.check_vocabulary(model))
    }

    /// The descriptions of those datasets that have one.
    pub fn descriptions(&self) -> impl Iterator<Item = &Sidecar> {
        self.all().filter_map(TokenDataset::description)
    }

    /// Identity of the content, of the shares, and of a separate held-out dataset. For a single dataset it is the dataset's.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        if let ([alone], None) = (self.sources.as_slice(), &self.validation) {
            return alone.fingerprint();
        }
        let mut digest = Sha256::new();
        for (source, part) in self.sources.iter().zip(self.blend.parts()) {
            digest.update(format!("train {part} {}\n", source.fingerprint()));
        }
        if let Some(validation) = &self.validation {
            digest.update(format!("validation {}\n", validation.fingerprint()));
        }
        hex::encode(digest.finalize())
    }

    /// Number of held-out samples. Those of several sources are also a blend, which ends where one of them has no more.
    #[must_use]
    pub fn held_out_len(&self) -> u64 {
        self.held_out
    }

    /// Reads the tokens of a training sample into `tokens`: `sequence_length + 1` ids. Every index is valid.
    ///
    /// # Errors
    /// A file cannot be read, or `tokens` is of another length.
    pub fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), DataError> {
        let BlendSample { source, number } = self.blend.at(index);
        self.sources[source].train(number, tokens)
    }

    /// Announces that a part of a training sample will be read soon. Data on a store are then loaded in the background.
    pub fn prefetch_train(&self, index: u64, what: SampleData) {
        let BlendSample { source, number } = self.blend.at(index);
        self.sources[source].prefetch_train(number, what);
    }

    /// The same for a held-out sample.
    pub fn prefetch_held_out(&self, index: u64, what: SampleData) {
        if let Ok((source, number)) = self.held_out_sample(index) {
            source.prefetch_held_out(number, what);
        }
    }

    /// The positions of the same tokens within their documents, as [`TokenDataset::train_positions`].
    ///
    /// # Errors
    /// As for [`TrainingData::train`].
    pub fn train_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), DataError> {
        let BlendSample { source, number } = self.blend.at(index);
        self.sources[source].train_positions(number, positions)
    }

    /// The tokens of a held-out sample.
    ///
    /// # Errors
    /// As for [`TrainingData::train`], or there is no such sample.
    pub fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), DataError> {
        let (source, number) = self.held_out_sample(index)?;
        source.held_out(number, tokens)
    }

    /// The positions of the same tokens within their documents.
    ///
    /// # Errors
    /// As for [`TrainingData::held_out`].
    pub fn held_out_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), DataError> {
        let (source, number) = self.held_out_sample(index)?;
        source.held_out_positions(number, positions)
    }

    /// Which held-out sample of which dataset it is.
    fn held_out_sample(&self, index: u64) -> Result<(&TokenDataset, u64), DataError> {
        if let Some(validation) = &self.validation {
            return Ok((validation, index));
        }
        if index >= self.held_out {
            return Err(DataError::Argument {
                what: "held-out sample",
                value: index.to_string(),
                allowed: format!("below {}", self.held_out),
            });
        }
        let BlendSample { source, number } = self.blend.at(index);
        Ok((&self.sources[source], number))
    }
}

#[cfg(test)]
#[cfg(feature = "build")]
mod tests;
