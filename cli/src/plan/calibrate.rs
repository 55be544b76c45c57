//! `varuna plan calibrate`: fits a profile to measured steps.

mod runs;

use super::{read, read_profile, write};
use crate::failure::Failure;
use std::path::PathBuf;
use varuna_plan::Runtime;
use varuna_plan::calibrate::{Calibrated, MeasuredRow, calibrate, read_measured};

/// Fits two constants (compute, transfers) on every second row of a table of measured steps and judges them by the others.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The profile: this project's format, or the compact one of published tables.
    #[arg(long)]
    profile: PathBuf,
    /// Measured steps: columns `data_parallel`, `pipeline_parallel`, `step_ms` and, if known, `samples_per_s`.
    #[arg(long, required_unless_present = "run")]
    measured: Option<PathBuf>,
    /// A folder of a run on this kind of device, in place of a table; several: this option several times. Its last plan and
    /// the median step of that plan count.
    #[arg(long, conflicts_with = "measured")]
    run: Vec<PathBuf>,
    /// Message times `bytes,us` in place of the profile's links.
    #[arg(long)]
    links: Option<PathBuf>,
    /// Samples in a step [default: the profile's, or what the table's rates say].
    #[arg(long)]
    batch: Option<u64>,
    /// Samples in a micro-batch [default: the smallest of the profile].
    #[arg(long)]
    micro_batch: Option<u32>,
    /// Writes the calibrated profile into this file.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Ends with RESULT lines of this name.
    #[arg(long, hide = true)]
    results: Option<String>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let bad = |why: String| Failure::Input(why);
    let mut profile = read_profile(&arguments.profile, arguments.links.as_deref())?;
    let Some(measured) = &arguments.measured else {
        return runs::run(arguments, profile);
    };
    let file = measured.display().to_string();
    let rows = read_measured(&file, &read(measured)?).map_err(|e| bad(e.to_string()))?;
    let batch = arguments
        .batch
        .or(profile.global_batch_size)
        .or_else(|| batch_of(&rows));
    let batch = batch.filter(|b| *b > 0).ok_or_else(|| {
        bad(format!(
            "{file}: no batch size: the profile names none and samples_per_s gives none; use --batch"
        ))
    })?;
    let smallest = profile.segments[0].rows[0].micro_batch_size;
    let micro_batch = arguments.micro_batch.unwrap_or(smallest).max(1);
    let costs = profile.costs();
    let found = calibrate(&costs, &rows, batch, micro_batch, profile.runtime_is_known)
        .map_err(|e| bad(format!("{file}: {e}")))?;
    print!("{}", table(&found));
    if let Some(path) = &arguments.output {
        profile.runtime = found.costs.runtime;
        profile.calibration = Some(found.costs.calibration);
        for (segment, costs) in profile.segments.iter_mut().zip(&found.costs.segments) {
            segment.input_bytes = costs.input_bytes;
        }
        profile.element_bytes = found.costs.device.element_bytes;
        let text = serde_json::to_string_pretty(&profile).map_err(|e| Failure::Internal(e.to_string()))?;
        write(path, &text)?;
    }
    if let Some(name) = &arguments.results {
        println!("RESULT {name}_median_pct {:.2}", found.median_error * 100.0);
        println!("RESULT {name}_worst_pct {:.2}", found.worst_error * 100.0);
        println!("RESULT {name}_regret_mean_pct {:.2}", found.mean_regret * 100.0);
    }
    Ok(())
}

/// The batch that steps and rates amount to, where all rows agree within half a sample.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a batch is a small positive number"
)]
fn batch_of(rows: &[MeasuredRow]) -> Option<u64> {
    let batches: Option<Vec<f64>> = rows
        .iter()
        .map(|r| Some(r.step_ms / 1e3 * r.samples_per_s?))
        .collect();
    let batches = batches?;
    let first = batches.first()?.round();
    (first >= 1.0 && batches.iter().all(|b| (b - first).abs() < 0.5)).then_some(first as u64)
}

fn table(found: &Calibrated) -> String {
    let moves = match found.costs.runtime {
        Runtime::Overlapped => "sends beside compute",
        Runtime::Rendezvous => "sends wait for receives",
    };
    let calibration = found.costs.calibration;
    let mut text = format!(
        "compute x {:.4}, transfers x {:.4}; {moves}, {} bytes an element\n\n   D    P  measured, ms  predicted, ms   error\n",
        calibration.compute, calibration.transfer, found.costs.device.element_bytes
    );
    for row in &found.rows {
        text.push_str(&format!(
            "{:>4} {:>4} {:>13.1} {:>14.1} {:>+6.1} %{}\n",
            row.row.data_parallel,
            row.row.pipeline_parallel,
            row.row.step_ms,
            row.predicted_ms,
            row.error() * 100.0,
            if row.fitted { "  fitted" } else { "" }
        ));
    }
    let fitted = found.rows.iter().filter(|r| r.fitted).count();
    text.push_str(&format!(
        "\nfitted on {fitted} rows; of the other {}: median error {:.2} %, worst {:.2} %\n\
         choosing a plan by these predictions costs {:.2} % on average, {:.2} % at worst\n",
        found.rows.len() - fitted,
        found.median_error * 100.0,
        found.worst_error * 100.0,
        found.mean_regret * 100.0,
        found.worst_regret * 100.0
    ));
    text
}
