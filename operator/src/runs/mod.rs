//! The coordinators that run in this process, one for each job.

mod report;
mod run;
mod table;

pub use run::{Endpoint, Launcher};
pub use table::Runs;
