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

/// The most memory that one worker held at once for a purpose.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPeak {
    /// Bytes.
    pub bytes: f64,
    /// The same as a share of [`ExtraMemory::device_bytes`]; none: those are not known.
    pub share: Option<f64>,
}

/// The memory that following the run and keeping spare copies took on the worker that did so: the units' state, and their gradients until
/// they are applied.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraMemory {
    /// Memory of a worker's device that a plan may use, bytes; none: the planner knows no limit.
    pub device_bytes: Option<u64>,
    /// The most of any worker. A newcomer trains nothing yet, so that all it follows counts.
    pub most: MemoryPeak,
    /// The most of a worker that trained meanwhile: it needed that much beside its own segments.
    pub most_beside_training: MemoryPeak,
}

impl ExtraMemory {
    /// Nothing is held yet, on devices with so much memory for a plan.
    #[must_use]
    pub fn of_device(device_bytes: Option<u64>) -> ExtraMemory {
        let none = MemoryPeak {
            bytes: 0.0,
            share: device_bytes.map(|_| 0.0),
        };
        ExtraMemory {
            device_bytes,
            most: none,
            most_beside_training: none,
        }
    }

    /// A worker holds so much. `trains`: it has a part in the plan in force.
    #[expect(clippy::cast_precision_loss, reason = "bytes of memory")]
    pub(crate) fn note(&mut self, bytes: f64, trains: bool) {
        let share = self.device_bytes.map(|device| bytes / device.max(1) as f64);
        let now = MemoryPeak { bytes, share };
        if bytes > self.most.bytes {
            self.most = now;
        }
        if trains && bytes > self.most_beside_training.bytes {
            self.most_beside_training = now;
        }
    }
}

/// The checkpoints that were made. The replay counts no training time for them.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointsMade {
    /// Number of checkpoints: those of the job's interval, and those that the coordinator ordered.
    pub count: u64,
    /// How long all of them together were on their way to the store, seconds.
    pub upload_s: f64,
}

impl CheckpointsMade {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of uploads")]
    pub(crate) fn add(&mut self, count: u64, upload_ns: u64) {
        self.count += count;
        self.upload_s += count as f64 * upload_ns as f64 / 1e9;
    }
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
    /// Memory that following and spare copies took.
    pub extra_memory: ExtraMemory,
    /// Checkpoints that were made.
    pub checkpoints: CheckpointsMade,
    /// Every plan, in the order of time.
    pub reconfigurations: Vec<Reconfiguration>,
    /// The state over time.
    pub timeline: Vec<Point>,
    /// Steps that ran through the protocol one by one; the others were skipped and counted.
    pub simulated_steps: u64,
}
