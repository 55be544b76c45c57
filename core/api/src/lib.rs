//! `VarunaJob`: the job file, its defaults and its checks; one set of types for `varuna run`, the worker and the operator.
//!
//! This crate owns the meaning of a job file. It must never do I/O: parsing takes text and returns a job, or errors that name the field,
//! the value and what is allowed. A job file is processed in two steps: text -> [`manifest::VarunaJob`] (as written; `manifest`, `read`) ->
//! [`Job`] (defaults filled in, everything checked; `resolve`). Nothing else reads the manifest.

mod choices;
pub mod conditions;
#[cfg(feature = "kubernetes")]
pub mod crd;
pub mod error;
pub mod hash;
pub mod job;
pub mod learning_rate;
pub mod lifecycle;
mod limits;
pub mod manifest;
pub mod masking;
mod packing;
pub mod planner;
pub mod quantity;
mod read;
mod resolve;
#[cfg(feature = "kubernetes")]
mod schema;
pub mod steps;
pub mod training;
mod worker_groups;

pub use conditions::{ConditionType, FailureKind, JobPhase, Reason};
pub use error::{JobError, JobErrors};
pub use hash::{model_hash, run_identity, sha256};
pub use job::{
    Checkpoint, CheckpointSource, CoordinatorPod, Data, DataSource, Elasticity, Encryption, HeldOut, Job,
    Network, NetworkPolicy, Pipelines, Precision, Restriction, WorkerDevice, WorkerGroup, WorkerTransport,
    Workers,
};
pub use learning_rate::{LearningRate, Schedule};
pub use lifecycle::{Disruption, FailurePolicy, Lifecycle};
pub use masking::Masking;
pub use packing::Packing;
pub use planner::{
    estimated_costs, estimated_planner, measured_costs, planner, planner_with, unmeasured_costs,
};
pub use resolve::{DNS_LABEL, is_label, parse_job, parse_job_of_any_release};
pub use steps::{steps_of_run, with_steps_of};
pub use training::{Evaluation, Optimizer, Sharding, Training, UpdateRule};
pub use worker_groups::{PodGroup, fill_in};
