//! The job's dataset as the engine wants it.

use crate::engine::{SampleError, Samples};
use varuna_dataset::TokenDataset;

/// A token dataset behind [`Samples`].
pub struct DatasetSamples(pub TokenDataset);

fn named(index: u64) -> impl FnOnce(varuna_dataset::DataError) -> SampleError {
    move |error| SampleError {
        index,
        why: error.to_string(),
    }
}

impl Samples for DatasetSamples {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.0.train(index, tokens).map_err(named(index))
    }

    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.0.held_out(index, tokens).map_err(named(index))
    }

    fn held_out_len(&self) -> u64 {
        self.0.held_out_len()
    }
}
