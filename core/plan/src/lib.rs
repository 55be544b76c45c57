//! Plans: which worker trains which segments, on which samples, in which order, and why.
//!
//! This crate owns the vocabulary of the project (identifiers, state identities, the plan document), the partition of
//! segments over workers, schedules as data, the planner, and the checkers that judge what those produce.
//! It must never do I/O, read a clock, draw randomness or know libtorch, tokio or Kubernetes.

#[macro_use]
extern crate varuna_mutants;

pub mod calibrate;
pub mod check;
pub mod communicators;
pub mod cost;
pub mod csv_rows;
pub mod deadline;
pub mod device;
pub mod document;
pub mod ids;
pub mod loss_scale;
pub mod measured_step;
mod moments;
mod mutant;
pub mod parameters_first;
pub mod partition;
pub mod planner;
pub mod predict;
pub mod profile;
pub mod schedule;
pub mod spare_copies;
pub mod state;
pub mod state_losses;

pub use cost::{Calibration, Costs, Device, ParameterBytes, Runtime, ScoreMemory};
pub use deadline::{EvaluationSteps, StepDeadline};
pub use document::{Base, Pipeline, Plan, Prediction, SampleRange, ScheduleSpec, Shape, Spare, Stage};
pub use document::{PlanIndex, Recompute, ScheduleKind, tree_fan_out};
pub use ids::{Generation, Step, Unit, WorkerId};
pub use loss_scale::{LossScale, LossScaling, OptimizerProgress, ScaleFactor};
pub use moments::Moments;
pub use mutant::Mutant;
pub use planner::{
    Constraints, CostPlanner, Departure, EstimatedPlanner, Explained, Infeasible, PlanRequest, Planner,
    RunnerUp, WorkerInfo,
};
pub use predict::{Speeds, StepParts, StepPrediction, Topology, predict};
pub use spare_copies::{SpareCopies, SpareCosts};
pub use state::{Decision, StateId};
pub use varuna_model::layout::{self, Layout, SegmentRange};
