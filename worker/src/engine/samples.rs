//! The interface of the job's data to the engine.

/// A sample could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read sample {index}: {why}")]
pub struct SampleError {
    /// Number in the seeded order.
    pub index: u64,
    /// Description of the error.
    pub why: String,
    /// Another try may succeed later, as where a store is away: the step has failed, and the state is as it was.
    pub may_pass: bool,
}

/// Where a sample is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    Train,
    HeldOut,
}

impl Split {
    pub(super) fn tokens(self) -> SamplePart {
        match self {
            Split::Train => SamplePart::Train,
            Split::HeldOut => SamplePart::HeldOut,
        }
    }

    pub(super) fn positions(self) -> SamplePart {
        match self {
            Split::Train => SamplePart::TrainPositions,
            Split::HeldOut => SamplePart::HeldOutPositions,
        }
    }
}

/// What is read of a sample: one of the reads of [`Samples`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SamplePart {
    /// [`Samples::train`].
    Train,
    /// [`Samples::held_out`].
    HeldOut,
    /// [`Samples::train_positions`].
    TrainPositions,
    /// [`Samples::held_out_positions`].
    HeldOutPositions,
}

/// The samples of a job. `tokens` has room for sequence length + 1 ids: inputs and, shifted by one, targets.
pub trait Samples: Send + Sync {
    /// The sample with this number in the seeded order; any number (passes over the data follow each other).
    ///
    /// # Errors
    /// The data cannot be read.
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError>;
    /// A sample of the held-out split, `index` below [`Samples::held_out_len`].
    ///
    /// # Errors
    /// The data cannot be read.
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError>;
    /// Samples in the held-out split.
    fn held_out_len(&self) -> u64;
    /// A part of a sample will be read soon, with others: where reads take long, they can be under way together.
    fn prefetch(&self, _part: SamplePart, _index: u64) {}
    /// The positions of a sample's tokens within their documents: 0 at the sample's first token and at the first one of each document. Samples
    /// are one document each where this is not said.
    ///
    /// # Errors
    /// The data cannot be read.
    fn train_positions(&self, _index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        (0..).zip(positions).for_each(|(i, position)| *position = i);
        Ok(())
    }
    /// The same of a sample of the held-out split.
    ///
    /// # Errors
    /// The data cannot be read.
    fn held_out_positions(&self, _index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        (0..).zip(positions).for_each(|(i, position)| *position = i);
        Ok(())
    }
    /// One of these reads. Where reads that fail are tried again, `wanted` is asked before each other try: once it says no, nobody waits for this read
    /// any more.
    ///
    /// # Errors
    /// The data cannot be read.
    fn read_while(
        &self,
        part: SamplePart,
        index: u64,
        numbers: &mut [i64],
        _wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(), SampleError> {
        match part {
            SamplePart::Train => self.train(index, numbers),
            SamplePart::HeldOut => self.held_out(index, numbers),
            SamplePart::TrainPositions => self.train_positions(index, numbers),
            SamplePart::HeldOutPositions => self.held_out_positions(index, numbers),
        }
    }
}
