//! The operator: makes the pods of `VarunaJob`s, runs a coordinator for each, and says how they are.
//!
//! observe -> decide -> apply -> publish. `decide` is pure: all that happens to a job is decided there, from what `observe` read,
//! and carried out by `apply` and `publish`. The plan of a job is not decided here but by its coordinator.

pub mod apply;
pub mod context;
pub mod controller;
pub mod credentials;
pub mod decide;
pub mod diary;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod observe;
pub mod publish;
pub mod reconcile;
pub mod record;
pub mod run;
pub mod setbacks;
