//! Calibration by a table of measured grids of another framework.
//!
//! Such a table does not say how its runtime moves tensors ([`Runtime`]) nor how wide an element is: the fitted rows choose among
//! four combinations. The constants, and what is held out, are the core's ([`varuna_plan::calibrate`]).

use crate::grid::{Grid, counted_cuts};
use crate::measured_table::MeasuredRow;
use varuna_plan::calibrate::{Calibrated, JudgedRun, MeasuredRun};
use varuna_plan::profile::Profile;
use varuna_plan::{Costs, Runtime, calibrate};

/// What a calibration by a table found.
#[derive(Clone, PartialEq, Debug)]
pub struct TableCalibration {
    /// Costs, and all rows in the order of the table.
    pub calibrated: Calibrated,
    /// Mean, over numbers of workers, of how much slower the plan is that the model chooses among the measured ones than the
    /// one that was measured fastest.
    pub mean_regret: f64,
    /// Greatest regret of all tables.
    pub worst_regret: f64,
}

/// A table that no calibration can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableCalibrationError {
    /// The profile has too few segments for a measured plan.
    #[error(
        "line {line}: pipeline_parallel is {stages}, the profile's {segments} segments fill at most {most} stages"
    )]
    Depth {
        /// Line of the table.
        line: u64,
        /// Stages of each pipeline (P).
        stages: usize,
        /// Segments of the profile.
        segments: u32,
        /// Most stages that the segments fill.
        most: u32,
    },
    /// Too few rows, or no constants explain them.
    #[error(transparent)]
    Fit(#[from] calibrate::CalibrateError),
}

/// Fits on every second row (the second, the fourth, ...), judges by the others.
///
/// # Errors
/// Fewer than two rows, a row that the profile cannot be cut for, or nothing that fits.
pub fn calibrate_by_table(
    costs: &Costs,
    rows: &[MeasuredRow],
    global_batch_size: u64,
    micro_batch_size: u32,
) -> Result<TableCalibration, TableCalibrationError> {
    let segments = costs.layout().segments;
    let run = |row: &MeasuredRow| {
        let stages = counted_cuts(segments, row.pipeline_parallel).ok_or(TableCalibrationError::Depth {
            line: row.line,
            stages: row.pipeline_parallel,
            segments,
            most: segments.saturating_sub(1).max(1),
        })?;
        let grid = Grid {
            data_parallel: row.data_parallel,
            pipeline_parallel: row.pipeline_parallel,
            global_batch_size,
            micro_batch_size,
        };
        let shape = grid.shape(&stages);
        Ok(MeasuredRun {
            name: shape.summary(),
            shape,
            step_ms: row.step_ms,
        })
    };
    let runs = rows
        .iter()
        .map(run)
        .collect::<Result<Vec<_>, TableCalibrationError>>()?;
    let calibrated = calibrate::calibrate(&structures(costs), &runs)?;
    let (mean_regret, worst_regret) = regret(&calibrated.runs);
    Ok(TableCalibration {
        calibrated,
        mean_regret,
        worst_regret,
    })
}

/// The profile that gives the calibrated costs.
#[must_use]
pub fn calibrated_profile(mut profile: Profile, costs: &Costs) -> Profile {
    profile.runtime = costs.runtime;
    profile.calibration = Some(costs.calibration);
    profile.element_bytes = costs.device.element_bytes;
    for (segment, costs) in profile.segments.iter_mut().zip(&costs.segments) {
        segment.input_bytes = costs.input_bytes;
    }
    profile
}

/// The batch that steps and rates amount to, where all rows agree within half a sample.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a batch is a small positive number"
)]
pub fn batch_of(rows: &[MeasuredRow]) -> Option<u64> {
    let batches: Option<Vec<f64>> = rows
        .iter()
        .map(|r| Some(r.step_ms / 1e3 * r.samples_per_s?))
        .collect();
    let batches = batches?;
    let first = batches.first()?.round();
    (first >= 1.0 && batches.iter().all(|b| (b - first).abs() < 0.5)).then_some(first as u64)
}

/// The ways in which tensors may move.
fn structures(costs: &Costs) -> Vec<Costs> {
    let mut all = Vec::new();
    for runtime in [Runtime::Rendezvous, Runtime::Overlapped] {
        for element_bytes in [2, 4] {
            let mut other = costs.clone();
            other.runtime = runtime;
            for segment in other.segments.iter_mut().skip(1) {
                segment.input_bytes = segment.input_bytes / costs.device.element_bytes.max(1) * element_bytes;
            }
            other.device.element_bytes = element_bytes;
            all.push(other);
        }
    }
    all
}

/// Mean and worst regret over all numbers of workers between the smallest and the largest plan.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn regret(runs: &[JudgedRun]) -> (f64, f64) {
    let workers = |r: &JudgedRun| r.run.shape.members().len();
    let bounds = (runs.iter().map(workers).min(), runs.iter().map(workers).max());
    let (Some(least), Some(most)) = bounds else {
        return (0.0, 0.0);
    };
    let regrets: Vec<f64> = (least..=most)
        .filter_map(|n| {
            let fit = || runs.iter().filter(|r| workers(r) <= n);
            let chosen = fit().min_by(|a, b| a.predicted_ms.total_cmp(&b.predicted_ms))?;
            let best = fit().map(|r| r.run.step_ms).min_by(f64::total_cmp)?;
            Some(chosen.run.step_ms / best - 1.0)
        })
        .collect();
    let worst = regrets.iter().copied().fold(0.0, f64::max);
    (regrets.iter().sum::<f64>() / regrets.len().max(1) as f64, worst)
}

#[cfg(test)]
mod tests;
