//! The plan document: immutable, numbered, persisted before anyone is told of it.

use crate::deadline::StepDeadline;
use crate::ids::{Generation, Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use crate::state::{Decision, StateId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

mod index;
mod links;
pub(crate) mod parameters_first;
mod sources;
pub use index::PlanIndex;
pub use links::tree_fan_out;
pub use sources::{TooManySources, source_rows, sources_of_rows};

/// A contiguous range of segments on one worker, for one pipeline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stage {
    /// The worker that runs it. A worker has one stage in a plan; if the schedule is interleaved, one in each round of its pipeline.
    pub worker: WorkerId,
    /// The segments that it runs.
    pub segments: SegmentRange,
    /// What it keeps of a forward, if this differs from the shape's schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recompute: Option<Recompute>,
}

/// Offsets into the global batch: the samples `kM + start .. kM + end` of step k.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SampleRange {
    /// The first offset.
    pub start: u64,
    /// One past the last offset.
    pub end: u64,
}

impl SampleRange {
    /// Number of samples.
    #[must_use]
    pub fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
    /// True for a range without samples (never in a valid plan).
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.end <= self.start
    }
}

/// An ordered list of stages that covers all segments once: the data-parallel unit. If the schedule is interleaved, the list goes round the
/// pipeline's P workers several times: stage s is on the worker of stage s modulo P.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pipeline {
    /// First stage first.
    pub stages: Vec<Stage>,
    /// This pipeline's share of every step's batch.
    pub samples: SampleRange,
}

impl Pipeline {
    /// Number of micro-batches a step, the last one possibly short.
    #[must_use]
    pub fn micro_batches(&self, micro_batch_size: u32) -> u64 {
        self.samples.len().div_ceil(u64::from(micro_batch_size.max(1)))
    }

    /// This pipeline's share of `total` held-out samples, shared out like a batch of `batch` samples.
    #[must_use]
    pub fn evaluation_samples(&self, total: u64, batch: u64) -> Range<u64> {
        let batch = batch.max(1);
        self.samples.start * total / batch..self.samples.end * total / batch
    }
}

/// A worker that the plan leaves idle, and the reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spare {
    /// The idle worker.
    pub worker: WorkerId,
    /// Reason, as text for users.
    pub reason: String,
}

/// The order of forwards and backwards on each stage.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum ScheduleKind {
    /// All forwards, then all backwards (Huang et al. 2019).
    Gpipe,
    /// One forward, one backward after `warmup_factor * (P - 1 - s)` warm-up forwards (PipeDream-flush, Narayanan et al. 2021).
    /// 1.0 is the classical schedule; 2.0 tolerates jitter best at 2(P-1-s)+1 stashed stage inputs.
    #[serde(rename = "1f1b")]
    OneForwardOneBackward {
        /// Warm-up forwards per later stage; at least 1.0.
        #[serde(rename = "warmupFactor")]
        warmup_factor: f64,
    },
    /// 1F1B over several chunks of the model on each worker (Narayanan et al. 2021, section 2.2): the bubble is divided by the number of
    /// chunks, and boundaries are crossed that many times as often. The number of micro-batches is a multiple of the pipeline's number of
    /// workers.
    Interleaved {
        /// Stages of each worker, at least 2.
        chunks: u32,
    },
}

impl ScheduleKind {
    /// Stages that each worker of a pipeline has.
    #[must_use]
    pub fn chunks(self) -> usize {
        match self {
            ScheduleKind::Interleaved { chunks } => chunks.max(1) as usize,
            ScheduleKind::Gpipe | ScheduleKind::OneForwardOneBackward { .. } => 1,
        }
    }

    /// Number of workers of a pipeline with this many stages; stage s is on the worker of stage s modulo this number.
    #[must_use]
    pub fn workers(self, stages: usize) -> usize {
        (stages / self.chunks()).max(1)
    }
}

/// What is kept of a forward for its backward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Recompute {
    /// Everything that autograd saves.
    None,
    /// Only the inputs of attention segments, and everything of all others: attention keeps much and is quick to run again (Korthikanti et
    /// al. 2022).
    Selective,
    /// Only the stage's input; the forward is run again before the backward.
    Full,
}

/// A schedule for all stages of a plan.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleSpec {
    /// Order of forwards and backwards.
    #[serde(flatten)]
    pub kind: ScheduleKind,
    /// Activation recompute; in a shape, the default for stages that do not set their own.
    pub recompute: Recompute,
}

/// The planner's prediction for a shape. Times in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// Mean time of one optimizer step.
    pub step_ms: f64,
    /// Share of stage time, 0..1, in which the average worker waits.
    pub bubble: f64,
    /// Time for which training stops while state moves to the workers that need it, or, if they follow the run, while the gradient of the
    /// last step does; milliseconds. 0 if no worker holds any state.
    #[serde(default)]
    pub move_ms: f64,
    /// False while the costs are analytic estimates that no measurement has corrected.
    pub calibrated: bool,
}

/// What the planner decides: everything in a plan except its number, its base and its secret.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shape {
    /// The pipelines, at least one; their sample ranges partition `0..M` in order.
    pub pipelines: Vec<Pipeline>,
    /// Workers that are not used, each with its reason.
    pub spares: Vec<Spare>,
    /// Samples in a micro-batch; the last one of a pipeline may be short.
    pub micro_batch_size: u32,
    /// How each stage orders its work, and what it keeps by default.
    pub schedule: ScheduleSpec,
    /// The predicted performance.
    pub predicted: Prediction,
}

impl Shape {
    /// All members, ascending.
    #[must_use]
    pub fn members(&self) -> Vec<WorkerId> {
        let all: BTreeSet<WorkerId> = self
            .pipelines
            .iter()
            .flat_map(|p| p.stages.iter().map(|s| s.worker))
            .collect();
        all.into_iter().collect()
    }

    /// Whether both shapes divide the work in the same way, whichever workers do it.
    #[must_use]
    pub fn same_work(&self, other: &Shape) -> bool {
        let work = |shape: &Shape| -> Vec<_> {
            let stages = |p: &Pipeline| -> Vec<_> {
                let stages = p.stages.iter();
                stages.map(|s| (s.segments, shape.schedule_of(s))).collect()
            };
            let pipelines = shape.pipelines.iter();
            pipelines.map(|p| (p.samples, stages(p))).collect()
        };
        self.micro_batch_size == other.micro_batch_size && work(self) == work(other)
    }

    /// The position of a worker: (pipeline index, index of its first stage).
    #[must_use]
    pub fn place(&self, worker: WorkerId) -> Option<(usize, usize)> {
        self.pipelines
            .iter()
            .enumerate()
            .find_map(|(i, p)| p.stages.iter().position(|s| s.worker == worker).map(|j| (i, j)))
    }
    /// The worker's pipeline and the indices of its stages there, ascending.
    #[must_use]
    pub fn stages_of(&self, worker: WorkerId) -> Option<(usize, Vec<usize>)> {
        let (i, _) = self.place(worker)?;
        let stages = self.pipelines[i].stages.iter().enumerate();
        Some((
            i,
            stages
                .filter(|(_, s)| s.worker == worker)
                .map(|(j, _)| j)
                .collect(),
        ))
    }
    /// The segments of each of the worker's stages, ascending; none for a worker without a stage.
    #[must_use]
    pub fn segments_of(&self, worker: WorkerId) -> Vec<SegmentRange> {
        let (i, stages) = self.stages_of(worker).unwrap_or_default();
        let stages = stages.into_iter();
        stages.map(|j| self.pipelines[i].stages[j].segments).collect()
    }
    /// The workers that compute with a unit: the ring that sums its gradient, in pipeline order, then stage order. If a tied weight's state
    /// is sharded, the first stages of all pipelines come first, then their last stages: neighbours hold the same ranges, and the two ends
    /// of a pipeline, which may be lost together, must not be neighbours.
    #[must_use]
    pub fn group(&self, layout: &Layout, unit: Unit) -> Vec<WorkerId> {
        let stages = self.pipelines.iter().flat_map(|p| &p.stages);
        let needed = stages.filter(|s| layout.stage_needs(s.segments, unit));
        let is_tied = layout.tied_unit() == Some(layout.whole_of(unit));
        if layout.ranges == 1 || !is_tied || bug!(EndsOfPipelineAreNeighbours) {
            return needed.map(|s| s.worker).collect();
        }
        let (first, last): (Vec<&Stage>, Vec<&Stage>) = needed.partition(|s| s.segments.start == 0);
        first.into_iter().chain(last).map(|s| s.worker).collect()
    }
    /// Holders of a unit: all of its group, or those to which its range is assigned. The first owns the unit's part of the norm.
    #[must_use]
    pub fn holders(&self, layout: &Layout, unit: Unit) -> Vec<WorkerId> {
        let group = self.group(layout, unit);
        let places = layout.places_of(unit, group.len());
        places.into_iter().map(|place| group[place]).collect()
    }
    /// The units that a worker holds, in order; empty for a worker without a stage.
    #[must_use]
    pub fn units(&self, layout: &Layout, worker: WorkerId) -> Vec<Unit> {
        let ranges = self.segments_of(worker);
        let mut units = Vec::new();
        for whole in layout.undivided().all_units() {
            if ranges.iter().any(|r| layout.undivided().stage_needs(*r, whole)) {
                let first = Unit(whole.0 * layout.ranges);
                let group = self.group(layout, first);
                let held = |unit: &Unit| {
                    let mut places = layout.places_of(*unit, group.len()).into_iter();
                    places.any(|place| group[place] == worker)
                };
                units.extend(layout.ranges_of(whole).filter(held));
            }
        }
        units
    }
    /// The schedule of one of its stages.
    #[must_use]
    pub fn schedule_of(&self, stage: &Stage) -> ScheduleSpec {
        ScheduleSpec {
            kind: self.schedule.kind,
            recompute: stage.recompute.unwrap_or(self.schedule.recompute),
        }
    }
    /// Short form for people: `P2xD4` for a grid, `3+2+2` (depths) otherwise; `P2xD4xV3` if each worker has three stages.
    #[must_use]
    pub fn summary(&self) -> String {
        let kind = self.schedule.kind;
        summary_of(self.pipelines.iter().map(|p| kind.workers(p.stages.len())), kind)
    }
}

/// `P2xD4` for pipelines of one depth, runs of equal depths (`13x2+9`) otherwise, followed by `xV3` if each worker has three stages.
pub(crate) fn summary_of(depths: impl Iterator<Item = usize>, kind: ScheduleKind) -> String {
    let depths: Vec<usize> = depths.collect();
    let grid = match depths.first() {
        Some(first) if depths.iter().all(|d| d == first) => format!("P{first}xD{}", depths.len()),
        _ => {
            let runs = depths.chunk_by(|a, b| a == b).map(|run| match run {
                [one] => one.to_string(),
                // A few depths are listed one by one, as in `3+2+2`.
                [depth, ..] if depths.len() <= 4 => vec![depth.to_string(); run.len()].join("+"),
                [depth, ..] => format!("{depth}x{}", run.len()),
                [] => String::new(),
            });
            runs.collect::<Vec<_>>().join("+")
        }
    };
    match kind.chunks() {
        1 => grid,
        chunks => format!("{grid}xV{chunks}"),
    }
}

/// The state that a plan starts from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Base {
    /// Recovery: all members resume at this state.
    Fixed {
        /// The state.
        id: StateId,
        /// Lets holders that are prepared but did not commit roll forward to `id`. It is binding for later recoveries.
        decision: Option<Decision>,
        /// Units without a source are loaded from the checkpoint named by `id` (for `StateId::INITIAL`: made from the seed).
        checkpoint: bool,
    },
    /// Planned change: the state at which `from` commits with this generation as its switch.
    #[serde(rename_all = "camelCase")]
    AtSwitch {
        /// The generation before the switch.
        from: Generation,
    },
}

/// The plan of one generation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Number of the plan.
    pub generation: Generation,
    /// The plan in force when it was made; 0 for the first.
    pub parent: Generation,
    /// The state from which the plan starts.
    pub base: Base,
    /// The model's units.
    pub layout: Layout,
    /// The division of the work.
    #[serde(flatten)]
    pub shape: Shape,
    /// Per unit: the workers that can send its state, the best one first.
    #[serde(with = "sources")]
    pub sources: Vec<Vec<WorkerId>>,
    /// Where members and sources listen for peers (`host:port`).
    pub addresses: BTreeMap<WorkerId, String>,
    /// Deadline of a step: a member that sees no commit for longer suspects a hang.
    pub deadline: StepDeadline,
    /// Whether some links are known to be bad: then sources also put their units into the store, and targets also look there.
    pub relay: bool,
    /// Maximum number of children of a member in the tree along which a step's norms are gathered and its decision spreads.
    pub tree_fan_out: u32,
    /// Whether newcomers follow their units from members of the plan before, so that they reach the base of a switch without loading it.
    /// Omitted if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub following: bool,
    /// Whether members that lack state compute the plan's first step with parameters that others send them, while the rest of that state
    /// is still on its way (ADR 43). Omitted if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parameters_first: bool,
    /// By unit: the member that keeps a spare copy of it while this plan is in force. None if the unit has several holders, or nobody keeps
    /// one. Empty, and omitted, if no copy is kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keepers: Vec<Option<WorkerId>>,
    /// The workers whose inventories decided the base (recovery only).
    pub evidence: Vec<WorkerId>,
    /// The reason for this plan, for people.
    pub reason: String,
    /// Look-up tables, derived from the rest.
    #[serde(skip)]
    pub index: PlanIndex,
}
