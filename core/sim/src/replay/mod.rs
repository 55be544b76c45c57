//! Availability traces, replayed: what a job would have trained on machines that came and went like this.
//!
//! The planner, the coordinator and every member are the ones that run jobs (`varuna-plan`, `varuna-protocol`); around them
//! stands a world whose engines take the predicted time for a step, whose links carry state at their bandwidth, and whose
//! other delays were measured (`bench/data/recovery.json`). Stretches in which nothing but equal steps happens are left out
//! and counted. `docs/guides/replay.md` has the definition of goodput and what the world does not model.
//! It must never do I/O, read a clock, or decide anything that a real job's coordinator decides.

mod ideal;
mod ledger;
mod net;
mod parts;
mod ranks;
mod report;
mod text;
mod trace;
mod world;

pub use ideal::Ideal;
pub use ledger::Cause;
pub use parts::{PartsError, RecoveryParts};
pub use report::{CheckpointsMade, ExtraMemory, Loss, MemoryPeak, PlanCause, Point, Reconfiguration, Report};
pub use text::text;
pub use trace::{Moment, Trace, TraceError};
pub use world::{ReplayError, Setup, replay};
