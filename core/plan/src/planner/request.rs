//! A planner's request, and the trait that answers it.

use crate::cost::ScoreMemory;
use crate::device::Hardware;
use crate::document::{ScheduleSpec, Shape};
use crate::ids::{Unit, WorkerId};
use crate::layout::Layout;
use crate::spare_copies::{Location, SpareCosts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A worker that may be planned with.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerInfo {
    /// Unique for every start of the process.
    pub id: WorkerId,
    /// Device memory, where known.
    pub memory_bytes: Option<u64>,
    /// Measured speed, 1.0 = nominal.
    pub speed: f64,
    /// The node it runs on.
    pub node: String,
    /// Where that node is, from the widest part to the narrowest: `zone-a/block-3`; empty = not known. Nodes whose domains begin with the
    /// same parts are near to each other.
    pub domain: String,
}

impl WorkerInfo {
    /// The location of the worker.
    #[must_use]
    pub fn location(&self) -> Location<'_> {
        Location {
            node: &self.node,
            domain: &self.domain,
        }
    }

    /// A worker of nominal speed on this node, its memory not known.
    #[must_use]
    pub fn nominal(id: WorkerId, node: impl Into<String>) -> WorkerInfo {
        WorkerInfo {
            id,
            memory_bytes: None,
            speed: 1.0,
            node: node.into(),
            domain: String::new(),
        }
    }
}

/// A request to the planner.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanRequest {
    /// Workers that may be used, in any order.
    pub workers: Vec<WorkerInfo>,
    /// The model's units.
    pub layout: Layout,
    /// Samples in a step (M).
    pub global_batch_size: u64,
    /// The shape in force.
    pub parent: Option<Shape>,
    /// The units that each worker has at the base: keeping them where they are costs nothing.
    pub held: BTreeMap<WorkerId, Vec<Unit>>,
    /// Expected time until the set of workers changes, milliseconds. Plans are judged by what they train until then, including the time
    /// that the change of plan takes. None: for ever.
    pub horizon_ms: Option<f64>,
    /// Whether the workers that gain state follow the run (ADR 26), so that the state is there before the switch: training then stops only
    /// for the gradient of the last step.
    pub following: bool,
    /// The holders that leave. None if it is not known of any of them when.
    pub departure: Option<Departure>,
}

/// Workers that hold state and leave.
#[derive(Clone, PartialEq, Debug)]
pub struct Departure {
    /// For each of them the time for which it can send state, from the moment when state begins to move: milliseconds, infinite if it is not
    /// known when it goes. They are not among the workers that may be used.
    pub sends_for_ms: BTreeMap<WorkerId, f64>,
}

impl PlanRequest {
    /// The first plan of a run, to last for ever.
    #[must_use]
    pub fn first(workers: Vec<WorkerInfo>, layout: Layout, global_batch_size: u64) -> PlanRequest {
        PlanRequest {
            workers,
            layout,
            global_batch_size,
            parent: None,
            held: BTreeMap::new(),
            horizon_ms: None,
            following: false,
            departure: None,
        }
    }

    /// The same with `shape` in force, its members holding what it gave them.
    #[must_use]
    pub fn after(self, shape: Shape) -> PlanRequest {
        let mut held: BTreeMap<WorkerId, Vec<Unit>> =
            shape.members().into_iter().map(|w| (w, Vec::new())).collect();
        for unit in self.layout.all_units() {
            for holder in shape.holders(&self.layout, unit) {
                let units = held.entry(holder).or_default();
                if units.last() != Some(&unit) {
                    units.push(unit);
                }
            }
        }
        PlanRequest {
            held,
            parent: Some(shape),
            ..self
        }
    }
}

/// There is no plan; the text explains it to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Infeasible(pub String);

/// Chooses the shape of a plan.
pub trait Planner {
    /// The best shape for the request.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible>;

    /// The same. If a better shape was not taken because its workers would not have state before the workers go that alone hold it, also says
    /// so, for people: a better one should be looked for once those are gone.
    ///
    /// # Errors
    /// A sentence that says what is missing.
    fn plan_in_time(&self, request: &PlanRequest) -> Result<(Shape, Option<String>), Infeasible> {
        Ok((self.plan(request)?, None))
    }

    /// The expected time of a forward and backward of a micro-batch of `samples` through a segment on a worker of speed 1, milliseconds.
    /// None if the planner has no costs, which turns feedback off.
    fn expected_ms(&self, _segment: u32, _samples: u32) -> Option<f64> {
        None
    }

    /// The predicted step time of a shape on these workers, milliseconds.
    fn predicted_ms(&self, _shape: &Shape, _workers: &[WorkerInfo]) -> Option<f64> {
        None
    }

    /// What spare copies would cost under a shape on these workers. A planner without costs counts none.
    fn spare_costs(&self, _shape: &Shape, _layout: &Layout, _workers: &[WorkerInfo]) -> SpareCosts {
        SpareCosts::default()
    }

    /// What the stages of each worker need under a shape, bytes: with less than this, the worker is not given them. A planner without costs says nothing.
    fn needed_bytes(
        &self,
        _shape: &Shape,
        _layout: &Layout,
        _workers: &[WorkerInfo],
    ) -> BTreeMap<WorkerId, u64> {
        BTreeMap::new()
    }

    /// Notes that a worker on this hardware and node takes part from now on. Estimated costs are those of the workers' hardware.
    fn note_worker(&mut self, _hardware: &Hardware, _node: &str) {}

    /// Notes that a worker takes part whose attention materialises scores, so that estimated memory includes them from now on. Measured
    /// memory already includes what the measured attention keeps, and stays as it is.
    fn meet_scores(&mut self, _scores: ScoreMemory) {}

    /// The speed of a worker on this hardware before anything was observed; 1.0 = as the costs assume.
    fn speed_of(&self, _hardware: &Hardware) -> f64 {
        1.0
    }

    /// Corrects an estimate by the step time that was observed for a shape on these workers, milliseconds. Returns the factor on all
    /// estimated compute times since the first estimate, if it has changed.
    fn correct(&mut self, _shape: &Shape, _workers: &[WorkerInfo], _observed_ms: f64) -> Option<f64> {
        None
    }

    /// Corrects the costs of segments by the ratio of observed to expected compute time.
    fn learn(&mut self, _factors: &BTreeMap<u32, f64>) {}
}

/// The job's constraints.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Constraints {
    /// Fewest workers that may train.
    pub min_workers: u32,
    /// Most workers that may train.
    pub max_workers: u32,
    /// Samples in a micro-batch; none = the planner chooses.
    pub micro_batch_size: Option<u32>,
    /// Fewest stages in a pipeline.
    pub min_depth: u32,
    /// Most stages in a pipeline; none = the number of segments.
    pub max_depth: Option<u32>,
    /// Schedules to choose from; among those with the same predicted step time the first is taken. If one is listed with several kinds of
    /// recompute, each stage keeps as much as fits into its memory.
    pub schedules: Vec<ScheduleSpec>,
    /// Memory that a worker may use, bytes; the smaller of this and what it reports counts.
    pub device_memory_bytes: Option<u64>,
}
