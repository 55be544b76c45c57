//! `varuna plan`: the plan that would run, and its schedule as text.

use crate::failure::Failure;
use crate::job;
use std::collections::BTreeMap;
use std::path::PathBuf;
use varuna_plan::check::check_shape;
use varuna_plan::{PlanRequest, Planner, Shape, WorkerId, WorkerInfo, schedule};

/// Prints the plan for a number of workers.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The job file.
    job: PathBuf,
    /// How many workers.
    #[arg(long, short = 'n')]
    workers: u64,
    /// The plan as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let file = job::read(&arguments.job)?;
    let planner = varuna_coordinator::planner(&file.job);
    let ids: Vec<WorkerId> = (1..=arguments.workers).map(WorkerId).collect();
    let worker = |id: &WorkerId| WorkerInfo {
        id: *id,
        memory_bytes: None,
        speed: 1.0,
        node: String::new(),
    };
    let request = PlanRequest {
        workers: ids.iter().map(worker).collect(),
        layout: file.job.model.layout(),
        global_batch_size: file.job.training.global_batch_size,
        parent: None,
        held: BTreeMap::new(),
    };
    let shape = planner
        .plan(&request)
        .map_err(|why| Failure::Input(why.to_string()))?;
    check_shape(&shape, &request.layout, request.global_batch_size, &ids)
        .map_err(|e| Failure::Internal(format!("the planner made an unsound plan: {e}")))?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&shape).map_err(|e| Failure::Internal(e.to_string()))?;
        println!("{text}");
    } else {
        print!("{}", table(&shape));
    }
    Ok(())
}

fn table(shape: &Shape) -> String {
    let p = &shape.predicted;
    let mut text = format!(
        "plan {}  micro-batch {}  predicted step {:.1} ms  bubble {:.0} %{}\n",
        shape.summary(),
        shape.micro_batch_size,
        p.step_ms,
        p.bubble * 100.0,
        if p.calibrated {
            ""
        } else {
            "  (estimated, not calibrated)"
        }
    );
    for (i, pipeline) in shape.pipelines.iter().enumerate() {
        let batches = pipeline.micro_batches(shape.micro_batch_size);
        text.push_str(&format!(
            "pipeline {i}: samples {}..{} of each step, {batches} micro-batches\n",
            pipeline.samples.start, pipeline.samples.end
        ));
        for (j, stage) in pipeline.stages.iter().enumerate() {
            text.push_str(&format!(
                "  stage {j}: worker {} segments {}\n",
                stage.worker.0, stage.segments
            ));
        }
        let batches = u32::try_from(batches).unwrap_or(u32::MAX);
        for line in schedule::text(&shape.schedule, pipeline.stages.len(), batches).lines() {
            text.push_str(&format!("    {line}\n"));
        }
    }
    for spare in &shape.spares {
        text.push_str(&format!("spare: worker {}: {}\n", spare.worker.0, spare.reason));
    }
    text
}
