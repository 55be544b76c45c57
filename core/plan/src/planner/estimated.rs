//! The planner for a job whose costs were not measured.
//!
//! It estimates costs for the device that the first worker reports, assumes the links within a node as long as all workers are on one, and
//! corrects compute by the run's own steps. If a profile gives the costs, [`CostPlanner`] is used directly: a measurement must never be
//! replaced by an estimate.

use super::problem::{speeds, topology};
use super::{Constraints, CostPlanner, Infeasible, PlanRequest, Planner, WorkerInfo};
use crate::cost::{Costs, Device, ScoreMemory};
use crate::device::{DeviceKind, Hardware};
use crate::document::Shape;
use crate::ids::WorkerId;
use crate::layout::Layout;
use crate::moments::Moments;
use crate::predict::predict;
use crate::spare_copies::SpareCosts;
use std::collections::BTreeMap;
use varuna_model::ModelSpec;

/// A relative error below this is not corrected: steps vary, and so do their parts.
const OFF: f64 = 0.25;
/// Maximum relative error of the corrected prediction.
const CLOSE: f64 = 0.01;
/// Maximum number of evaluations of the prediction for one correction: it is nearly linear in the factor.
const ROUNDS: usize = 8;
/// Minimum share of compute in a step: a step with less says nothing about compute.
const LEAST_SHARE: f64 = 0.05;

/// A planner over estimated costs.
#[derive(Clone, PartialEq, Debug)]
pub struct EstimatedPlanner {
    planner: CostPlanner,
    model: ModelSpec,
    element_bytes: u64,
    moments: Moments,
    /// [`Costs::packing_bytes`].
    packing_bytes: u64,
    /// [`Costs::mask_bytes`].
    mask_bytes: u64,
    /// The device that costs are estimated for, once a worker has reported one.
    reference: Option<&'static DeviceKind>,
    /// Memory that attention needs for scores that it materialises: the maximum of what workers reported.
    scores: ScoreMemory,
    /// The node, if any, that all workers so far are on.
    nodes: Nodes,
}

#[derive(Clone, PartialEq, Debug)]
enum Nodes {
    One(String),
    Several,
}

impl EstimatedPlanner {
    /// A planner for a model whose activations have elements of `element_bytes` bytes. Until a worker has reported its device, costs are
    /// those of processor cores.
    #[must_use]
    pub fn new(model: ModelSpec, element_bytes: u64, constraints: Constraints) -> EstimatedPlanner {
        let device = Hardware::Processor.planned_as().device(true, element_bytes);
        EstimatedPlanner {
            planner: CostPlanner {
                costs: Costs::estimate(&model, device),
                constraints,
            },
            model,
            element_bytes,
            moments: Moments::Adam,
            packing_bytes: 0,
            mask_bytes: 0,
            reference: None,
            scores: ScoreMemory::default(),
            nodes: Nodes::Several,
        }
    }

    /// The same for an optimizer that keeps these moments.
    #[must_use]
    pub fn keeping(mut self, moments: Moments) -> EstimatedPlanner {
        self.moments = moments;
        self.planner.costs = self.estimate(self.planner.costs.device);
        self
    }

    /// The same for samples of several documents, whose attention keeps `bytes` bytes of each sample ([`Costs::packing_bytes`]).
    #[must_use]
    pub fn packing(mut self, bytes: u64) -> EstimatedPlanner {
        self.packing_bytes = bytes;
        self.planner.costs.packing_bytes = bytes;
        self
    }

    /// The same for a model whose attention keeps `bytes` bytes once ([`Costs::mask_bytes`]).
    #[must_use]
    pub fn masking(mut self, bytes: u64) -> EstimatedPlanner {
        self.mask_bytes = bytes;
        self.planner.costs.mask_bytes = bytes;
        self
    }

    fn estimate(&self, device: Device) -> Costs {
        let mut costs = Costs::estimate(&self.model, device);
        costs.packing_bytes = self.packing_bytes;
        costs.mask_bytes = self.mask_bytes;
        costs.parameter = costs.parameter.keeping(self.moments);
        costs.add_scores(self.scores);
        costs
    }

    /// The present costs.
    #[must_use]
    pub fn costs(&self) -> &Costs {
        &self.planner.costs
    }
}

impl Planner for EstimatedPlanner {
    fn plan(&self, request: &PlanRequest) -> Result<Shape, Infeasible> {
        self.planner.plan(request)
    }

    fn plan_in_time(&self, request: &PlanRequest) -> Result<(Shape, Option<String>), Infeasible> {
        self.planner.plan_in_time(request)
    }

    fn expected_ms(&self, segment: u32, samples: u32) -> Option<f64> {
        self.planner.expected_ms(segment, samples)
    }

    fn predicted_ms(&self, shape: &Shape, workers: &[WorkerInfo]) -> Option<f64> {
        self.planner.predicted_ms(shape, workers)
    }

    fn spare_costs(&self, shape: &Shape, layout: &Layout, workers: &[WorkerInfo]) -> SpareCosts {
        self.planner.spare_costs(shape, layout, workers)
    }

    fn needed_bytes(
        &self,
        shape: &Shape,
        layout: &Layout,
        workers: &[WorkerInfo],
    ) -> BTreeMap<WorkerId, u64> {
        self.planner.needed_bytes(shape, layout, workers)
    }

    fn learn(&mut self, factors: &BTreeMap<u32, f64>) {
        self.planner.learn(factors);
    }

    fn note_worker(&mut self, hardware: &Hardware, node: &str) {
        // The first worker's device is the reference. Later ones of another kind are counted by their speed, so that corrections of
        // segments stay valid.
        let Some(reference) = self.reference else {
            let kind = hardware.planned_as();
            self.reference = Some(kind);
            self.nodes = Nodes::One(node.to_owned());
            self.planner.costs = self.estimate(kind.device(true, self.element_bytes));
            return;
        };
        if matches!(&self.nodes, Nodes::One(first) if first != node) {
            self.nodes = Nodes::Several;
            if bug!(FarNodesLinkAsNear) {
                return;
            }
            let far = reference.device(false, self.element_bytes);
            let device = &mut self.planner.costs.device;
            (device.latency_ms, device.bytes_per_s) = (far.latency_ms, far.bytes_per_s);
        }
    }

    fn meet_scores(&mut self, scores: ScoreMemory) {
        if bug!(ForgetScores) {
            return;
        }
        // Workers of one job differ only if their devices do; all stages are counted with the largest need.
        self.planner.costs.add_scores(scores.excess_over(self.scores));
        self.scores = self.scores.max(scores);
    }

    fn speed_of(&self, hardware: &Hardware) -> f64 {
        let flops = |kind: &DeviceKind| kind.device(true, self.element_bytes).flops_per_s;
        self.reference
            .map_or(1.0, |own| flops(hardware.planned_as()) / flops(own))
    }

    fn correct(&mut self, shape: &Shape, workers: &[WorkerInfo], observed_ms: f64) -> Option<f64> {
        let (speeds, topology) = (speeds(workers), topology(workers));
        let with = |factor: f64| {
            let mut costs = self.planner.costs.clone();
            costs.calibration.compute = factor;
            predict(&costs, shape, &speeds, topology).step_ms
        };
        let found = factor(self.planner.costs.calibration.compute, observed_ms, with)?;
        self.planner.costs.calibration.compute = found;
        Some(found)
    }
}

/// The factor on compute that explains a step of `observed_ms`, if the present factor is far off. `predicted(factor)` increases with the
/// factor. None if the present one is near enough, or if everything but compute already takes as long as the step.
fn factor(held: f64, observed_ms: f64, predicted: impl Fn(f64) -> f64) -> Option<f64> {
    let now = predicted(held);
    let is_usable = observed_ms.is_finite() && observed_ms > 0.0 && now.is_finite() && now > 0.0;
    if !is_usable || ((observed_ms / now - 1.0).abs() <= OFF && !bug!(CorrectNoise)) {
        return None;
    }
    let rest = predicted(0.0);
    if rest > observed_ms * (1.0 - LEAST_SHARE) || now <= rest {
        return None;
    }
    // Secants through a point below and the newest one: the step time is the maximum of sums that are linear in the factor.
    let (mut below, mut last) = ((0.0, rest), (held, now));
    for _ in 0..ROUNDS {
        let slope = (last.1 - below.1) / (last.0 - below.0);
        let next = below.0 + (observed_ms - below.1) / slope;
        if !(next.is_finite() && next > 0.0) {
            return None;
        }
        if last.1 < observed_ms {
            below = last;
        }
        last = (next, predicted(next));
        if (last.1 / observed_ms - 1.0).abs() <= CLOSE {
            return Some(next);
        }
    }
    None
}

#[cfg(test)]
mod tests;
