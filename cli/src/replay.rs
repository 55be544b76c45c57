//! `varuna replay`: what a job would have trained on machines that came and went like this.

use crate::failure::Failure;
use crate::job;
use std::path::{Path, PathBuf};
use varuna_api::Job;
use varuna_plan::calibrate::{calibrate, read_measured};
use varuna_plan::cost::Costs;
use varuna_plan::device::DeviceKind;
use varuna_plan::profile::Profile;
use varuna_replay::{Ideal, RecoveryParts, Report, Restarted, Setup, Trace, replay, restarts, svg, text};

/// The measured parts of a reconfiguration that are used where no file is named.
const PARTS: (&str, &str) = (
    "bench/data/recovery.json",
    include_str!("../../bench/data/recovery.json"),
);
/// Spot nodes of AWS say so two minutes before they go.
const NOTICE_S: f64 = 120.0;

/// Replays an availability trace through the planner and the coordinator on simulated time.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The trace: `time_s,event,node` (add or remove) or `time_s,nodes`.
    trace: PathBuf,
    /// The job file.
    #[arg(long)]
    job: PathBuf,
    /// Estimate the costs for this device, within its memory (such as `v100-16g`); else for a CPU core.
    #[arg(long)]
    device: Option<String>,
    /// Costs from this profile instead of an estimate.
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Times of messages between two workers by size (`bytes,us`), in place of the profile's.
    #[arg(long, requires = "profile")]
    links: Option<PathBuf>,
    /// Calibrate the profile on these measured steps.
    #[arg(long, requires = "profile")]
    measured: Option<PathBuf>,
    /// Measured parts of a reconfiguration; else those measured by `make bench-recovery`.
    #[arg(long)]
    costs: Option<PathBuf>,
    /// Nodes say 120 s before they leave that they will.
    #[arg(long)]
    noticed: bool,
    /// Nodes say so many seconds before they leave that they will.
    #[arg(long, conflicts_with = "noticed")]
    notice: Option<f64>,
    /// Which nodes leave where a trace only counts them, and in which order nodes of an instant join.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replay so many seeds, from the given one on, and tell each goodput; all else is of the first.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The whole report as JSON.
    #[arg(long)]
    json: bool,
    /// Write a picture over time.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// End with a line `RESULT replay.NAME_goodput_pct VALUE`, the mean over the seeds.
    #[arg(long, value_name = "NAME")]
    result: Option<String>,
}

/// What `--json` prints.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// From the given seed on; the report is the first one's.
    goodput_by_seed: &'a [f64],
    restarts: &'a [Restarted],
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let trace_name = arguments.trace.display().to_string();
    let written = read(&arguments.trace)?;
    let trace = Trace::read(&trace_name, &written, arguments.seed).map_err(input)?;
    let job = job::read(&arguments.job)?.job;
    let setup = setup(arguments, &job)?;
    let refused = |e| Failure::Input(format!("{trace_name}: {e}"));
    let report = replay(&trace, &setup).map_err(refused)?;
    let mut goodputs = vec![report.goodput];
    for more in 1..arguments.seeds {
        let trace = Trace::read(&trace_name, &written, arguments.seed.wrapping_add(more)).map_err(input)?;
        goodputs.push(replay(&trace, &setup).map_err(refused)?.goodput);
    }
    let costs = &setup.planner.costs;
    let ideal = Ideal::new(
        &setup.planner,
        costs.layout(),
        setup.global_batch_size,
        trace.most(),
    );
    let restarts = restarts(&trace, &ideal);
    if let Some(path) = &arguments.svg {
        let name = arguments.trace.file_stem().unwrap_or_default().to_string_lossy();
        std::fs::write(path, svg(&format!("{} on {name}", job.name), &report))
            .map_err(|e| Failure::Input(format!("cannot write the picture {}: {e}", path.display())))?;
    }
    if arguments.json {
        let document = Document {
            report: &report,
            goodput_by_seed: &goodputs,
            restarts: &restarts,
        };
        let json = serde_json::to_string_pretty(&document).map_err(|e| Failure::Internal(e.to_string()))?;
        println!("{json}");
    } else {
        print!("{}", text(&report, &restarts));
    }
    #[expect(clippy::cast_precision_loss, reason = "a few seeds")]
    let mean = goodputs.iter().sum::<f64>() / goodputs.len() as f64;
    if goodputs.len() > 1 && !arguments.json {
        let each: Vec<String> = goodputs.iter().map(|g| format!("{:.2}", g * 100.0)).collect();
        println!(
            "goodput by seed {} %, mean {:.2} %",
            each.join(", "),
            mean * 100.0
        );
    }
    if let Some(name) = &arguments.result {
        println!("RESULT replay.{name}_goodput_pct {:.2}", mean * 100.0);
    }
    Ok(())
}

fn setup(arguments: &Arguments, job: &Job) -> Result<Setup, Failure> {
    let mut planner = varuna_coordinator::planner(job);
    if let Some(name) = &arguments.device {
        let kind = DeviceKind::named(name).map_err(input)?;
        planner.costs = Costs::estimate(job.model.sizes(), kind.device(false));
        let memory = planner.constraints.device_memory_bytes.unwrap_or(u64::MAX);
        planner.constraints.device_memory_bytes = Some(memory.min(kind.usable_bytes()));
    }
    if let Some(path) = &arguments.profile {
        planner.costs = profiled(arguments, job, path)?;
    }
    let parts = match &arguments.costs {
        Some(path) => RecoveryParts::read(&path.display().to_string(), &read(path)?),
        None => RecoveryParts::read(PARTS.0, PARTS.1),
    };
    let notice_s = arguments
        .notice
        .unwrap_or(if arguments.noticed { NOTICE_S } else { 0.0 });
    if !(0.0..=86_400.0).contains(&notice_s) {
        return Err(Failure::Input(format!(
            "--notice is {notice_s}, allowed are 0 to 86400 seconds"
        )));
    }
    Ok(Setup {
        planner,
        global_batch_size: job.training.global_batch_size,
        min_workers: job.elasticity.min_workers as usize,
        parts: parts.map_err(input)?,
        notice_s,
        checkpoint_steps: job.checkpoint.as_ref().and_then(|c| c.interval_steps),
        skip: true,
    })
}

/// Costs of a profile, calibrated where measured steps are given.
fn profiled(arguments: &Arguments, job: &Job, path: &Path) -> Result<Costs, Failure> {
    let name = path.display().to_string();
    let links = arguments
        .links
        .as_deref()
        .map(|p| Ok::<_, Failure>((p.display().to_string(), read(p)?)));
    let links = links.transpose()?;
    let links = links.as_ref().map(|(file, text)| (file.as_str(), text.as_str()));
    let profile = Profile::read(&name, &read(path)?, links).map_err(input)?;
    let costs = profile.costs();
    let divided = |costs: &Costs| {
        varuna_coordinator::costs_for(job, costs).map_err(|why| Failure::Input(format!("{name}: {why}")))
    };
    let Some(table) = &arguments.measured else {
        return divided(&costs);
    };
    let rows = read_measured(&table.display().to_string(), &read(table)?).map_err(input)?;
    let batch = profile
        .global_batch_size
        .unwrap_or(job.training.global_batch_size);
    let micro = profile.segments[0].rows[0].micro_batch_size;
    let calibrated = calibrate(&costs, &rows, batch, micro, false);
    let calibrated = calibrated.map_err(|e| Failure::Input(format!("{}: {e}", table.display())))?;
    divided(&calibrated.costs)
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))
}

fn input(error: impl std::fmt::Display) -> Failure {
    Failure::Input(error.to_string())
}
