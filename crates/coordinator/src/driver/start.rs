//! Creates the state machine, and the description of a worker for it.

use crate::event_upload::EventUpload;
use crate::inbox::Inbound;
use crate::options::Options;
use crate::started_workers::StartedWorkers;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use varuna_api::Job;
use varuna_plan::{Costs, Planner, Step};
use varuna_protocol::coordinator::{self, Coordinator, CoordinatorConfig};
use varuna_run_folder::RunFolder;
use varuna_wire::Hello;

/// The planner with measured costs, if there are any; otherwise costs are estimated for the workers' devices.
pub(super) fn planner(job: &Job, costs: Option<Costs>) -> Box<dyn Planner + Send> {
    match costs {
        Some(costs) => Box::new(varuna_api::planner_with(job, Some(&costs))),
        None => Box::new(varuna_api::estimated_planner(job)),
    }
}

/// The state machine of a run. The options tell whether its job may lose its training progress.
pub(super) fn machine(
    config: CoordinatorConfig,
    planner: Box<dyn Planner + Send>,
    allow_state_loss: bool,
) -> Coordinator {
    let machine = Coordinator::new(config, planner);
    if allow_state_loss {
        machine.may_begin_anew()
    } else {
        machine
    }
}

/// The protocol's description of a worker.
pub(super) fn report(hello: &Hello) -> coordinator::Hello {
    coordinator::Hello {
        address: hello.address.clone(),
        name: hello.name.clone(),
        node: hello.node.clone(),
        hardware: hello.hardware.clone(),
        memory_bytes: hello.memory_bytes,
        copies_bytes: hello.copies_bytes,
        scores: hello.scores,
        speed: hello.speed,
    }
}

pub(super) fn protocol_config(options: &Options, folder: &RunFolder) -> CoordinatorConfig {
    let job = &options.job;
    let settings = job.checkpoint.as_ref();
    let (batch, last_step) = (job.training.global_batch_size, Step(job.training.steps));
    CoordinatorConfig {
        min_workers: job.elasticity.min_workers as usize,
        evaluation: job.training.evaluation_steps(),
        timing: options.timing,
        expected_workers: options.expected_workers,
        spare_copies: job.elasticity.spare_copies,
        final_checkpoint: options.checkpoints.is_some(),
        loss_scaling: job.training.loss_scaling,
        skip_limit: Some(job.training.skip_limit),
        notice: job
            .disruption
            .notice_seconds
            .map(|s| Duration::from_secs(s.into())),
        assumed_notice: Duration::from_secs(job.disruption.grace_seconds().into()),
        save_every: settings.and_then(|c| c.interval_seconds).map(Duration::from_secs),
        save_every_steps: settings.and_then(|c| c.interval_steps),
        adaptive_checkpoints: settings.is_some_and(|c| c.adaptive),
        published: folder.last_metric().map(|m| m.state),
        names: folder.worker_names().clone(),
        ..CoordinatorConfig::new(job.layout(), batch, last_step)
    }
}

/// The workers of this process, if it starts any, and a task that looks for those of an earlier one.
pub(super) fn started_workers(
    host: Option<String>,
    folder: &RunFolder,
    inbound: &Sender<Inbound>,
) -> Option<StartedWorkers> {
    let local = StartedWorkers::open(host?, folder.files())?;
    local.watch_earlier(inbound);
    Some(local)
}

/// The task that copies event files to the store, where the store is to get them.
pub(super) fn event_upload(options: &Options, folder: &RunFolder) -> Option<EventUpload> {
    let store = options.checkpoints.as_ref().filter(|store| store.event_files)?;
    // Successive runs of one job are distinguished by their identities.
    let identity: String = options.run.chars().take(8).collect();
    let run = format!("{}-{identity}", options.job.name);
    let location = store.store.location().clone();
    Some(EventUpload::start(
        folder.files().tensorboard_path(),
        location,
        run,
    ))
}
