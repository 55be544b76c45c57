//! What a replay found, as data.

use crate::ledger::Cause;
use serde::Serialize;

/// Why a plan came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// The first plan.
    Start,
    /// A member was lost.
    Loss,
    /// A planned change: others are there, or one will go.
    Change,
}

/// One plan that came into force, or was on its way.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reconfiguration {
    /// When it was planned, seconds of the trace.
    pub at_s: f64,
    /// Its generation.
    pub generation: u64,
    /// Why.
    pub why: Why,
    /// Its shape in short.
    pub plan: String,
    /// Nodes there.
    pub there: usize,
    /// Workers that it uses.
    pub workers: usize,
    /// Predicted step, milliseconds.
    pub step_ms: f64,
    /// Training stood for so long on its account, milliseconds.
    pub pause_ms: f64,
    /// State that arrived at its members, bytes.
    pub moved_bytes: f64,
    /// Steps that are trained again.
    pub rolled_back_steps: u64,
    /// It came into force.
    pub ran: bool,
}

/// A loss of samples.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Loss {
    /// Why.
    pub cause: Cause,
    /// Per cent of what the ideal trains.
    pub percent: f64,
}

/// What holds from a time on.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Point {
    /// Seconds of the trace.
    pub at_s: f64,
    /// Nodes there.
    pub there: usize,
    /// Workers that train; 0 while training stands.
    pub used: usize,
    /// Samples a second of the running plan, 0.0 while training stands.
    pub samples_per_s: f64,
    /// Samples a second of the best plan.
    pub best_samples_per_s: f64,
}

/// All of a replay.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Length of the trace, seconds.
    pub seconds: f64,
    /// Most nodes at once.
    pub nodes: usize,
    /// Nodes that came, the first ones included.
    pub joins: usize,
    /// Nodes that left.
    pub leaves: usize,
    /// Seconds of notice before a node leaves, 0 for none.
    pub notice_s: f64,
    /// Whether the costs are calibrated on measured steps.
    pub calibrated: bool,
    /// Steps committed and kept.
    pub steps: u64,
    /// Samples trained and kept.
    pub trained_samples: f64,
    /// Samples that the best plan for the nodes there would have trained at no cost of change.
    pub ideal_samples: f64,
    /// Trained / ideal, 0 to 1.
    pub goodput: f64,
    /// The rest by cause, in the order of [`Cause::ALL`]; with the goodput 100 %.
    pub losses: Vec<Loss>,
    /// Every plan.
    pub reconfigurations: Vec<Reconfiguration>,
    /// For the picture.
    pub timeline: Vec<Point>,
    /// Steps that were run one by one by the protocol; the others were counted.
    pub simulated_steps: u64,
}
