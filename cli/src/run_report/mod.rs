//! `varuna run-report`: a report about a run, as one self-contained page.

mod account;
mod history;
mod order;
mod page;
mod pictures;

use crate::costs::CostSource;
use crate::failure::Failure;
use crate::io::{print, write};
use crate::plan::gantt;
use account::Account;
use history::History;
use page::{Contents, MeasuredPicture, page};
use std::path::PathBuf;
use varuna_api::Job;
use varuna_plan::check::check_shape;
use varuna_plan::measured_step::MeasuredStep;
use varuna_plan::{Costs, Shape, Speeds, Topology, WorkerId, predict};
use varuna_run_folder::{ReadError, RunFiles};

/// Write a report about a run, as an HTML page.
///
/// It shows loss, throughput and workers over time, recoveries, how the time was spent, and a measured step of the newest plan with such a
/// step, beside the predicted one. The run may still be going on. The page contains its pictures and loads nothing.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The run folder.
    run: PathBuf,
    /// Write the page to this file [default: report.html in the run folder].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    costs: CostSource,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let folder = &arguments.run;
    let unreadable = |error: ReadError| Failure::Input(format!("{} is no run: {error}", folder.display()));
    let files = RunFiles::new(folder);
    let job = crate::job::of_folder(folder)?;
    let published = files.published().map_err(unreadable)?;
    let events = files.events().map_err(unreadable)?;
    let history = History::new(published, events);
    if history.steps().len() < 2 {
        let steps = history.steps().len();
        return Err(Failure::Input(format!(
            "{}: {steps} steps were committed, a report needs two",
            folder.display()
        )));
    }
    let plans = files.plans().map_err(unreadable)?;
    let measured = files.measured_step().map_err(unreadable)?;
    let of_measured = |step: &MeasuredStep| plans.iter().find(|plan| plan.generation == step.generation);
    // Without the plan nothing can be drawn.
    let measured = measured.and_then(|step| of_measured(&step).map(|plan| (step, plan)));
    let shown = measured.as_ref().map(|(_, plan)| *plan).or(plans.last());
    let predicted = shown
        .map(|plan| predicted(&job, &plan.shape, &arguments.costs))
        .transpose()?
        .flatten();
    let measured = measured.and_then(|(step, plan)| self::measured(&step, &plan.shape));
    let account = Account::of(&history);
    let contents = Contents {
        job: &job.name,
        account: &account,
        history: &history,
        pictures: &pictures::draw(&history, &account)?,
        plan: shown.map(|plan| plan.generation),
        measured: measured.as_ref(),
        predicted: predicted.as_deref(),
    };
    let to = arguments
        .output
        .clone()
        .unwrap_or_else(|| folder.join("report.html"));
    write(&to, page(&contents).into_string())?;
    print(&format!("{}\n", to.display()));
    Ok(())
}

/// The predicted step of a plan as a picture; none of a plan that is not of this job's model, as an older release may have left it.
fn predicted(job: &Job, shape: &Shape, costs: &CostSource) -> Result<Option<String>, Failure> {
    let costs = costs.planner(job, false)?.costs;
    let spares = shape.spares.iter().map(|spare| spare.worker);
    let workers: Vec<WorkerId> = shape.members().into_iter().chain(spares).collect();
    let fits = check_shape(shape, &costs.layout(), job.training.global_batch_size, &workers);
    if fits.is_err() {
        return Ok(None);
    }
    Ok(Some(predicted_by(&costs, shape)))
}

/// The same by these costs. What the plan predicts was by others, if it was made with a profile, or before steps were observed.
fn predicted_by(costs: &Costs, shape: &Shape) -> String {
    let step = predict(costs, shape, &Speeds::nominal(), Topology::ONE_NODE);
    gantt::predicted(&step.pipelines, shape, step.bubble)
}

/// A measured step of a plan as a picture; none where no pipeline was measured as a whole.
fn measured(step: &MeasuredStep, shape: &Shape) -> Option<MeasuredPicture> {
    let traces = step.traces(shape);
    let all = shape.pipelines.len();
    (!traces.is_empty()).then(|| MeasuredPicture {
        // Counted as published steps are: this one included.
        step: step.step.next(),
        pipelines: (traces.len(), all),
        svg: gantt::measured(&traces, shape),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_plan::{PlanRequest, WorkerInfo};

    const JOB: &str = "{apiVersion: varuna.dev/v1alpha1, kind: VarunaJob, metadata: {name: j}, spec: {model: {preset: gpt2-tiny}, \
                       data: {path: d}, training: {globalBatchSize: 8, steps: 10, optimizer: {learningRate: 1e-3}}}}";

    #[test]
    fn the_predicted_step_is_named_with_its_own_bubble() {
        let job = varuna_api::parse_job(JOB).unwrap();
        let planner = varuna_api::planner(&job);
        let workers = [1, 2].map(|id| WorkerInfo::nominal(WorkerId(id), "n")).to_vec();
        let request = PlanRequest::first(workers, job.layout(), job.training.global_batch_size);
        let mut shape = planner.explain(&request).unwrap().shape;
        // The value in the plan's document, which was made with other costs.
        shape.predicted.bubble = 0.987;
        let step = predict(&planner.costs, &shape, &Speeds::nominal(), Topology::ONE_NODE);
        let picture = predicted_by(&planner.costs, &shape);
        let bubble = format!(", bubble {:.0} %", step.bubble * 100.0);
        assert!(picture.contains(&bubble), "{picture}");
        assert!(!picture.contains("bubble 99 %"), "{picture}");
    }
}
