//! `status.json`, which is also what the coordinator answers to a `Status` request.

use serde::{Deserialize, Serialize};
use varuna_plan::{Generation, SegmentRange, Step, WorkerId};
use varuna_protocol::{Phase, RunMode};

/// What a run is doing. Losses in nats per token, times in milliseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// The job's name.
    pub job: String,
    /// What the coordinator is doing.
    pub mode: RunMode,
    /// The coordinator's term; it grows with every coordinator that took over.
    pub term: u64,
    /// The plan in force; 0 = none yet.
    pub generation: Generation,
    /// The planned change that is being prepared.
    pub next: Option<Generation>,
    /// Steps committed, as far as known.
    pub step: Step,
    /// Steps of the whole job.
    pub last_step: Step,
    /// Loss of the newest published step; `null` before the first, and where it is not a finite number.
    pub loss: Option<f64>,
    /// Short form of the plan in force, such as `P2xD4`.
    pub plan: Option<String>,
    /// Predicted step time.
    pub predicted_ms: Option<f64>,
    /// Observed step time (exponentially weighted mean).
    pub observed_ms: Option<f64>,
    /// Workers that the plan in force uses.
    pub members: usize,
    /// Fewest workers that may train.
    pub min_workers: usize,
    /// Most workers that are used.
    pub max_workers: Option<usize>,
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
    /// Its step.
    pub newest_step: Option<Step>,
    /// Steps committed since.
    pub steps_behind: Option<u64>,
    /// Why the store could not be asked the last time.
    pub failing: Option<String>,
}

/// One attached worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// Its identity: new for every process start.
    pub id: WorkerId,
    /// Its name for people.
    pub name: String,
    /// The node it runs on.
    pub node: String,
    /// Its stream is up.
    pub up: bool,
    /// Its phase in its present plan; none before its first report.
    pub phase: Option<Phase>,
    /// The generation in force there.
    pub generation: Generation,
    /// Steps committed there.
    pub step: Step,
    /// It was told that it will go.
    pub draining: bool,
    /// Its speed relative to the nominal device, as plans count it.
    pub speed: f64,
    /// The segments that it runs in the present plan, stage by stage; empty where it has no stage.
    pub segments: Vec<SegmentRange>,
    /// Index of its pipeline in the present plan.
    pub pipeline: Option<usize>,
    /// Its process id on `host`.
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
    /// In forwards.
    pub forward_ms: f64,
    /// In backwards.
    pub backward_ms: f64,
    /// In forwards that were run again for a backward.
    pub recompute_ms: f64,
    /// Waiting for activations and gradients of neighbouring stages.
    pub wait_ms: f64,
    /// Waiting for gradient reductions that compute did not hide.
    pub reduce_ms: f64,
    /// In the optimizer.
    pub apply_ms: f64,
}
