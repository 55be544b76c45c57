//! The coordinator shell: carries the words of workers to the protocol's [`Coordinator`](varuna_protocol::Coordinator) and
//! its effects to workers, the record, the run folder and whoever watches.
//!
//! One task owns the machine; everything else reaches it through one bounded channel. This crate decides nothing: which plan,
//! which generation, what is lost is decided in `crates/`.

mod checkpoints;
pub mod claim;
mod driver;
pub mod folder;
mod in_order;
mod keeping;
mod narrator;
mod serve;
mod server;
pub mod store;
mod words;

pub use folder::RunFolder;
pub use serve::{
    Checkpointing, Control, Identity, Known, Options, Saved, ScaleRequest, View, serve, serve_with,
};
pub use varuna_protocol::coordinator::{Event, Outcome, RunMode, Timing};
pub use varuna_wire::SERVER_NAME;

use varuna_api::Job;
use varuna_plan::cost::{Costs, Device};
use varuna_plan::profile::Profile;
use varuna_plan::{Constraints, CostPlanner};

/// Why a coordinator cannot work.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The address is taken or not ours.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The run folder cannot be used.
    #[error(transparent)]
    Folder(#[from] folder::FolderError),
    /// The record cannot be read.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// The server ended by itself.
    #[error("the gRPC server failed: {0}")]
    Server(#[from] tonic::transport::Error),
    /// Two runs must not write in one place.
    #[error("run {run} has taken over the place of the checkpoints")]
    CheckpointsTaken {
        /// The other one.
        run: String,
    },
    /// No entropy for the secrets of generations.
    #[error("the operating system gives no random bytes: {0}")]
    Entropy(std::io::Error),
}

/// Costs for a job's model: of those that know whole blocks only, halves are made.
///
/// # Errors
/// They are of another model: a sentence.
pub fn costs_for(job: &Job, costs: &Costs) -> Result<Costs, String> {
    let (has, wants) = (costs.layout(), job.model.layout());
    let tied = |tied| if tied { " and a tied weight" } else { "" };
    costs.with_halves(job.model.sizes()).ok_or_else(|| {
        format!(
            "there are {} segments{}, the job's model has {} (or {} where blocks are whole){}",
            has.segments,
            tied(has.tied),
            wants.segments,
            job.model.layers + 2,
            tied(wants.tied),
        )
    })
}

/// The costs that a profile tells of a job's model.
///
/// # Errors
/// It is of another model: the first difference, as a sentence that names the field.
pub fn measured_costs(profile: &Profile, job: &Job) -> Result<Costs, String> {
    let costs = costs_for(job, &profile.costs())?;
    let layout = job.model.layout();
    let own: Vec<u64> = (0..layout.segments)
        .map(|s| job.model.unit_parameters(s))
        .collect();
    let tied = layout.tied_unit().map_or(0, |u| job.model.unit_parameters(u.0));
    profile.check_parameters(&own, tied)?;
    Ok(costs)
}

/// The planner for a job with measured costs in place of the estimated ones; they must be of its model
/// ([`measured_costs`]).
#[must_use]
pub fn planner_with(job: &Job, costs: Option<&Costs>) -> CostPlanner {
    let mut planner = planner(job);
    if let Some(costs) = costs {
        planner.costs = costs.clone();
    }
    planner
}

/// The planner for a job: its sizes on an estimated CPU core, within the job's limits.
#[must_use]
pub fn planner(job: &Job) -> CostPlanner {
    CostPlanner {
        costs: Costs::estimate(job.model.sizes(), Device::CPU_CORE),
        constraints: Constraints {
            min_workers: job.elasticity.min_workers,
            max_workers: job.elasticity.max_workers.unwrap_or(u32::MAX),
            micro_batch_size: job.pipeline.micro_batch_size,
            min_depth: job.pipeline.min_depth,
            max_depth: Some(job.pipeline.max_depth),
            schedules: job.pipeline.schedules.clone(),
            device_memory_bytes: job.workers.device_memory_bytes,
        },
    }
}
