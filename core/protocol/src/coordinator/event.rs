//! What the coordinator reports to people: the events of a run, and its present state.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use varuna_plan::spare_copies::SpareCopyDecision;
use varuna_plan::{Generation, OptimizerProgress, ScaleFactor, SegmentRange, StateId, Step, Unit, WorkerId};

use super::left_out::LeftOut;
use super::run_mode::RunMode;
use super::spare_copies_view::SpareCopiesView;
use crate::message::Phase;

/// Something that happened in a run. Losses in nats per token, times in milliseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Event {
    /// This coordinator is the leader now.
    TookOver {
        /// Term of the coordinator.
        term: u64,
    },
    /// A worker's stream came up.
    WorkerJoined {
        /// The worker.
        worker: WorkerId,
        /// Name of the worker, for users.
        name: String,
        /// Where it listens for peers.
        address: String,
    },
    /// A worker's stream ended or fell silent.
    WorkerLost {
        /// The worker.
        worker: WorkerId,
        /// Name of the worker, for users.
        name: String,
    },
    /// A worker was notified that it will be stopped.
    WorkerDraining {
        /// The worker.
        worker: WorkerId,
        /// Name of the worker, for users.
        name: String,
    },
    /// A drained worker was released.
    WorkerReleased {
        /// The worker.
        worker: WorkerId,
        /// Name of the worker, for users.
        name: String,
    },
    /// A plan is persisted.
    Planned {
        /// Number of the plan.
        generation: Generation,
        /// Short form of the plan's shape.
        plan: String,
        /// How many workers it uses.
        workers: usize,
        /// Predicted step time.
        predicted_ms: f64,
        /// Whether this is a planned change; otherwise it is a recovery or the first plan.
        change: bool,
        /// Reason for the plan, as text for users.
        reason: String,
    },
    /// All generations up to `upto` are stopped.
    Fenced {
        /// The last one.
        upto: Generation,
        /// Reason for the fence, as text for users.
        because: String,
    },
    /// The inventories that a recovery is based on.
    Collected {
        /// Workers that answered.
        answered: Vec<WorkerId>,
        /// Members and sources that did not.
        missing: Vec<WorkerId>,
    },
    /// A recovery's plan is persisted; training resumes from `base`.
    Resumed {
        /// The plan's number.
        generation: Generation,
        /// The state.
        base: StateId,
        /// Whether an interrupted step is finished rather than run again.
        finished: bool,
        /// Whether some state comes from a checkpoint or, at the start, from the job's seed.
        restored: bool,
    },
    /// All members of a plan that is being launched have connected to their peers; the state that they are missing is on its way.
    Connected {
        /// The generation.
        generation: Generation,
    },
    /// All members are ready; training continues.
    Running {
        /// The generation.
        generation: Generation,
    },
    /// A planned change has taken place.
    Switched {
        /// The generation that is in force now.
        generation: Generation,
    },
    /// The newcomers of a planned change have followed the run and hold its state: the switch takes place, and no state has to move while
    /// training stops.
    FollowersCaughtUp {
        /// The generation.
        generation: Generation,
        /// The newcomers.
        workers: Vec<WorkerId>,
    },
    /// A planned change takes place although some newcomers have not caught up with the run: what they are missing is copied after the
    /// switch, while training stops.
    FollowersLate {
        /// The generation.
        generation: Generation,
        /// The newcomers.
        workers: Vec<WorkerId>,
    },
    /// Whether spare copies are kept under this plan and its successors, if the job wants any. Reported again when the answer changes.
    SpareCopies {
        /// The first plan for which this is true.
        generation: Generation,
        /// Whether they are kept, and why not.
        verdict: SpareCopyDecision,
        /// The number of units that only one worker holds and another one keeps a copy of.
        kept: usize,
    },
    /// Checkpoints are made at another interval than the job's, because of the losses of workers so far, or at the job's interval again.
    /// Reported again when the interval has changed by a factor of two.
    CheckpointInterval {
        /// The interval at which they are made in addition to the job's regular ones; none: not at all.
        seconds: Option<f64>,
    },
    /// A planned change was dropped before anyone was armed for it.
    Cancelled {
        /// The generation.
        generation: Generation,
        /// Reason, as text for users.
        because: String,
    },
    /// A step was committed: the first report of this state.
    Committed {
        /// The state reached.
        id: StateId,
        /// Generation that ran it.
        generation: Generation,
        /// Steps done.
        step: Step,
        /// Mean training loss of the step; none where its batch has no target.
        loss: Option<f64>,
        /// Mean loss on the held-out split before the step, where it was evaluated.
        eval_loss: Option<f64>,
        /// L2 norm of the gradient before clipping.
        gradient_norm: f64,
        /// Whether the optimizer skipped the step because a gradient was not finite.
        overflow: bool,
        /// The optimizer's counters, including this step.
        progress: OptimizerProgress,
    },
    /// For several steps in a row, a step took much longer or shorter than predicted. Reported once per generation.
    StepTimeOff {
        /// The generation.
        generation: Generation,
        /// Predicted step time.
        predicted_ms: f64,
        /// The last observed one.
        observed_ms: f64,
        /// Whether the prediction comes from costs that were fitted to measured steps.
        calibrated: bool,
    },
    /// Steps took so much longer or shorter than estimated that the estimate was corrected: plans from now on use the correction.
    CostsCorrected {
        /// The generation whose steps they were.
        generation: Generation,
        /// Predicted step time before the correction.
        predicted_ms: f64,
        /// The observed one: median of the generation's first steps.
        observed_ms: f64,
        /// Factor applied to the originally estimated compute times.
        factor: f64,
    },
    /// Workers that should hold the same state have different bits.
    StatesDiffer {
        /// Steps done in the state that was compared.
        step: Step,
        /// The units that they hold.
        units: Vec<Unit>,
        /// Workers whose bits differ from the majority's: the run continues without them. Empty if there is no majority: then the run goes
        /// back to the newest checkpoint whose state was compared, or to the seed.
        replaced: Vec<WorkerId>,
    },
    /// The checkpoint of the last step was found damaged.
    FinalCheckpointDamaged {
        /// The state.
        state: StateId,
        /// Whether it is deleted and put again by the workers. Otherwise that was done often enough, and the run ends without it.
        again: bool,
    },
    /// There are too few workers: training waits, and state is kept.
    BelowMinimum {
        /// Number of usable workers.
        have: usize,
        /// Needed workers.
        need: usize,
    },
    /// The planner finds no plan for the present workers.
    NoPlan {
        /// Reason, as text for users.
        reason: String,
    },
    /// The record could not be written; nothing changes until it can be.
    WriteFailed {
        /// The version that was to be written.
        version: u64,
    },
    /// No holder and no checkpoint is left for these units.
    Lost {
        /// The units that were lost.
        units: Vec<Unit>,
    },
    /// More steps in a row were skipped than the job allows: gradients are no longer finite, and the run ends.
    Diverged(Divergence),
    /// The last step is committed.
    Done {
        /// Steps done.
        step: Step,
    },
    /// Another coordinator has taken over.
    Deposed {
        /// Term of the other coordinator.
        by_term: u64,
    },
}

/// How a run ended whose gradients were no longer finite.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Divergence {
    /// The step that exceeded the limit.
    pub step: Step,
    /// Steps in a row that failed, this one included.
    pub failed_in_a_row: u32,
    /// The loss scale under which they failed.
    pub loss_scale: ScaleFactor,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Divergence {
            step,
            failed_in_a_row,
            loss_scale,
        } = self;
        let scale = match loss_scale.value() {
            1 => String::new(),
            scale => format!(" under the loss scale {scale}, which cannot fall"),
        };
        write!(
            f,
            "at step {step} the gradient or the loss was not finite for the {failed_in_a_row}. time in a row{scale}: more than \
             spec.training.skipLimit allows"
        )
    }
}

/// How the run ended for a coordinator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The last step is committed and everyone released.
    Done,
    /// Another coordinator has taken over.
    Deposed,
    /// The user ended it.
    Stopped,
    /// More steps in a row were skipped than the job allows.
    Diverged(Divergence),
    /// No worker and no checkpoint has the state of these units any more; or the store has damaged each copy of the last step's state
    /// ([`Event::FinalCheckpointDamaged`]).
    StateLost {
        /// The units that were lost.
        units: Vec<Unit>,
    },
}

/// One worker in a [`Snapshot`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerView {
    /// Its identity: new for every process start.
    pub id: WorkerId,
    /// Name of the worker, for users.
    pub name: String,
    /// The node it runs on.
    pub node: String,
    /// Whether its stream is up.
    pub up: bool,
    /// Its phase in its present plan. None before its first report, or if a later release reports a phase that this one does not know.
    #[serde(default, deserialize_with = "known_phase")]
    pub phase: Option<Phase>,
    /// The generation in force on this worker.
    pub generation: Generation,
    /// Steps committed on this worker.
    pub step: Step,
    /// Whether it was notified that it will be stopped.
    pub draining: bool,
    /// Its speed relative to the nominal device, as used for plans.
    pub speed: f64,
    /// The segments that it runs in the present plan, one range per stage; empty if it has no stage.
    pub segments: Vec<SegmentRange>,
    /// Index of its pipeline in the present plan.
    pub pipeline: Option<usize>,
    /// Why it has no part in the present plan. None if it has one, if there is no plan, and if its stream is down.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub left_out: Option<LeftOut>,
}

/// A phase, if it is one that this release knows.
fn known_phase<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Phase>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Word {
        Known(Phase),
        Other(IgnoredAny),
    }
    Ok(match Option::<Word>::deserialize(deserializer)? {
        Some(Word::Known(phase)) => Some(phase),
        Some(Word::Other(IgnoredAny)) | None => None,
    })
}

/// The present state of a run, for people and for the `status` command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// What the run is doing as a whole.
    pub run: RunView,
    /// All workers known to this coordinator.
    pub workers: Vec<WorkerView>,
}

/// The state of a run as its coordinator sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    /// What the coordinator is doing.
    pub mode: RunMode,
    /// This coordinator's term.
    pub term: u64,
    /// The plan in force; 0 = none yet.
    pub generation: Generation,
    /// The planned change that is being prepared.
    pub next: Option<Generation>,
    /// Steps committed, as far as known.
    pub step: Step,
    /// The run's last step.
    pub last_step: Step,
    /// Short form of the plan in force, such as `P2xD4`.
    pub plan: Option<String>,
    /// Predicted step time, milliseconds.
    pub predicted_ms: Option<f64>,
    /// Observed step time (exponentially weighted mean), milliseconds.
    pub observed_ms: Option<f64>,
    /// Correction factor on estimated compute times, from observed steps. None if there is no correction, or costs were measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub compute_factor: Option<f64>,
    /// Workers used by the plan in force.
    pub members: usize,
    /// Minimum number of workers for training.
    pub min_workers: usize,
    /// Maximum number of workers to use.
    pub max_workers: Option<usize>,
    /// Spare copies under the plan in force, if the job wants any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub spare_copies: Option<SpareCopiesView>,
}
