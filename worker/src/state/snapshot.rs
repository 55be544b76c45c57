//! A unit's state for others: read access while the next step computes, and copies.

use varuna_frames::Digester;
use varuna_plan::OptimizerProgress;
use varuna_torch::{Share, TorchError};

/// A copy of a unit's state, for a peer or a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitState {
    /// What the optimizer has counted.
    pub progress: OptimizerProgress,
    /// Parameters, first moments, and second ones where the optimizer has some, each in the unit's order; equal parts.
    pub data: Vec<f32>,
}

/// Read access to a unit's state, so that another thread can copy it while the next step computes. The next change of the unit
/// waits until this is dropped.
pub struct UnitSnapshot {
    pub(super) progress: OptimizerProgress,
    pub(super) parts: [Share; 3],
}

impl UnitSnapshot {
    /// What the optimizer has counted.
    #[must_use]
    pub fn progress(&self) -> OptimizerProgress {
        self.progress
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

    /// The first 64 bits of BLAKE3 over all of it: equal bits have equal digests, others (but for chance) others.
    ///
    /// # Errors
    /// The device's driver reports an error.
    pub fn digest(&self) -> Result<u64, TorchError> {
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
    /// The device's driver reports an error; a part may have been appended.
    pub(crate) fn append_to(&self, data: &mut Vec<f32>) -> Result<(), TorchError> {
        let mut parts = self.parts.iter();
        parts.try_for_each(|part| part.append(0..part.len(), data))
    }

    /// Copies the state out.
    ///
    /// # Errors
    /// The device's driver reports an error.
    pub fn copy(self) -> Result<UnitState, TorchError> {
        let mut data = Vec::with_capacity(self.elements());
        self.append_to(&mut data)?;
        Ok(UnitState {
            progress: self.progress,
            data,
        })
    }
}
