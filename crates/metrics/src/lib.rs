//! What is measured of a run. One table names all figures; each way out of the process is derived from it. No decision depends on what is
//! measured, and nothing here waits for whoever reads it.
//!
//! | module | owns | side effects |
//! |---|---|---|
//! | [`figures`] | the figures as they are now | state only |
//! | [`goodput`] | the share of its time in which a run trains | none: pure |
//! | `table` | which figures there are: name, meaning, unit, value | none: pure |
//! | [`metrics`] | the figures and durations of one run, as Prometheus reads them | state only |
//! | [`measurements`] | recoveries as they are seen in a coordinator's views | state only |
//! | [`follower`] | a task that measures a run by its views | state only |
//! | [`scrapes`] | `/metrics` | serves HTTP |
//! | [`receiver`] | where figures are pushed, by the variables of OpenTelemetry | none: pure, but for the reading of the environment |
//! | `sender` | one export within its limit, and what is said of it | sends to the receiver |
//! | [`push`] | pushing from its start to the last figures | a thread, which sends |

pub mod figures;
pub mod follower;
pub mod goodput;
pub mod measurements;
pub mod metrics;
pub mod push;
pub mod receiver;
pub mod scrapes;
mod sender;
mod table;
#[cfg(test)]
mod tests;

pub use figures::Figures;
pub use follower::Follower;
pub use goodput::Goodput;
pub use measurements::Measurements;
pub use metrics::Metrics;
pub use varuna_coordinator::recoveries::{Cause, CompletedRecovery, Measured, Phase, Recoveries};
