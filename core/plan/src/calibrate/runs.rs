//! Calibration by plans that this project ran: their own documents, whatever their cuts, and what a step of them took.

use super::{CalibrateError, Ran, fit, step_ms};
use crate::cost::Costs;
use crate::document::Shape;

/// A plan that was run.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredRun {
    /// A name for people.
    pub name: String,
    /// The plan that it ran.
    pub shape: Shape,
    /// Median step, milliseconds.
    pub step_ms: f64,
}

/// A run and what the calibrated model says of it.
#[derive(Clone, PartialEq, Debug)]
pub struct JudgedRun {
    /// The measured run.
    pub run: MeasuredRun,
    /// Predicted step, milliseconds.
    pub predicted_ms: f64,
    /// Whether the constants were fitted on it.
    pub fitted: bool,
}

impl JudgedRun {
    /// Predicted / measured - 1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted_ms / self.run.step_ms - 1.0
    }
}

/// What a calibration by runs found.
#[derive(Clone, PartialEq, Debug)]
pub struct CalibratedRuns {
    /// The costs with the fitted constants.
    pub costs: Costs,
    /// All runs, in their order.
    pub runs: Vec<JudgedRun>,
    /// Median of the absolute relative error over held-out runs.
    pub median_error: f64,
    /// Worst of them.
    pub worst_error: f64,
}

/// Fits on every second run (the second, the fourth, ...), judges by the others. Workers of one machine share its memory
/// with what they send, so that only the factor on compute is fitted where the costs have a host.
///
/// # Errors
/// Fewer than two runs, or nothing that fits.
pub fn calibrate_runs(costs: &Costs, runs: &[MeasuredRun]) -> Result<CalibratedRuns, CalibrateError> {
    if runs.len() < 2 {
        return Err(CalibrateError::Few(runs.len()));
    }
    let plan = |run: &MeasuredRun| Ran {
        shape: run.shape.clone(),
        step_ms: run.step_ms,
    };
    let plans: Vec<Ran> = runs.iter().map(plan).collect();
    let fitted: Vec<&Ran> = plans.iter().skip(1).step_by(2).collect();
    let (costs, _) = fit(costs, &fitted, costs.host.is_none()).ok_or(CalibrateError::NoFit)?;
    let mut costs = costs;
    costs.calibrated = true;
    let judged: Vec<JudgedRun> = runs
        .iter()
        .enumerate()
        .map(|(i, run)| JudgedRun {
            run: run.clone(),
            predicted_ms: step_ms(&costs, &run.shape),
            fitted: i % 2 == 1,
        })
        .collect();
    let mut errors: Vec<f64> = judged
        .iter()
        .filter(|j| !j.fitted)
        .map(|j| j.error().abs())
        .collect();
    errors.sort_by(f64::total_cmp);
    Ok(CalibratedRuns {
        median_error: f64::midpoint(errors[(errors.len() - 1) / 2], errors[errors.len() / 2]),
        worst_error: errors[errors.len() - 1],
        costs,
        runs: judged,
    })
}
