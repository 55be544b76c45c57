//! `varuna-published`: makes profiles of published tables, and prints what `make accuracy` and `make replay` compare with.

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use varuna_api::{Job, measured_costs, parse_job, planner_with};
use varuna_plan::profile::Profile;
use varuna_plan::{CostPlanner, PlanRequest, Planner, Runtime, WorkerId, WorkerInfo};
use varuna_published::calibrate::{TableCalibration, batch_of, calibrate_by_table, calibrated_profile};
use varuna_published::measured_table::read_measured;
use varuna_published::profile_table::read_profile;
use varuna_published::restart::{Restarted, restarts};
use varuna_published::zero_bubble;
use varuna_sim::replay::{Ideal, Trace};

/// Compare Varuna with published results of other systems.
#[derive(Parser)]
enum Command {
    /// Write a published table as a profile.
    Profile {
        #[command(flatten)]
        table: Table,
        /// The profile to write.
        #[arg(long, short)]
        output: PathBuf,
    },
    /// Fit a published table to measured steps. Every second row is fitted, and the result is checked against the others.
    Calibrate(Calibrate),
    /// Compute what systems that restart the job at every change would have trained on an availability trace.
    Restarts {
        /// The trace, in the format of `varuna replay`.
        trace: PathBuf,
        #[command(flatten)]
        job: JobCosts,
        /// Random seed of the trace.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Compute the step time of the first pipeline of a job's plan under schedules that the worker does not run.
    Schedules {
        #[command(flatten)]
        job: JobCosts,
        /// Number of workers.
        #[arg(long, short = 'n')]
        workers: u64,
    },
}

/// A published table.
#[derive(clap::Args)]
struct Table {
    /// The compact profile (bench/data/measured).
    #[arg(long)]
    profile: PathBuf,
    /// Table of message times that replaces the bandwidth of the profile: a CSV file with the columns `bytes,us`.
    #[arg(long)]
    links: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Calibrate {
    #[command(flatten)]
    table: Table,
    /// Measured steps: columns `data_parallel`, `pipeline_parallel`, `step_ms` and, if known, `samples_per_s`.
    #[arg(long)]
    measured: PathBuf,
    /// Samples in a step [default: the profile's, or what follows from the rates in the table].
    #[arg(long)]
    batch: Option<u64>,
    /// Samples in a micro-batch [default: the profile's].
    #[arg(long)]
    micro_batch: Option<u32>,
    /// Write the calibrated profile to this file.
    #[arg(long, short)]
    output: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// A job and what its model costs.
#[derive(clap::Args)]
struct JobCosts {
    /// The job file.
    #[arg(long)]
    job: PathBuf,
    /// Profile of the model's costs.
    #[arg(long)]
    profile: PathBuf,
}

fn main() -> Result<()> {
    match Command::parse() {
        Command::Profile { table, output } => write_profile(&output, &table.read()?),
        Command::Calibrate(arguments) => calibrate(&arguments),
        Command::Restarts {
            trace,
            job,
            seed,
            json,
        } => compare_restarts(&trace, &job, seed, json),
        Command::Schedules { job, workers } => compare_schedules(&job, workers),
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write_profile(path: &Path, profile: &Profile) -> Result<()> {
    let text = serde_json::to_string_pretty(profile)? + "\n";
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

impl Table {
    fn read(&self) -> Result<Profile> {
        let text = read(&self.profile)?;
        let links = self
            .links
            .as_ref()
            .map(|path| read(path).map(|text| (path, text)));
        let links = links
            .transpose()?
            .map(|(path, text)| (path.display().to_string(), text));
        let links = links.as_ref().map(|(file, text)| (file.as_str(), text.as_str()));
        Ok(read_profile(&self.profile.display().to_string(), &text, links)?)
    }
}

fn calibrate(arguments: &Calibrate) -> Result<()> {
    let profile = arguments.table.read()?;
    let file = arguments.measured.display().to_string();
    let rows = read_measured(&file, &read(&arguments.measured)?)?;
    let batch = arguments
        .batch
        .or(profile.global_batch_size)
        .or_else(|| batch_of(&rows));
    let batch = batch.filter(|b| *b > 0).with_context(|| {
        format!("{file}: no batch size: the profile names none and samples_per_s gives none; use --batch")
    })?;
    let micro_batch = arguments
        .micro_batch
        .unwrap_or(profile.segments[0].rows[0].micro_batch_size);
    let found = calibrate_by_table(&profile.costs(), &rows, batch, micro_batch.max(1)).context(file)?;
    if let Some(path) = &arguments.output {
        write_profile(path, &calibrated_profile(profile, &found.calibrated.costs))?;
    }
    if arguments.json {
        println!("{:#}", calibration_json(&found));
    } else {
        print!("{}", calibration_text(&found));
    }
    Ok(())
}

fn calibration_json(found: &TableCalibration) -> Value {
    let TableCalibration { calibrated, .. } = found;
    let row = |r: &varuna_plan::calibrate::JudgedRun| {
        json!({
            "plan": r.run.name, "measuredMs": r.run.step_ms, "predictedMs": r.predicted_ms, "error": r.error(),
            "fitted": r.fitted,
        })
    };
    json!({
        "runtime": calibrated.costs.runtime,
        "elementBytes": calibrated.costs.device.element_bytes,
        "calibration": calibrated.costs.calibration,
        "rows": calibrated.runs.iter().map(row).collect::<Vec<_>>(),
        "medianError": calibrated.median_error,
        "worstError": calibrated.worst_error,
        "meanRegret": found.mean_regret,
        "worstRegret": found.worst_regret,
    })
}

fn calibration_text(found: &TableCalibration) -> String {
    let calibrated = &found.calibrated;
    let moves = match calibrated.costs.runtime {
        Runtime::Overlapped => "sends overlap with compute",
        Runtime::Rendezvous => "sends wait for receives",
    };
    let calibration = calibrated.costs.calibration;
    let mut text = format!(
        "compute x {:.4}, transfers x {:.4}; {moves}, {} bytes an element\n\n   D    P  measured, ms  predicted, ms   error\n",
        calibration.compute, calibration.transfer, calibrated.costs.device.element_bytes
    );
    for row in &calibrated.runs {
        let pipelines = &row.run.shape.pipelines;
        text.push_str(&format!(
            "{:>4} {:>4} {:>13.1} {:>14.1} {:>+6.1} %{}\n",
            pipelines.len(),
            pipelines.first().map_or(0, |p| p.stages.len()),
            row.run.step_ms,
            row.predicted_ms,
            row.error() * 100.0,
            if row.fitted { "  fitted" } else { "" }
        ));
    }
    let fitted = calibrated.runs.iter().filter(|r| r.fitted).count();
    text.push_str(&format!(
        "\nfitted on {fitted} rows; of the other {}: median error {:.2} %, worst {:.2} %\n\
         choosing a plan by these predictions costs {:.2} % on average, {:.2} % at worst\n",
        calibrated.runs.len() - fitted,
        calibrated.median_error * 100.0,
        calibrated.worst_error * 100.0,
        found.mean_regret * 100.0,
        found.worst_regret * 100.0
    ));
    text
}

impl JobCosts {
    fn planner(&self) -> Result<(Job, CostPlanner)> {
        let name = |path: &Path| path.display().to_string();
        let job = parse_job(&read(&self.job)?).with_context(|| name(&self.job))?;
        let profile = Profile::read(&name(&self.profile), &read(&self.profile)?, None)?;
        let costs = measured_costs(&profile, &job)
            .map_err(anyhow::Error::msg)
            .with_context(|| name(&self.profile))?;
        let planner = planner_with(&job, Some(&costs));
        Ok((job, planner))
    }
}

fn compare_restarts(trace: &Path, job: &JobCosts, seed: u64, json: bool) -> Result<()> {
    let trace = Trace::read(&trace.display().to_string(), &read(trace)?, seed)?;
    let (job, planner) = job.planner()?;
    let layout = planner.costs.layout();
    let ideal = Ideal::new(&planner, layout, job.training.global_batch_size, trace.most());
    let found = restarts(&trace, &ideal);
    if json {
        println!("{:#}", json!(found));
        return Ok(());
    }
    println!("published costs of restart-based systems (a model, docs/guides/replay.md):");
    for Restarted {
        system,
        goodput,
        patient,
    } in found
    {
        println!(
            "  {:34} {:5.1} s / {:5.1} s / {:5.1} s  goodput {:5.1} %, patient {:5.1} %",
            system.name,
            system.shrink_s,
            system.grow_s,
            system.again_s,
            goodput * 100.0,
            patient * 100.0
        );
    }
    Ok(())
}

fn compare_schedules(job: &JobCosts, workers: u64) -> Result<()> {
    let (job, planner) = job.planner()?;
    let workers = (1..=workers).map(|id| WorkerInfo::nominal(WorkerId(id), ""));
    let batch = job.training.global_batch_size;
    let request = PlanRequest::first(workers.collect(), planner.costs.layout(), batch);
    let shape = planner.plan(&request)?;
    println!(
        "plan {}, its first pipeline as if all stages were as slow as the slowest:",
        shape.summary()
    );
    for (kind, ms) in zero_bubble::compare(&shape, &planner.costs) {
        println!("  {:<32} {ms:>9.1} ms", kind.to_string());
    }
    Ok(())
}
