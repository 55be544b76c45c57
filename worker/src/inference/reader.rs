//! Reads the held-out windows of a dataset as batches.

use super::trained::Windows;
use crate::engine::{SampleError, SamplePart, Samples, hide, leave_targets};
use crate::samples::DatasetSamples;
use anyhow::Result;
use std::ops::Range;
use tch::Tensor;
use varuna_api::Packing;
use varuna_api::masking::{Masking, SampleMask};

/// Reads windows, and masks them where the model fills tokens in.
pub(super) struct Reader<'a> {
    pub(super) data: &'a DatasetSamples,
    /// Tokens of a window, and the one after it.
    pub(super) width: usize,
    pub(super) packing: Packing,
    pub(super) masking: Option<Masking>,
    pub(super) vocabulary_size: u32,
}

impl Reader<'_> {
    /// These windows as one batch.
    ///
    /// # Errors
    /// A window cannot be read.
    pub(super) fn read(&self, windows: Range<u64>) -> Result<Windows> {
        for window in windows.clone() {
            self.data.prefetch(SamplePart::HeldOut, window);
        }
        let read = |window, row: &mut [i64]| self.data.held_out(window, row);
        let positions = match self.packing.is_off() {
            true => None,
            false => {
                let read = |window, row: &mut [i64]| self.data.held_out_positions(window, row);
                Some(rows(windows.clone(), self.width, read)?)
            }
        };
        let Some(masking) = self.masking else {
            return Ok(Windows {
                tokens: rows(windows, self.width, read)?,
                targets: None,
                positions,
            });
        };
        let masked = |of: fn(&SampleMask, &mut [i64])| {
            rows(windows.clone(), self.width, |window, row| {
                read(window, row)?;
                of(&masking.of_held_out(self.vocabulary_size, window), row);
                Ok(())
            })
        };
        Ok(Windows {
            tokens: masked(hide)?,
            targets: Some(masked(leave_targets)?),
            positions,
        })
    }
}

/// (b, width): what is read of each window.
///
/// # Errors
/// A window cannot be read.
pub(super) fn rows(
    windows: Range<u64>,
    width: usize,
    read: impl Fn(u64, &mut [i64]) -> Result<(), SampleError>,
) -> Result<Tensor> {
    let count = usize::try_from(windows.end - windows.start)?;
    let mut numbers = vec![0; count * width];
    for (window, row) in windows.zip(numbers.chunks_exact_mut(width)) {
        read(window, row)?;
    }
    Ok(Tensor::from_slice(&numbers).view([-1, i64::try_from(width)?]))
}
