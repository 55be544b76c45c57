//! The files of a run folder: one type for each document, one writer, one reader.
//!
//! | file | content | type |
//! |---|---|---|
//! | `job.yaml` | the job file, as written | text |
//! | `record.json` | the coordinator's record | [`varuna_protocol::Record`] |
//! | `coordinator.json` | where the coordinator listens, and the run's token | [`Contact`] |
//! | `status.json` | what the run is doing now | [`RunStatus`] |
//! | `metrics.jsonl` | one line for each committed step | [`Metric`] |
//! | `events.jsonl` | the event log | [`EventEntry`] |
//! | `plans/g000001.json` | every plan that was sent to workers | [`varuna_plan::Plan`] |
//! | `measured-step.json` | when each task of a step of the newest plan ran | [`varuna_plan::measured_step::MeasuredStep`] |
//! | `tensorboard/` | the committed steps as event files for TensorBoard | [`varuna_tensorboard`] |
//! | `workers/NAME.log` | the logs of workers that `varuna run` started | text |
//! | `processes.json` | the processes of these workers | [`WorkerProcesses`] |
//!
//! The coordinator writes through [`RunFolder`], which holds the folder's lock; everyone else reads through [`RunFiles`].
//! This crate decides nothing. Reads and writes of files are its only I/O.

mod atomic;
mod contact;
mod event;
mod event_files;
mod files;
mod folder;
mod log;
mod metric;
mod processes;
mod status;

pub use atomic::{Access, Durability, replace_file};
pub use contact::Contact;
pub use event::{CheckpointEvent, EventEntry, LoggedEvent};
pub use files::{ReadError, RunFiles};
pub use folder::{FolderError, LockedFolder, RunFolder};
pub use metric::{Metric, StepFigures, now_ms};
pub use processes::{WorkerProcess, WorkerProcesses};
pub use status::{CheckpointStatus, RunStatus, StepTimings, WorkerStatus};
