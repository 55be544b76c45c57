//! The result of a replay, as data.

use crate::replay::ledger::Cause;
use serde::Serialize;

/// The reason for a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PlanCause {
    /// The first plan.
    Start,
    /// A member was lost.
    Loss,
    /// A planned change: workers have joined, or one has notice.
    Change,
}

/// One plan, in force or abandoned.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconfiguration {
    /// When it was made, seconds of the trace.
    pub at_s: f64,
    /// The plan's generation.
    pub generation: u64,
    /// Cause of the reconfiguration.
    pub why: PlanCause,
    /// The plan's shape in short form, such as `P4xD2` (4 stages, 2 pipelines).
    pub plan: String,
    /// Available nodes.
    pub there: usize,
    /// Workers that the plan uses.
    pub workers: usize,
    /// Predicted time of a step, milliseconds.
    pub step_ms: f64,
    /// How long training was paused for it, milliseconds.
    pub pause_ms: f64,
    /// State that its members received, bytes.
    pub moved_bytes: f64,
    /// Steps that are trained again.
    pub rolled_back_steps: u64,
    /// Whether it came into force.
    pub ran: bool,
}

/// Samples lost to one cause.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    /// The cause.
    pub cause: Cause,
    /// Per cent of [`Report::ideal_samples`].
    pub percent: f64,
}

/// The state of the job from a time on, until the next point.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// Seconds of the trace.
    pub at_s: f64,
    /// Available nodes.
    pub there: usize,
    /// Workers that train; 0 while training is paused.
    pub used: usize,
    /// Samples per second of the running plan; 0.0 while training is paused.
    pub samples_per_s: f64,
    /// Samples per second of the best plan for the available nodes.
    pub best_samples_per_s: f64,
}

/// The result of a replay.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Length of the trace, seconds.
    pub seconds: f64,
    /// Most nodes at once.
    pub nodes: usize,
    /// Nodes that joined, the first ones included.
    pub joins: usize,
    /// Nodes that left.
    pub leaves: usize,
    /// Seconds of notice before a node leaves; 0: none.
    pub notice_s: f64,
    /// Whether the costs are calibrated by measured steps.
    pub calibrated: bool,
    /// Committed steps that were not rolled back.
    pub steps: u64,
    /// Samples of those steps.
    pub trained_samples: f64,
    /// Samples that the best plan for the available nodes would have trained if changes cost nothing.
    pub ideal_samples: f64,
    /// Trained / ideal, 0 to 1.
    pub goodput: f64,
    /// Lost samples in the order of [`Cause::ALL`]. Goodput and losses sum up to 100 %.
    pub losses: Vec<Loss>,
    /// State that was sent, bytes: by workers and by the store.
    pub moved_bytes: f64,
    /// Gradients that were sent to those who follow the run, bytes.
    pub gradient_bytes: f64,
    /// Every plan, in the order of time.
    pub reconfigurations: Vec<Reconfiguration>,
    /// The state over time.
    pub timeline: Vec<Point>,
    /// Steps that ran through the protocol one by one; the others were skipped and counted.
    pub simulated_steps: u64,
}
