//! `varuna replay`: what a job would have trained on machines that came and went as a trace says.

mod chart;

use crate::costs::CostSource;
use crate::failure::Failure;
use crate::io::{print, print_json, read, write};
use crate::job;
use std::path::PathBuf;
use varuna_api::Job;
use varuna_sim::replay::{RecoveryParts, Report, Setup, Trace, replay, text};

/// The measured parts of a reconfiguration that are used where no file is named.
const PARTS: (&str, &str) = (
    "bench/data/recovery.json",
    include_str!("../../bench/data/recovery.json"),
);
/// AWS announces the end of a spot node two minutes before, seconds.
const AWS_NOTICE_S: f64 = 120.0;

/// Replay an availability trace in simulated time, and print goodput and losses by cause.
///
/// The planner and the coordinator are those of a real job. docs/guides/replay.md describes what is simulated.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The trace: a CSV file with the columns time_s,event,node (event: add or remove) or time_s,nodes.
    trace: PathBuf,
    /// The job file.
    #[arg(long)]
    job: PathBuf,
    #[command(flatten)]
    costs_of: CostSource,
    /// Measured times of the parts of a reconfiguration (JSON) [default: those of `make bench-recovery`].
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Nodes give 120 s of notice before they leave. The same as --notice 120.
    #[arg(long)]
    noticed: bool,
    /// Notice that nodes give before they leave, in seconds, 0 to 86400 [default: 0].
    #[arg(long, value_name = "SECONDS", conflicts_with = "noticed")]
    notice: Option<f64>,
    /// Random seed. It selects the nodes that leave if the trace only counts them, and the order of nodes that join at the same time.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds to replay, 1 to 1000, counted up from --seed. The goodput of each seed is printed; everything else is from the first
    /// seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Print the whole report as JSON.
    #[arg(long)]
    json: bool,
    /// Write a chart over time to this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// The output of `--json`.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// One for each seed, in the order of the seeds; the report is of the first.
    goodput_by_seed: &'a [f64],
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let trace_name = arguments.trace.display().to_string();
    let csv = read(&arguments.trace)?;
    let trace = Trace::read(&trace_name, &csv, arguments.seed).map_err(input)?;
    let job = job::read(&arguments.job)?.job;
    let setup = setup(arguments, &job)?;
    let refused = |e| Failure::Input(format!("{trace_name}: {e}"));
    let report = replay(&trace, &setup).map_err(refused)?;
    let mut goodputs = vec![report.goodput];
    for offset in 1..arguments.seeds {
        let trace = Trace::read(&trace_name, &csv, arguments.seed.wrapping_add(offset)).map_err(input)?;
        goodputs.push(replay(&trace, &setup).map_err(refused)?.goodput);
    }
    if let Some(path) = &arguments.svg {
        let name = arguments.trace.file_stem().unwrap_or_default().to_string_lossy();
        write(path, chart::draw(&format!("{} on {name}", job.name), &report)?)?;
    }
    if arguments.json {
        return print_json(&Document {
            report: &report,
            goodput_by_seed: &goodputs,
        });
    }
    print(&text(&report));
    if goodputs.len() > 1 {
        #[expect(clippy::cast_precision_loss, reason = "a few seeds")]
        let mean = goodputs.iter().sum::<f64>() / goodputs.len() as f64;
        let each: Vec<String> = goodputs.iter().map(|g| format!("{:.2}", g * 100.0)).collect();
        print(&format!(
            "goodput by seed {} %, mean {:.2} %\n",
            each.join(", "),
            mean * 100.0
        ));
    }
    Ok(())
}

fn setup(arguments: &Arguments, job: &Job) -> Result<Setup, Failure> {
    let planner = arguments.costs_of.planner(job, false)?;
    let parts = match &arguments.costs {
        Some(path) => RecoveryParts::read(&path.display().to_string(), &read(path)?),
        None => RecoveryParts::read(PARTS.0, PARTS.1),
    };
    let default_s = if arguments.noticed { AWS_NOTICE_S } else { 0.0 };
    let notice_s = arguments.notice.unwrap_or(default_s);
    if !(0.0..=86_400.0).contains(&notice_s) {
        return Err(Failure::Input(format!(
            "--notice is {notice_s}, allowed are 0 to 86400 seconds"
        )));
    }
    Ok(Setup {
        planner,
        layout: job.layout(),
        global_batch_size: job.training.global_batch_size,
        min_workers: job.elasticity.min_workers as usize,
        parts: parts.map_err(input)?,
        notice_s,
        checkpoint_steps: job.checkpoint.as_ref().and_then(|c| c.interval_steps),
        parameters_first: true,
        adaptive_checkpoints: job.checkpoint.as_ref().is_some_and(|c| c.adaptive),
        skip: true,
    })
}

fn input(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}
