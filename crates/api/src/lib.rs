//! `VarunaJob`: the job file, its defaults and its checks; one set of types for `varuna run`, the worker and the operator.
//!
//! This crate owns what a job says. It must never do I/O: parsing takes text and returns a job or errors that name the
//! field, the value and what is allowed.

pub mod model;
pub mod training;

pub use model::Model;
pub use training::{Adam, Evaluation, LearningRate, Training};
