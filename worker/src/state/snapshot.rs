//! A unit's state for others: read access while the next step computes, and copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use varuna_frames::Digester;
use varuna_plan::OptimizerProgress;
use varuna_torch::{Share, TorchError};

/// Elements that are copied between two checks whether the copy is still wanted: 64 MiB, which take milliseconds.
const COPIED_AT_ONCE: usize = 1 << 24;

/// Why a state was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The optimizer has waited too long for readers of the state, and continues.
    #[error("the optimizer has waited too long for the state to be read")]
    LeftOff,
    /// The device's driver reports an error.
    #[error(transparent)]
    Torch(#[from] TorchError),
}

/// Readers of a unit's present state: they can be asked to stop.
#[derive(Clone, Default)]
pub(super) struct Readers(Arc<AtomicBool>);

impl Readers {
    pub(super) fn ask_to_stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn are_asked_to_stop(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A copy of a unit's state, for a peer or a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitState {
    /// What the optimizer has counted.
    pub progress: OptimizerProgress,
    /// Parameters, first moments, and second ones where the optimizer has some, each in the unit's order; equal parts.
    pub data: Vec<f32>,
}

/// Read access to a unit's state, so that another thread can copy it while the next step computes. The next change of the unit waits until
/// this is dropped. After a while its copies and digests are asked to stop.
pub struct UnitSnapshot {
    pub(super) progress: OptimizerProgress,
    pub(super) parts: [Share; 3],
    pub(super) readers: Readers,
}

impl UnitSnapshot {
    /// What the optimizer has counted.
    #[must_use]
    pub fn progress(&self) -> OptimizerProgress {
        self.progress
    }

    /// The optimizer has waited too long for this to be dropped.
    #[must_use]
    pub fn must_stop(&self) -> bool {
        self.readers.are_asked_to_stop()
    }

    fn check_not_stopped(&self) -> Result<(), ReadError> {
        match self.must_stop() {
            true => Err(ReadError::LeftOff),
            false => Ok(()),
        }
    }

    /// Elements of the whole state.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.parts.iter().map(Share::len).sum()
    }

    /// Copies the elements of the state from `start` to `end` out, as far as there are some.
    ///
    /// # Errors
    /// The device's driver reports an error.
    pub fn range(&self, start: usize, end: usize) -> Result<Vec<f32>, TorchError> {
        let mut data = Vec::with_capacity(end.saturating_sub(start));
        let mut first = 0;
        for part in &self.parts {
            let from = start.saturating_sub(first).min(part.len());
            let to = end.saturating_sub(first).min(part.len());
            part.append(from..to.max(from), &mut data)?;
            first += part.len();
        }
        Ok(data)
    }

    /// The first 64 bits of BLAKE3 over all of it: equal bits have equal digests; different bits have different ones, except by chance.
    ///
    /// # Errors
    /// The optimizer has waited too long, or the device's driver reports an error.
    pub fn digest(&self) -> Result<u64, ReadError> {
        let OptimizerProgress {
            adam_steps,
            loss_scale,
            failed_in_a_row,
        } = self.progress;
        let numbers = [
            adam_steps,
            loss_scale.factor.value(),
            loss_scale.clean_steps.into(),
            failed_in_a_row.into(),
        ];
        let mut digester = Digester::new(&numbers.map(u64::to_le_bytes).concat());
        let mut piece = Vec::new();
        for part in &self.parts {
            for start in (0..part.len()).step_by(part.piece()) {
                self.check_not_stopped()?;
                piece.clear();
                part.append(start..part.len().min(start + part.piece()), &mut piece)?;
                digester.add(&piece);
            }
        }
        let [a, b, c, d, e, f, g, h, ..] = digester.digest();
        Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }

    /// Appends a copy of the whole state to `data`.
    ///
    /// # Errors
    /// The optimizer has waited too long, or the device's driver reports an error; a part may have been appended.
    pub(crate) fn append_to(&self, data: &mut Vec<f32>) -> Result<(), ReadError> {
        for part in &self.parts {
            for start in (0..part.len()).step_by(COPIED_AT_ONCE) {
                self.check_not_stopped()?;
                part.append(start..part.len().min(start + COPIED_AT_ONCE), data)?;
            }
        }
        Ok(())
    }

    /// Copies the state out.
    ///
    /// # Errors
    /// The optimizer has waited too long, or the device's driver reports an error.
    pub fn copy(self) -> Result<UnitState, ReadError> {
        let mut data = Vec::with_capacity(self.elements());
        self.append_to(&mut data)?;
        Ok(UnitState {
            progress: self.progress,
            data,
        })
    }
}
