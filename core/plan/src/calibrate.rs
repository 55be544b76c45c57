//! Calibration: two constants that make a profile agree with measured steps, fitted on some plans, judged on others.
//!
//! Fitted are the factor on compute and the factor on boundary transfers, by least squares on relative error. How tensors
//! move ([`Runtime`]) and how wide an element is are chosen among four combinations by the fitted rows alone. It must
//! never look at a held-out row before the constants are fixed.

mod runs;
mod table;

pub use runs::{CalibratedRuns, JudgedRun, MeasuredRun, calibrate_runs};
pub use table::{MeasuredError, MeasuredRow, read_measured};

use crate::cost::{Calibration, Costs, Runtime};
use crate::document::{
    Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage,
};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::predict::{Speeds, Topology, predict};

/// Below this many rows only the factor on compute is fitted: fewer do not tell compute from transfers.
const ROWS_FOR_BOTH: usize = 4;
/// Rounds of Gauss and Newton; a handful suffices, the step time is piecewise linear in both constants.
const ROUNDS: usize = 12;

/// A plan of equal pipelines that was run, as the cost model sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Number of pipelines (D).
    pub data_parallel: usize,
    /// Stages of each pipeline (P).
    pub pipeline_parallel: usize,
    /// Samples in a step.
    pub global_batch_size: u64,
    /// Samples in a micro-batch.
    pub micro_batch_size: u32,
}

/// Cuts by count: all segments but the first are dealt out evenly, the remainder to the stages before the last; the first
/// segment joins the first stage. None where there are more stages than that can fill. This is how frameworks cut that
/// know nothing of costs.
#[must_use]
pub fn counted_cuts(segments: u32, stages: usize) -> Option<Vec<SegmentRange>> {
    let units = segments.saturating_sub(1);
    let p = u32::try_from(stages)
        .ok()
        .filter(|p| *p >= 1 && *p <= units.max(1))?;
    let (each, extra) = (units / p, units % p);
    let mut start = 0;
    let cut = |s: u32| {
        // With extra < p the stages p - 1 - extra .. p - 1 take one more.
        let more = u32::from(s + 1 < p && s + 1 + extra >= p) + u32::from(s == 0);
        let range = SegmentRange {
            start,
            end: start + each + more,
        };
        start = range.end;
        range
    };
    Some((0..p).map(cut).collect())
}

impl Grid {
    /// The plan that was run, by frameworks that cut stages like this: 1F1B, and as many samples for each pipeline as the largest
    /// share has.
    #[must_use]
    pub fn shape(&self, stages: &[SegmentRange]) -> Shape {
        let each = self.global_batch_size.div_ceil(self.data_parallel.max(1) as u64);
        let mut workers = (1..).map(WorkerId);
        let mut pipeline = |i: u64| Pipeline {
            stages: stages
                .iter()
                .zip(&mut workers)
                .map(|(segments, worker)| Stage {
                    worker,
                    segments: *segments,
                    recompute: None,
                })
                .collect(),
            samples: SampleRange {
                start: i * each,
                end: (i + 1) * each,
            },
        };
        Shape {
            pipelines: (0..self.data_parallel as u64).map(&mut pipeline).collect(),
            spares: Vec::new(),
            micro_batch_size: self.micro_batch_size.max(1),
            schedule: ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        }
    }
}

/// The step of a shape on nominal workers of one node, milliseconds.
fn step_ms(costs: &Costs, shape: &Shape) -> f64 {
    predict(costs, shape, &Speeds::nominal(), Topology::ONE_NODE).step_ms
}

/// A measured row and what the calibrated model says of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Judged {
    /// The measured row.
    pub row: MeasuredRow,
    /// Predicted step, milliseconds.
    pub predicted_ms: f64,
    /// Whether the constants were fitted on it.
    pub fitted: bool,
}

impl Judged {
    /// Predicted / measured - 1.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.predicted_ms / self.row.step_ms - 1.0
    }
}

/// What a calibration found.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibrated {
    /// The costs with the chosen structure and the fitted constants.
    pub costs: Costs,
    /// All rows, in the order of the table.
    pub rows: Vec<Judged>,
    /// Median of the absolute relative error over held-out rows.
    pub median_error: f64,
    /// Worst of them.
    pub worst_error: f64,
    /// Mean, over numbers of workers, of how much slower the plan is that the model chooses among the measured ones than the
    /// one that was measured fastest.
    pub mean_regret: f64,
    /// Worst of them.
    pub worst_regret: f64,
}

/// A table that no calibration can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    /// Nothing would be left to judge by.
    #[error("{0} measured rows: at least 2 are needed, one to fit and one to judge by")]
    Few(usize),
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
    /// No constants above 0 explain the fitted rows.
    #[error(
        "no factors on compute and transfer explain the measured steps: profile and table do not belong together"
    )]
    NoFit,
}

/// Fits on every second row (the second, the fourth, ...), judges by the others. `fixed`: the profile says how tensors move
/// and how wide they are; else the fitted rows choose.
///
/// # Errors
/// Fewer than two rows, a row that the profile cannot be cut for, or nothing that fits.
pub fn calibrate(
    costs: &Costs,
    rows: &[MeasuredRow],
    global_batch_size: u64,
    micro_batch_size: u32,
    fixed: bool,
) -> Result<Calibrated, CalibrateError> {
    if rows.len() < 2 {
        return Err(CalibrateError::Few(rows.len()));
    }
    let mut plans = Vec::new();
    for row in rows {
        let segments = costs.layout().segments;
        let stages = counted_cuts(segments, row.pipeline_parallel).ok_or(CalibrateError::Depth {
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
        plans.push(Ran {
            shape: grid.shape(&stages),
            step_ms: row.step_ms,
        });
    }
    let fitted: Vec<&Ran> = plans.iter().skip(1).step_by(2).collect();
    let best = structures(costs, fixed)
        .into_iter()
        .filter_map(|structure| fit(&structure, &fitted, true))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let (mut costs, _) = best.ok_or(CalibrateError::NoFit)?;
    costs.calibrated = true;
    let judge = |(i, (row, plan)): (usize, (&MeasuredRow, &Ran))| Judged {
        row: *row,
        predicted_ms: step_ms(&costs, &plan.shape),
        fitted: i % 2 == 1,
    };
    let rows: Vec<Judged> = rows.iter().zip(&plans).enumerate().map(judge).collect();
    let mut errors: Vec<f64> = rows
        .iter()
        .filter(|r| !r.fitted)
        .map(|r| r.error().abs())
        .collect();
    errors.sort_by(f64::total_cmp);
    let (mean_regret, worst_regret) = regret(&rows);
    Ok(Calibrated {
        median_error: f64::midpoint(errors[(errors.len() - 1) / 2], errors[errors.len() / 2]),
        worst_error: errors[errors.len() - 1],
        mean_regret,
        worst_regret,
        costs,
        rows,
    })
}

/// A plan that was run, and what a step of it took, milliseconds.
struct Ran {
    shape: Shape,
    step_ms: f64,
}

/// The ways in which tensors may move: the profile's own, or all, the profile's own first.
fn structures(costs: &Costs, fixed: bool) -> Vec<Costs> {
    if fixed {
        return vec![costs.clone()];
    }
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

#[expect(clippy::cast_precision_loss, reason = "a few rows")]
/// Gauss and Newton on relative error, of both constants or of compute alone; the costs with the constants, and the mean
/// square of what is left.
fn fit(costs: &Costs, plans: &[&Ran], both: bool) -> Option<(Costs, f64)> {
    let with = |compute: f64, transfer: f64| {
        let mut costs = costs.clone();
        costs.calibration = Calibration { compute, transfer };
        costs
    };
    let errors = |compute: f64, transfer: f64| -> Vec<f64> {
        let costs = with(compute, transfer);
        let error = |p: &&Ran| step_ms(&costs, &p.shape) / p.step_ms - 1.0;
        plans.iter().map(error).collect()
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
        let by_g = if !both || plans.len() < ROWS_FOR_BOTH {
            vec![0.0; plans.len()]
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
        // Half the step until it helps and both stay above 0.
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

/// Mean and worst regret over all numbers of workers between the smallest and the largest plan.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn regret(rows: &[Judged]) -> (f64, f64) {
    let workers = |r: &Judged| r.row.data_parallel * r.row.pipeline_parallel;
    let bounds = (rows.iter().map(workers).min(), rows.iter().map(workers).max());
    let (Some(least), Some(most)) = bounds else {
        return (0.0, 0.0);
    };
    let regrets: Vec<f64> = (least..=most)
        .filter_map(|n| {
            let fit = || rows.iter().filter(|r| workers(r) <= n);
            let chosen = fit().min_by(|a, b| a.predicted_ms.total_cmp(&b.predicted_ms))?;
            let best = fit().map(|r| r.row.step_ms).min_by(f64::total_cmp)?;
            Some(chosen.row.step_ms / best - 1.0)
        })
        .collect();
    let worst = regrets.iter().copied().fold(0.0, f64::max);
    (regrets.iter().sum::<f64>() / regrets.len().max(1) as f64, worst)
}

#[cfg(test)]
mod tests;
