//! Calibration: two constants that make costs agree with measured steps, fitted on some runs, judged by the others.
//!
//! The factors on compute and on boundary transfers are fitted by least squares on the relative error. Held-out runs must never be used
//! before the constants are fixed.

use crate::cost::{Calibration, Costs};
use crate::document::Shape;
use crate::predict::{Speeds, Topology, predict};

/// With fewer runs than this only the factor on compute is fitted: they cannot distinguish compute from transfers.
const RUNS_FOR_BOTH: usize = 4;
/// Gauss-Newton iterations. A handful suffices, since the step time is piecewise linear in both constants.
const ROUNDS: usize = 12;

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

/// A run and the calibrated prediction for it.
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
    /// Relative error: predicted / measured - 1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted_ms / self.run.step_ms - 1.0
    }
}

/// The result of a calibration.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibrated {
    /// The costs with the fitted constants.
    pub costs: Costs,
    /// All runs, in their order.
    pub runs: Vec<JudgedRun>,
    /// Median of the absolute relative error over held-out runs.
    pub median_error: f64,
    /// Greatest relative error of all runs.
    pub worst_error: f64,
}

/// Why runs cannot be used for calibration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    /// There are too few runs to keep one for judging.
    #[error("{0} measured plans: at least 2 are needed, one to fit and one to judge by")]
    Few(usize),
    /// No constants above 0 explain the fitted runs.
    #[error(
        "no factors on compute and transfer explain the measured steps: profile and steps do not belong together"
    )]
    NoFit,
}

/// Fits on every second run (the second, the fourth, ...) and judges by the others. Among several `candidates`, the one that explains the
/// fitted runs best is taken, the earlier one if equal. If costs have a host, only the factor on compute is fitted, because workers of one
/// machine share its memory with what they send.
///
/// # Errors
/// Fewer than two runs, or nothing that fits.
pub fn calibrate(candidates: &[Costs], runs: &[MeasuredRun]) -> Result<Calibrated, CalibrateError> {
    if runs.len() < 2 {
        return Err(CalibrateError::Few(runs.len()));
    }
    let fitted: Vec<&MeasuredRun> = runs.iter().skip(1).step_by(2).collect();
    let best = candidates
        .iter()
        .filter_map(|costs| fit(costs, &fitted))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let (mut costs, _) = best.ok_or(CalibrateError::NoFit)?;
    costs.calibrated = true;
    let judge = |(i, run): (usize, &MeasuredRun)| JudgedRun {
        run: run.clone(),
        predicted_ms: step_ms(&costs, &run.shape),
        fitted: i % 2 == 1,
    };
    let runs: Vec<JudgedRun> = runs.iter().enumerate().map(judge).collect();
    let held_out = runs.iter().filter(|r| !r.fitted);
    let mut errors: Vec<f64> = held_out.map(|r| r.error().abs()).collect();
    errors.sort_by(f64::total_cmp);
    Ok(Calibrated {
        median_error: f64::midpoint(errors[(errors.len() - 1) / 2], errors[errors.len() / 2]),
        worst_error: errors[errors.len() - 1],
        costs,
        runs,
    })
}

/// The step of a shape on nominal workers of one node, milliseconds.
fn step_ms(costs: &Costs, shape: &Shape) -> f64 {
    predict(costs, shape, &Speeds::nominal(), Topology::ONE_NODE).step_ms
}

/// Gauss-Newton on the relative error, of both constants or of compute alone. Returns the costs with the constants, and the mean square of
/// the remaining error.
#[expect(clippy::cast_precision_loss, reason = "a few runs")]
fn fit(costs: &Costs, runs: &[&MeasuredRun]) -> Option<(Costs, f64)> {
    let with = |compute: f64, transfer: f64| {
        let mut costs = costs.clone();
        costs.calibration = Calibration { compute, transfer };
        costs
    };
    let errors = |compute: f64, transfer: f64| -> Vec<f64> {
        let costs = with(compute, transfer);
        let error = |r: &&MeasuredRun| step_ms(&costs, &r.shape) / r.step_ms - 1.0;
        runs.iter().map(error).collect()
    };
    let square = |errors: &[f64]| errors.iter().map(|e| e * e).sum::<f64>();
    let (mut c, mut g) = (1.0, 1.0);
    let mut now = errors(c, g);
    for _ in 0..ROUNDS {
        let (hc, hg) = (c * 1e-3, g * 1e-3);
        let slope = |other: Vec<f64>, h: f64| -> Vec<f64> {
            other.iter().zip(&now).map(|(b, a)| (b - a) / h).collect()
        };
        let by_c = slope(errors(c + hc, g), hc);
        let by_g = if costs.host.is_some() || runs.len() < RUNS_FOR_BOTH {
            vec![0.0; runs.len()]
        } else {
            slope(errors(c, g + hg), hg)
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (cc, cg, gg) = (dot(&by_c, &by_c), dot(&by_c, &by_g), dot(&by_g, &by_g));
        let (ce, ge) = (dot(&by_c, &now), dot(&by_g, &now));
        let det = cc * gg - cg * cg;
        let (dc, dg) = if gg > 0.0 && det > 1e-12 * cc * gg {
            ((cg * ge - gg * ce) / det, (cg * ce - cc * ge) / det)
        } else {
            (-ce / cc.max(f64::MIN_POSITIVE), 0.0)
        };
        // Halve the step until it helps and both constants stay positive.
        let mut part = 1.0;
        let better = std::iter::repeat_with(|| {
            let next = (c + part * dc, g + part * dg);
            part /= 2.0;
            next
        });
        let next = better.take(20).find_map(|(c, g)| {
            let fine = c > 0.0 && g > 0.0;
            let errors = fine.then(|| errors(c, g))?;
            (square(&errors) < square(&now)).then_some((c, g, errors))
        });
        match next {
            Some((better_c, better_g, errors)) => (c, g, now) = (better_c, better_g, errors),
            None => break,
        }
    }
    let left = square(&now) / now.len().max(1) as f64;
    left.is_finite().then(|| (with(c, g), left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Device, Host};
    use crate::document::{Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Stage};
    use crate::ids::WorkerId;
    use crate::layout::SegmentRange;
    use varuna_model::{Transformer, gpt2};

    fn costs() -> Costs {
        let model = Transformer {
            layers: 12,
            hidden_size: 256,
            sequence_length: 128,
            vocabulary_size: 1000,
            ..gpt2::SMALL
        };
        Costs::estimate(&model.spec(), Device::CPU_CORE)
    }

    /// A pipeline with this many equal stages.
    fn shape(costs: &Costs, stages: u32) -> Shape {
        let segments = costs.layout().segments;
        let stage = |s: u32| Stage {
            worker: WorkerId(u64::from(s) + 1),
            segments: SegmentRange {
                start: s * segments / stages,
                end: (s + 1) * segments / stages,
            },
            recompute: None,
        };
        Shape {
            pipelines: vec![Pipeline {
                stages: (0..stages).map(stage).collect(),
                samples: SampleRange { start: 0, end: 16 },
            }],
            spares: Vec::new(),
            micro_batch_size: 1,
            schedule: ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        }
    }

    /// The measured steps of a model with these constants.
    fn runs(calibration: Calibration) -> Vec<MeasuredRun> {
        let mut costs = costs();
        costs.calibration = calibration;
        let run = |stages| MeasuredRun {
            name: format!("{stages} stages"),
            shape: shape(&costs, stages),
            step_ms: step_ms(&costs, &shape(&costs, stages)),
        };
        (1..=12).map(run).collect()
    }

    #[test]
    fn steps_that_a_model_made_give_its_constants_back() {
        let made = Calibration {
            compute: 0.7,
            transfer: 1.3,
        };
        let mut slower = costs();
        slower.segments[3].forward_ms *= 4.0;
        let found = calibrate(&[slower, costs()], &runs(made)).unwrap();
        let Calibration { compute, transfer } = found.costs.calibration;
        assert!(
            (compute - 0.7).abs() < 1e-4 && (transfer - 1.3).abs() < 1e-4,
            "{compute} {transfer}"
        );
        assert!(found.worst_error < 1e-4 && found.costs.calibrated);
        assert_eq!(found.costs.segments, costs().segments, "the candidate that fits");
        assert_eq!(found.runs.iter().filter(|r| r.fitted).count(), 6);
    }

    #[test]
    fn compute_alone_is_fitted_where_workers_have_a_host() {
        let mut costs = costs();
        costs.host = Some(Host {
            cores: 64,
            threads: 1,
            slowdown: vec![1.0],
        });
        let made = Calibration {
            compute: 2.0,
            transfer: 1.5,
        };
        let found = calibrate(&[costs], &runs(made)).unwrap().costs.calibration;
        assert!(found.compute > 1.5 && found.transfer == 1.0, "{found:?}");
    }

    #[test]
    fn one_run_is_not_enough() {
        let one = &runs(Calibration::default())[..1];
        assert_eq!(calibrate(&[costs()], one), Err(CalibrateError::Few(1)));
    }
}
