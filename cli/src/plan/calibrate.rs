//! `varuna plan calibrate`: fits a profile to the steps of runs.

use crate::costs::read_profile;
use crate::failure::Failure;
use crate::io::{print, print_json, read, to_json, write};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use varuna_plan::calibrate::{Calibrated, JudgedRun, MeasuredRun, calibrate};
use varuna_plan::check::{PlanError, check_shape};
use varuna_plan::{Costs, Generation, Shape, WorkerId};
use varuna_run_folder::{Metric, RunFiles};

/// The first steps of a generation warm up.
const WARM_UP: usize = 2;

/// Fit a profile to the measured steps of several runs. Two constants, for compute and for transfers, are fitted to every second run and
/// checked against the others.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The profile (see varuna profile).
    #[arg(long)]
    profile: PathBuf,
    /// Folder of a run on this kind of device. Give this option several times. Only the last plan of each run counts, with its median step
    /// time.
    #[arg(long, required = true)]
    run: Vec<PathBuf>,
    /// Table of message times that replaces the profile's links: a CSV file with the columns bytes,us.
    #[arg(long)]
    links: Option<PathBuf>,
    /// Write the calibrated profile to this file.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Print the constants and all runs as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut profile = read_profile(&arguments.profile, arguments.links.as_deref())?;
    let mut plans: Vec<Measured> = Vec::new();
    let costs = profile.costs();
    for folder in &arguments.run {
        let run = measured(folder)?;
        check(&run.shape, &costs).map_err(|why| {
            Failure::Input(format!("{}: not of the profile's model: {why}", folder.display()))
        })?;
        match plans.iter_mut().find(|p| p.shape.same_work(&run.shape)) {
            Some(plan) => plan.took_ms.extend(run.took_ms),
            None => plans.push(run),
        }
    }
    let runs: Vec<MeasuredRun> = plans.into_iter().map(Measured::median).collect();
    let found = calibrate(&[costs], &runs).map_err(|e| Failure::Input(e.to_string()))?;
    if let Some(path) = &arguments.output {
        profile.calibration = Some(found.costs.calibration);
        write(path, to_json(&profile)?)?;
    }
    if arguments.json {
        return print_json(&document(&found));
    }
    print(&table(&found));
    Ok(())
}

/// The plan that a run ended with, and the times between two of its commits.
struct Measured {
    name: String,
    shape: Shape,
    /// Times between two commits, milliseconds; at least one.
    took_ms: Vec<u64>,
}

impl Measured {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of one step")]
    fn median(mut self) -> MeasuredRun {
        self.took_ms.sort_unstable();
        MeasuredRun {
            name: self.name,
            shape: self.shape,
            step_ms: self.took_ms[self.took_ms.len() / 2] as f64,
        }
    }
}

fn measured(folder: &Path) -> Result<Measured, Failure> {
    let files = RunFiles::new(folder);
    let steps = files.metrics().map_err(|e| Failure::Input(e.to_string()))?;
    let last = steps.last().map_or(Generation(0), |s| s.generation);
    let of_last: Vec<&Metric> = steps.iter().filter(|s| s.generation == last).collect();
    let warm = of_last.get(WARM_UP..).unwrap_or_default();
    let took_ms: Vec<u64> = warm
        .windows(2)
        .map(|w| w[1].time_ms.saturating_sub(w[0].time_ms))
        .collect();
    if took_ms.iter().all(|ms| *ms == 0) {
        return Err(Failure::Input(format!(
            "{}: generation {last} has {} steps, at least {} are needed",
            files.metrics_path().display(),
            of_last.len(),
            WARM_UP + 2
        )));
    }
    let plan = files.plan_path(last);
    let shape: Shape = serde_json::from_str(&read(&plan)?)
        .map_err(|e| Failure::Input(format!("{}: not a plan: {e}", plan.display())))?;
    let named = folder.file_name().unwrap_or(folder.as_os_str());
    Ok(Measured {
        name: named.to_string_lossy().into_owned(),
        shape,
        took_ms,
    })
}

/// The plan may be of another model, or of rubbish.
fn check(shape: &Shape, costs: &Costs) -> Result<(), PlanError> {
    let batch = shape.pipelines.iter().map(|p| p.samples.end).max();
    let spares = shape.spares.iter().map(|spare| spare.worker);
    let workers: Vec<WorkerId> = shape.members().into_iter().chain(spares).collect();
    check_shape(shape, &costs.layout(), batch.unwrap_or(0), &workers)
}

/// The output of `--json`.
fn document(found: &Calibrated) -> Value {
    let run = |judged: &JudgedRun| {
        json!({
            "name": judged.run.name,
            "plan": judged.run.shape.summary(),
            "microBatchSize": judged.run.shape.micro_batch_size,
            "measuredMs": judged.run.step_ms,
            "predictedMs": judged.predicted_ms,
            "error": judged.error(),
            "fitted": judged.fitted,
        })
    };
    json!({
        "calibration": found.costs.calibration,
        "runs": found.runs.iter().map(run).collect::<Vec<_>>(),
        "medianError": found.median_error,
        "worstError": found.worst_error,
    })
}

fn table(found: &Calibrated) -> String {
    let calibration = found.costs.calibration;
    let mut text = format!(
        "compute x {:.4}, transfers x {:.4}\n\nrun                      plan       micro-batch  measured, ms  predicted, ms   error\n",
        calibration.compute, calibration.transfer
    );
    for judged in &found.runs {
        text.push_str(&format!(
            "{:<24} {:<10} {:>11} {:>13.1} {:>14.1} {:>+6.1} %{}\n",
            judged.run.name,
            judged.run.shape.summary(),
            judged.run.shape.micro_batch_size,
            judged.run.step_ms,
            judged.predicted_ms,
            judged.error() * 100.0,
            if judged.fitted { "  fitted" } else { "" }
        ));
    }
    let fitted = found.runs.iter().filter(|r| r.fitted).count();
    text.push_str(&format!(
        "\nfitted on {fitted} runs; of the other {}: median error {:.2} %, worst {:.2} %\n",
        found.runs.len() - fitted,
        found.median_error * 100.0,
        found.worst_error * 100.0,
    ));
    text
}
