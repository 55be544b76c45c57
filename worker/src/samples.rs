//! The job's dataset as the engine's source of samples.

use crate::engine::{SampleError, Samples};
use varuna_dataset::TokenDataset;

/// Implements [`Samples`] for a token dataset.
pub struct DatasetSamples(pub TokenDataset);

fn at_sample(index: u64) -> impl FnOnce(varuna_dataset::DataError) -> SampleError {
    move |error| SampleError {
        index,
        why: error.to_string(),
    }
}

impl Samples for DatasetSamples {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.0.train(index, tokens).map_err(at_sample(index))
    }

    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.0.held_out(index, tokens).map_err(at_sample(index))
    }

    fn held_out_len(&self) -> u64 {
        self.0.held_out_len()
    }
}
