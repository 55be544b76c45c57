//! The coordinator's shell: carries workers' messages to the protocol's state machine
//! ([`varuna_protocol::Coordinator`]), and the machine's effects to workers, the record, the run folder and watchers.
//!
//! One task, the driver, owns the state machine. Everything else reaches it through one bounded channel, the inbox. This crate decides
//! nothing: plans, generations and what counts as lost are decided in `core/`.
//!
//! | module | owns |
//! |---|---|
//! | `server` | the gRPC service: requests and streams become messages of the inbox |
//! | `driver` | the state machine, its clock and the order of its inputs and effects |
//! | `streams` | the attached workers |
//! | `started_workers` | the workers that this process has started, and those of an earlier process that have ended |
//! | `record_client`, [`store`] | the persisted record |
//! | `failure_log` | when a failure that repeats is logged |
//! | [`record_format`] | the record as bytes |
//! | `checkpoints`, `store_watcher` | what is known of the checkpoint store, and the task that asks it |
//! | `upload_failures` | which workers say that their uploads fail |
//! | `measured_steps` | the step that workers are measuring |
//! | `publisher`, `event_text` | run folder, log and view |
//! | [`recoveries`] | how long recoveries take, by phase and cause |
//! | `step_figures` | what follows from a step's time, the job and its workers |

mod admission;
mod checkpoints;
mod driver;
mod error;
mod event_text;
mod event_upload;
mod failure_log;
mod inbox;
pub mod location_lease;
mod measured_steps;
mod options;
mod publisher;
mod record_client;
pub mod record_format;
pub mod recoveries;
mod serve;
mod server;
mod started_workers;
mod status;
mod step_figures;
pub mod store;
mod store_error;
mod store_watcher;
mod streams;
#[cfg(test)]
mod test_job;
mod upload_failures;
mod view;

pub use error::CoordinatorError;
pub use inbox::WorkerNotice;
pub use options::{Checkpointing, Identity, Options, ScaleRequest};
pub use serve::{Control, serve, serve_with};
pub use varuna_protocol::coordinator::{Divergence, Event, Outcome, RunMode, Timing};
pub use varuna_run_folder::RunFolder;
pub use varuna_wire::SERVER_NAME;
pub use view::{CheckpointHealth, View};
