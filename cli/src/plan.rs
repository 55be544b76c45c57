//! `varuna plan`: the plan that would run, why, and a picture of its step.

mod calibrate;
mod gantt;
mod sweep;
mod table;

use crate::failure::Failure;
use crate::job;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use varuna_api::Job;
use varuna_plan::check::check_shape;
use varuna_plan::device::DeviceKind;
use varuna_plan::profile::Profile;
use varuna_plan::trace::{spread, trace};
use varuna_plan::{CostPlanner, Costs, Explained, PlanRequest, Shape, WorkerId, WorkerInfo};

/// Predicts the plan for a number of workers, or for each of a range of numbers.
///
/// Without a profile, times are estimated from operations, bytes and a table of devices; the estimate says so.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The job file.
    #[arg(required = true)]
    job: Option<PathBuf>,
    /// How many workers (one each GPU).
    #[arg(long, short = 'n', visible_alias = "gpus")]
    workers: Option<u64>,
    /// Nodes and workers of each, as 5x8.
    #[arg(long, value_parser = nodes)]
    nodes: Option<Nodes>,
    /// The kind of device that is planned for, as h100-80g [default: the job's own planner, a CPU core].
    #[arg(long, conflicts_with = "profile")]
    device: Option<String>,
    /// A profile of the model on the device.
    #[arg(long)]
    profile: Option<PathBuf>,
    /// Message times `bytes,us` in place of the profile's links.
    #[arg(long, requires = "profile")]
    links: Option<PathBuf>,
    /// The plan in force: what its workers hold stays where it is.
    #[arg(long)]
    from: Option<PathBuf>,
    /// The plan, or the sweep, as JSON.
    #[arg(long)]
    json: bool,
    /// Draws one step, or the sweep, into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Plans for each number of workers of a range, as 1..128.
    #[arg(long, value_parser = range)]
    sweep: Option<(u64, u64)>,
    /// What a worker costs an hour, for the cost of samples.
    #[arg(long, requires = "sweep")]
    price: Option<f64>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Fit a profile to measured steps: on every second row, judged by the others.
    Calibrate(calibrate::Arguments),
}

/// So many nodes of so many workers.
#[derive(Clone, Copy, Debug)]
struct Nodes {
    count: u64,
    each: u64,
}

fn nodes(text: &str) -> Result<Nodes, String> {
    let parts = text
        .split_once('x')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((count @ 1..=100_000, each @ 1..=1024)) => Ok(Nodes { count, each }),
        _ => Err("nodes and workers of each, as 5x8".into()),
    }
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let parts = text
        .split_once("..")
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((from @ 1.., to)) if from <= to && to <= 100_000 => Ok((from, to)),
        _ => Err("a range of numbers of workers, as 1..128".into()),
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(Command::Calibrate(arguments)) = &arguments.command {
        return calibrate::run(arguments);
    }
    let path = arguments
        .job
        .as_ref()
        .ok_or_else(|| Failure::Input("a job file is needed".into()))?;
    let job = job::read(path)?.job;
    let asked = Asked {
        planner: planner(&job, arguments)?,
        parent: arguments.from.as_deref().map(read_shape).transpose()?,
        arguments,
        job: &job,
    };
    if let Some((from, to)) = arguments.sweep {
        return sweep::run(&asked, from, to);
    }
    let by_nodes = arguments.nodes.map(|n| n.count * n.each);
    let workers = arguments.workers.or(by_nodes);
    let workers = workers.ok_or_else(|| Failure::Input("--workers, --nodes or --sweep is needed".into()))?;
    let (explained, request) = asked.plan(workers)?;
    let shape = &explained.shape;
    let costs = &asked.planner.costs;
    let traces = trace(costs, shape);
    if let Some(path) = &arguments.svg {
        write(path, &gantt::svg(&traces, shape))?;
    }
    let noisy = spread(costs, shape, 0.1, 1, 20);
    if arguments.json {
        let value = table::json(&explained, &request, noisy);
        let text = serde_json::to_string_pretty(&value).map_err(|e| Failure::Internal(e.to_string()))?;
        print(&text);
        print("\n");
    } else {
        print(&table::text(&explained, &request, noisy, costs));
        print(&gantt::text(&traces));
    }
    Ok(())
}

/// A question to the planner.
struct Asked<'a> {
    planner: CostPlanner,
    parent: Option<Shape>,
    arguments: &'a Arguments,
    job: &'a Job,
}

impl Asked<'_> {
    /// The plan for so many workers.
    fn plan(&self, workers: u64) -> Result<(Explained, PlanRequest), Failure> {
        let node = |id: u64| match self.arguments.nodes {
            Some(nodes) => format!("node-{:06}", (id - 1) / nodes.each),
            None => String::new(),
        };
        let room = self.arguments.nodes.map_or(u64::MAX, |n| n.count * n.each);
        if workers > room {
            return Err(Failure::Input(format!(
                "--nodes has room for {room} workers, {workers} are asked for"
            )));
        }
        let ids: Vec<WorkerId> = (1..=workers).map(WorkerId).collect();
        let worker = |id: &WorkerId| WorkerInfo {
            id: *id,
            memory_bytes: None,
            speed: 1.0,
            node: node(id.0),
        };
        let layout = self.job.model.layout();
        let mut held = BTreeMap::new();
        if let Some(parent) = &self.parent {
            let stages = parent.pipelines.iter().flat_map(|p| &p.stages);
            held.extend(stages.map(|s| (s.worker, layout.units_of(s.segments))));
        }
        let request = PlanRequest {
            workers: ids.iter().map(worker).collect(),
            layout,
            global_batch_size: self.job.training.global_batch_size,
            parent: self.parent.clone(),
            held,
            horizon_ms: None,
        };
        let explained = self.planner.explain(&request);
        let explained = explained.map_err(|why| Failure::Input(why.to_string()))?;
        check_shape(&explained.shape, &request.layout, request.global_batch_size, &ids)
            .map_err(|e| Failure::Internal(format!("the planner made an unsound plan: {e}")))?;
        Ok((explained, request))
    }
}

/// The job's own planner, with the costs of the device or profile that was asked for.
fn planner(job: &Job, arguments: &Arguments) -> Result<CostPlanner, Failure> {
    let mut planner = varuna_coordinator::planner(job);
    let bad = |why: String| Failure::Input(why);
    if let Some(name) = &arguments.device {
        let kind = DeviceKind::named(name).map_err(|e| bad(e.to_string()))?;
        let one_node = arguments.nodes.is_some_and(|n| n.count == 1);
        planner.costs = Costs::estimate(job.model.sizes(), kind.device(one_node));
        let memory = &mut planner.constraints.device_memory_bytes;
        *memory = Some(memory.map_or(kind.usable_bytes(), |m| m.min(kind.usable_bytes())));
    }
    if let Some(path) = &arguments.profile {
        let profile = read_profile(path, arguments.links.as_deref())?;
        planner.costs = varuna_coordinator::measured_costs(&profile, job)
            .map_err(|why| bad(format!("{}: {why}", path.display())))?;
    }
    Ok(planner)
}

pub(crate) fn read_profile(path: &Path, links: Option<&Path>) -> Result<Profile, Failure> {
    let text = read(path)?;
    let links = links
        .map(|l| Ok::<_, Failure>((l.display().to_string(), read(l)?)))
        .transpose()?;
    let links = links.as_ref().map(|(file, text)| (file.as_str(), text.as_str()));
    Profile::read(&path.display().to_string(), &text, links).map_err(|e| Failure::Input(e.to_string()))
}

fn read_shape(path: &Path) -> Result<Shape, Failure> {
    serde_json::from_str(&read(path)?)
        .map_err(|e| Failure::Input(format!("{}: not a plan: {e}", path.display())))
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|e| Failure::Input(format!("cannot write {}: {e}", path.display())))
}
