//! `status.json`, which is also what the coordinator answers to a `Status` request.

use serde::{Deserialize, Serialize};
use varuna_plan::Step;
use varuna_protocol::coordinator::{RunView, WorkerView};

/// What a run is doing. Losses in nats per token, times in milliseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// The job's name.
    pub job: String,
    /// The run as its coordinator sees it.
    #[serde(flatten)]
    pub run: RunView,
    /// Loss of the newest published step; `null` before the first, where it is not a finite number, and where the step has none.
    pub loss: Option<f64>,
    /// Steps that the optimizer skipped up to that step.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub skipped_steps: Option<u64>,
    /// What the next step's loss is multiplied by, where the job scales its loss.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<u64>,
    /// The checkpoints, where the job names a location for them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub checkpoint: Option<CheckpointStatus>,
    /// All workers that are attached.
    pub workers: Vec<WorkerStatus>,
}

/// A run's checkpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// Folder name of the newest one that can be resumed from.
    pub newest: Option<String>,
    /// Step of the newest checkpoint.
    pub newest_step: Option<Step>,
    /// Steps committed since.
    pub steps_behind: Option<u64>,
    /// Why the store cannot be asked, or why workers cannot upload to it; none if both work.
    pub failing: Option<String>,
}

/// One attached worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// The worker as its coordinator sees it.
    #[serde(flatten)]
    pub view: WorkerView,
    /// Process id of the worker on `host`.
    pub pid: u32,
    /// The host it runs on.
    pub host: String,
    /// The device it computes on.
    pub device: String,
    /// Where the time of its newest reported step went.
    pub timings: Option<StepTimings>,
}

/// Where the time of one step went on one worker, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepTimings {
    /// The step that was run (from `step` to `step + 1`).
    pub step: Step,
    /// The whole step.
    pub step_ms: f64,
    /// Milliseconds in forwards.
    pub forward_ms: f64,
    /// Milliseconds in backwards.
    pub backward_ms: f64,
    /// Milliseconds in forwards that were run again for a backward.
    pub recompute_ms: f64,
    /// Waiting for activations and gradients of neighbouring stages.
    pub wait_ms: f64,
    /// Waiting for gradient reductions that compute did not hide.
    pub reduce_ms: f64,
    /// Milliseconds in the optimizer.
    pub apply_ms: f64,
    /// Processor time of the engine's own thread in the optimizer: all of it where the worker has one thread. `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub apply_cpu_ms: Option<f64>,
}
