//! Predicts the time of a step of a plan.
//!
//! [`predict`] is the only prediction: the planner's choice, calibration, the coordinator's comparison of plans and the timeline of a step
//! all use it. Pipelines that do the same are simulated once, instruction by instruction (`simulation`, `rendezvous`); gradient rings and
//! optimizers follow (`rings`); workers that share the cores of a node take turns (`shared_cores`). In addition there is a closed form
//! (`closed_form`), with which the search screens candidates that it does not simulate. Deterministic. It must never judge a schedule
//! ([`crate::schedule::check`] does).

pub(crate) mod closed_form;
pub(crate) mod pipeline;
pub(crate) mod rendezvous;
pub(crate) mod rings;
pub(crate) mod shared_cores;
pub(crate) mod simulation;
pub(crate) mod stage_sums;
pub(crate) mod stage_times;
pub(crate) mod step;
pub(crate) mod work;

pub use rings::StageEnd;
pub use simulation::{Activity, Span};
pub use step::{PipelineTrace, Spread, StepParts, StepPrediction, predict, predict_with_noise};
pub use work::{Speeds, Topology};
