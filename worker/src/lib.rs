//! The training worker: the engine over libtorch, the data plane between workers, the agent that follows the protocol.
//!
//! The worker knows nothing of Kubernetes and decides nothing: plans and orders come from the coordinator.

pub mod ablation;
pub mod agent;
mod arguments;
pub mod backend;
mod background;
pub mod checkpoints;
pub mod engine;
mod gpu_place;
pub mod inference;
mod introduction;
mod job_data;
mod job_network;
pub mod memory;
pub mod model;
pub mod numerics;
mod optimizer_check;
mod processors;
pub mod profile;
pub mod program;
mod read_failures;
pub mod samples;
pub mod state;
pub mod stopwatch;
pub mod transport;
