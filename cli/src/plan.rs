//! `varuna plan`: the plan that would run, the reasons, and a chart of its step.

mod calibrate;
pub(crate) mod gantt;
mod sweep;
mod table;

use crate::costs::CostSource;
use crate::failure::Failure;
use crate::io::{print, print_json, read, write};
use crate::job;
use std::path::{Path, PathBuf};
use varuna_api::Job;
use varuna_plan::check::check_shape;
use varuna_plan::predict::predict_with_noise;
use varuna_plan::{
    CostPlanner, Explained, PlanRequest, Shape, Speeds, Topology, WorkerId, WorkerInfo, predict,
};

/// Maximum number of workers that are planned for: ten times as many as plans are measured for. Each takes some memory.
const WORKERS_MAX: u64 = 100_000;

/// Print the plan for a number of workers and its predicted step time, or a table for a range of numbers of workers.
///
/// Without --profile, times are estimated from operations, bytes and a table of devices. The output says so.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The job file.
    #[arg(required = true)]
    job: Option<PathBuf>,
    /// Number of workers, one for each GPU.
    #[arg(long, short = 'n', visible_alias = "gpus")]
    workers: Option<u64>,
    /// Number of nodes and of workers on each node, for example 5x8. Without --workers, all of these workers are used.
    #[arg(long, value_name = "NODESxWORKERS", value_parser = nodes)]
    nodes: Option<Nodes>,
    #[command(flatten)]
    costs: CostSource,
    /// The current plan (JSON). State that its workers hold does not have to be moved.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Print the plan, or the table of --sweep, as JSON.
    #[arg(long)]
    json: bool,
    /// Write a chart to this SVG file: of one step, or with --sweep of the table.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Plan for each number of workers in a range, for example 1..128. Both ends are included.
    #[arg(long, value_name = "FROM..TO", value_parser = range)]
    sweep: Option<(u64, u64)>,
    /// Price of a worker for an hour, in any currency. --sweep then also prints the cost of 1000 samples.
    #[arg(long, value_name = "PRICE", requires = "sweep")]
    price: Option<f64>,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Fit a profile to the measured steps of several runs.
    Calibrate(calibrate::Arguments),
}

/// A number of nodes with equal numbers of workers.
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
        _ => Err("expected NODESxWORKERS, for example 5x8".into()),
    }
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let parts = text
        .split_once("..")
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match parts {
        Some((from @ 1.., to)) if from <= to && to <= WORKERS_MAX => Ok((from, to)),
        _ => Err("expected FROM..TO, for example 1..128, at most 100000".into()),
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
    let one_node = arguments.nodes.is_some_and(|n| n.count == 1);
    let query = Query {
        planner: arguments.costs.planner(&job, one_node)?,
        parent: arguments.from.as_deref().map(read_shape).transpose()?,
        arguments,
        job: &job,
    };
    if let Some((from, to)) = arguments.sweep {
        return sweep::run(&query, from, to);
    }
    let by_nodes = arguments.nodes.map(|n| n.count * n.each);
    let workers = arguments.workers.or(by_nodes);
    let workers = workers.ok_or_else(|| Failure::Input("--workers, --nodes or --sweep is needed".into()))?;
    let (explained, request) = query.plan(workers)?;
    let shape = &explained.shape;
    let costs = &query.planner.costs;
    let traces = predict(costs, shape, &Speeds::nominal(), Topology::ONE_NODE).pipelines;
    if let Some(path) = &arguments.svg {
        write(path, gantt::predicted(&traces, shape, shape.predicted.bubble))?;
    }
    let noisy = predict_with_noise(costs, shape, 0.1, 1, 20);
    if arguments.json {
        print_json(&table::json(&explained, &request, noisy))?;
    } else {
        print(&table::text(&explained, &request, noisy, costs));
        print(&gantt::text(&traces));
    }
    Ok(())
}

/// A job with everything that a plan for it depends on, but the number of workers.
struct Query<'a> {
    planner: CostPlanner,
    parent: Option<Shape>,
    arguments: &'a Arguments,
    job: &'a Job,
}

impl Query<'_> {
    /// Plans for a number of workers.
    fn plan(&self, workers: u64) -> Result<(Explained, PlanRequest), Failure> {
        let node = |id: u64| match self.arguments.nodes {
            Some(nodes) => format!("node-{:06}", (id - 1) / nodes.each),
            None => String::new(),
        };
        let capacity = self.arguments.nodes.map_or(u64::MAX, |n| n.count * n.each);
        if workers > capacity {
            return Err(Failure::Input(format!(
                "--workers is {workers}, but --nodes has only {capacity}"
            )));
        }
        if workers > WORKERS_MAX {
            return Err(Failure::Input(format!(
                "a plan for {workers} workers (--workers, or the product of --nodes); allowed are at most {WORKERS_MAX}"
            )));
        }
        let ids: Vec<WorkerId> = (1..=workers).map(WorkerId).collect();
        let worker = |id: &WorkerId| WorkerInfo::nominal(*id, node(id.0));
        let infos = ids.iter().map(worker).collect();
        let batch = self.job.training.global_batch_size;
        let mut request = PlanRequest::first(infos, self.job.layout(), batch);
        if let Some(parent) = &self.parent {
            request = request.after(parent.clone());
        }
        let explained = self.planner.explain(&request);
        let explained = explained.map_err(|why| Failure::Input(why.to_string()))?;
        check_shape(&explained.shape, &request.layout, request.global_batch_size, &ids)
            .map_err(|e| Failure::Internal(format!("the planner made an invalid plan: {e}")))?;
        Ok((explained, request))
    }
}

fn read_shape(path: &Path) -> Result<Shape, Failure> {
    serde_json::from_str(&read(path)?)
        .map_err(|e| Failure::Input(format!("{}: not a plan: {e}", path.display())))
}
