//! The job's data as the engine's source of samples.

use crate::engine::{SampleError, SamplePart, Samples};
use crate::read_failures::{BACKOFF, read_again, read_may_pass};
use backon::ExponentialBuilder;
use std::io::ErrorKind;
use varuna_dataset::{DataError, SampleData, TrainingData};

/// Implements [`Samples`] for the data of a job.
pub struct DatasetSamples(pub TrainingData);

/// The files were open when the worker started. A store that forbids them now may allow them again: credentials are renewed, rights are given
/// back, and the clock by which requests are signed is set right. Else all workers would end at once, with all of the run's state.
fn may_pass(error: &DataError) -> bool {
    let passes = |kind| kind == ErrorKind::PermissionDenied || read_may_pass(kind);
    matches!(error, DataError::Io { source, .. } if passes(source.kind()))
}

/// Reads a sample, again where the file system or the store fails, as long as it is wanted.
fn read(
    index: u64,
    wanted: &mut dyn FnMut() -> bool,
    read: impl FnMut() -> Result<(), DataError>,
) -> Result<(), SampleError> {
    read_by(BACKOFF, index, wanted, read)
}

fn read_by(
    backoff: ExponentialBuilder,
    index: u64,
    wanted: &mut dyn FnMut() -> bool,
    read: impl FnMut() -> Result<(), DataError>,
) -> Result<(), SampleError> {
    let done = read_again(backoff, &format_args!("sample {index}"), wanted, may_pass, read);
    done.map_err(|error| SampleError {
        index,
        why: error.to_string(),
        may_pass: may_pass(&error),
    })
}

impl Samples for DatasetSamples {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.read_while(SamplePart::Train, index, tokens, &mut || true)
    }

    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.read_while(SamplePart::HeldOut, index, tokens, &mut || true)
    }

    fn prefetch(&self, part: SamplePart, index: u64) {
        let data = &self.0;
        match part {
            SamplePart::Train => data.prefetch_train(index, SampleData::Tokens),
            SamplePart::HeldOut => data.prefetch_held_out(index, SampleData::Tokens),
            SamplePart::TrainPositions => data.prefetch_train(index, SampleData::Positions),
            SamplePart::HeldOutPositions => data.prefetch_held_out(index, SampleData::Positions),
        }
    }

    fn train_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        self.read_while(SamplePart::TrainPositions, index, positions, &mut || true)
    }

    fn held_out_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        self.read_while(SamplePart::HeldOutPositions, index, positions, &mut || true)
    }

    fn read_while(
        &self,
        part: SamplePart,
        index: u64,
        numbers: &mut [i64],
        wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(), SampleError> {
        let data = &self.0;
        read(index, wanted, || match part {
            SamplePart::Train => data.train(index, numbers),
            SamplePart::HeldOut => data.held_out(index, numbers),
            SamplePart::TrainPositions => data.train_positions(index, numbers),
            SamplePart::HeldOutPositions => data.held_out_positions(index, numbers),
        })
    }

    fn held_out_len(&self) -> u64 {
        self.0.held_out_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::time::Duration;

    fn io_error() -> DataError {
        DataError::Io {
            action: "read",
            path: "tokens.bin".into(),
            source: io::Error::other("the server is away"),
        }
    }

    #[test]
    fn transient_read_failure_is_repeated() {
        let mut tries = 0;
        let read_later = || {
            tries += 1;
            if tries < 3 { Err(io_error()) } else { Ok(()) }
        };
        assert_eq!(read(7, &mut || true, read_later), Ok(()));
        let mut tries = 0;
        let malformed = || {
            tries += 1;
            Err(DataError::Argument {
                what: "index",
                value: "7".into(),
                allowed: "less".into(),
            })
        };
        assert!(read(7, &mut || true, malformed).is_err());
        assert_eq!(tries, 1);
        let replaced = || {
            tries += 1;
            Err(DataError::Io {
                action: "read",
                path: "s3://b/tokens.bin".into(),
                source: ErrorKind::StaleNetworkFileHandle.into(),
            })
        };
        assert!(read(7, &mut || true, replaced).is_err());
        assert_eq!(tries, 2);
    }

    #[test]
    fn unavailable_store_differs_from_unreadable_data() {
        let soon = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(1))
            .with_max_times(2);
        let mut tries = 0;
        let away = || {
            tries += 1;
            Err(io_error())
        };
        let error = read_by(soon, 7, &mut || true, away).unwrap_err();
        assert_eq!((error.may_pass, tries), (true, 3));
        for (kind, may_pass) in [
            (ErrorKind::NotFound, false),
            (ErrorKind::StaleNetworkFileHandle, false),
            (ErrorKind::UnexpectedEof, false),
            // As with a credential that has expired.
            (ErrorKind::PermissionDenied, true),
        ] {
            let lost = || {
                Err(DataError::Io {
                    action: "read",
                    path: "tokens.bin".into(),
                    source: kind.into(),
                })
            };
            let error = read_by(soon, 7, &mut || true, lost).unwrap_err();
            assert_eq!(error.may_pass, may_pass, "{kind}");
        }
    }

    #[test]
    fn a_read_that_nobody_waits_for_any_more_is_not_tried_again() {
        let (mut tries, mut asked) = (0, 0);
        let away = || {
            tries += 1;
            Err(io_error())
        };
        let mut wanted = || {
            asked += 1;
            asked < 3
        };
        let error = read(7, &mut wanted, away).unwrap_err();
        // Asked after the failure, and twice in the first pause, which is not slept to its end.
        assert_eq!((error.may_pass, tries, asked), (true, 1, 3));
    }
}
