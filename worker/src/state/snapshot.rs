//! A unit's state for others: read access while the next step computes, and copies.

use varuna_frames::Digester;
use varuna_plan::OptimizerProgress;
use varuna_torch::Share;

/// Elements whose digest is computed at once: 64 KiB are still in the processor's cache when they have been copied, and are enough for its
/// widest instructions.
const DIGESTED_AT_ONCE: usize = 1 << 14;

/// A copy of a unit's state, for a peer or a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct UnitState {
    /// What the optimizer has counted.
    pub progress: OptimizerProgress,
    /// Parameters, first moments, second moments, each in the unit's order; three equal parts.
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
    #[must_use]
    pub fn range(&self, start: usize, end: usize) -> Vec<f32> {
        let mut data = Vec::with_capacity(end.saturating_sub(start));
        let mut first = 0;
        for part in &self.parts {
            let from = start.saturating_sub(first).min(part.len());
            let to = end.saturating_sub(first).min(part.len());
            part.append(from..to.max(from), &mut data);
            first += part.len();
        }
        data
    }

    /// The first 64 bits of BLAKE3 over all of it: equal bits have equal digests, others (but for chance) others.
    #[must_use]
    pub fn digest(&self) -> u64 {
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
        let mut piece = Vec::with_capacity(DIGESTED_AT_ONCE);
        for part in &self.parts {
            for start in (0..part.len()).step_by(DIGESTED_AT_ONCE) {
                piece.clear();
                part.append(start..part.len().min(start + DIGESTED_AT_ONCE), &mut piece);
                digester.add(&piece);
            }
        }
        let [a, b, c, d, e, f, g, h, ..] = digester.digest();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Appends a copy of the whole state to `data`.
    pub(crate) fn append_to(&self, data: &mut Vec<f32>) {
        for part in &self.parts {
            part.append(0..part.len(), data);
        }
    }

    /// Copies the state out.
    #[must_use]
    pub fn copy(self) -> UnitState {
        let mut data = Vec::with_capacity(self.elements());
        self.append_to(&mut data);
        UnitState {
            progress: self.progress,
            data,
        }
    }
}
