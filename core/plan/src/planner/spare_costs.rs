//! The costs of spare copies under a shape: memory of the keepers, and time on links. And the memory that the shape itself needs.

use super::CostPlanner;
use super::request::{PlanRequest, WorkerInfo};
use crate::cost::ParameterBytes;
use crate::document::Shape;
use crate::ids::WorkerId;
use crate::layout::Layout;
use crate::spare_copies::{SpareCosts, WAITING_GRADIENTS_MAX};
use std::collections::BTreeMap;

/// A worker's room is the memory that it is planned with minus what its stages use.
pub(super) fn spare_costs(
    planner: &CostPlanner,
    shape: &Shape,
    layout: Layout,
    workers: &[WorkerInfo],
) -> SpareCosts {
    let costs = &planner.costs;
    let request = request_of(shape, layout, workers);
    let problem = planner.problem(&request, layout.ranges_held(shape.pipelines.len()));
    let used = problem.needed_bytes(shape);
    let room = |w: &WorkerInfo| {
        let used = used.get(&w.id).copied().unwrap_or(0);
        (w.id, problem.capacity(w).saturating_sub(used))
    };
    let own = costs.segments.iter().map(|s| s.parameters);
    let parameters: Vec<u64> = own.chain([costs.tied_parameters]).collect();
    let waiting = u64::from(WAITING_GRADIENTS_MAX) * costs.parameter.gradient;
    // A kept unit uses the same memory as one of the keeper's own, including a gradient to apply; more gradients may wait. A range of a
    // unit needs no copy in the compute format.
    let ParameterBytes {
        resident,
        moved,
        gradient,
        ..
    } = costs.parameter;
    let kept = if layout.ranges > 1 {
        moved + gradient
    } else {
        resident
    };
    let bytes = |of_parameter: u64| parameters.iter().map(move |n| n.saturating_mul(of_parameter));
    SpareCosts {
        copy_bytes: bytes(kept.saturating_add(waiting)).collect(),
        held_bytes: bytes(kept).collect(),
        without_state_bytes: bytes(costs.parameter.without_state()).collect(),
        room_bytes: workers.iter().map(room).collect(),
        apart_bytes: BTreeMap::new(),
        parameters_ms: parameters.iter().map(|n| costs.parameters_ms(*n)).collect(),
        send_ms: parameters.iter().map(|n| costs.gradient_ms(*n)).collect(),
    }
}

/// What the stages of each worker need, bytes.
pub(super) fn needed_bytes(
    planner: &CostPlanner,
    shape: &Shape,
    layout: Layout,
    workers: &[WorkerInfo],
) -> BTreeMap<WorkerId, u64> {
    let request = request_of(shape, layout, workers);
    let problem = planner.problem(&request, layout.ranges_held(shape.pipelines.len()));
    problem.needed_bytes(shape)
}

/// A request that this shape answers.
fn request_of(shape: &Shape, layout: Layout, workers: &[WorkerInfo]) -> PlanRequest {
    let samples = shape.pipelines.iter().map(|p| p.samples.len()).sum();
    PlanRequest::first(workers.to_vec(), layout, samples)
}

#[cfg(test)]
mod tests {
    use super::super::Planner;
    use super::*;
    use crate::document::Plan;
    use crate::spare_copies::{keepers, without_room_to_follow};

    fn planner(memory: Option<u64>) -> CostPlanner {
        let mut planner = crate::planner::tests::planner(3, memory);
        (planner.constraints.min_workers, planner.constraints.max_workers) = (3, 3);
        planner.constraints.micro_batch_size = Some(1);
        planner
    }

    fn three_workers() -> Vec<WorkerInfo> {
        (1..4)
            .map(|w| WorkerInfo::nominal(WorkerId(w), format!("n{w}")))
            .collect()
    }

    #[test]
    fn copy_costs_a_unit_and_its_waiting_gradients() {
        let free = planner(None);
        let layout = free.costs.layout();
        let workers = three_workers();
        let request = PlanRequest::first(workers.clone(), layout, 8);
        let explained = free.explain(&request).unwrap();
        let shape = &explained.shape;
        let costs = free.spare_costs(shape, &layout, &workers);
        let parameters = free.costs.segments[1].parameters;
        assert_eq!(costs.copy_bytes[1], parameters * (16 + 4 * 4));
        assert_eq!(costs.copy_bytes.len(), layout.units());
        let at = workers.iter().map(|w| (w.id, w.location())).collect();
        let all = keepers(&layout, shape, &at, |_| true, &costs, f64::INFINITY).of_units;
        assert_eq!(
            all.iter().flatten().count(),
            layout.units() - 1,
            "the tied weight is held twice"
        );

        let most = explained.memory_bytes[0].iter().copied().max().unwrap();
        let full = planner(Some(most)).spare_costs(shape, &layout, &workers);
        let largest = shape.pipelines[0].stages
            [explained.memory_bytes[0].iter().position(|b| *b == most).unwrap()]
        .worker;
        assert_eq!(full.room_bytes[&largest], 0);
        let some = keepers(&layout, shape, &at, |_| true, &full, f64::INFINITY).of_units;
        assert!(some.iter().all(|keeper| *keeper != Some(largest)), "{some:?}");
    }

    #[test]
    fn a_worker_with_less_than_its_stage_needs_is_not_given_it() {
        let free = planner(None);
        let layout = free.costs.layout();
        let mut workers = three_workers();
        let request = PlanRequest::first(workers.clone(), layout, 8);
        let explained = free.explain(&request).unwrap();
        let needed = free.needed_bytes(&explained.shape, &layout, &workers);
        let stages = &explained.shape.pipelines[0].stages;
        let bytes = explained.memory_bytes[0].iter().copied();
        let expected: BTreeMap<WorkerId, u64> = stages.iter().map(|s| s.worker).zip(bytes).collect();
        assert_eq!(needed, expected);
        let (most, bytes) = needed.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap();
        let short = workers.iter_mut().find(|w| w.id == most).unwrap();
        short.memory_bytes = Some(bytes - 1);
        // Where no other cut fits there is no plan.
        if let Ok(another) = free.plan(&PlanRequest::first(workers.clone(), layout, 8)) {
            assert!(free.needed_bytes(&another, &layout, &workers)[&most] < bytes);
        }
    }

    #[test]
    fn room_to_follow_is_what_stage_and_activations_leave() {
        let free = planner(None);
        let layout = free.costs.layout();
        let workers = three_workers();
        let request = PlanRequest::first(workers.clone(), layout, 8);
        let explained = free.explain(&request).unwrap();
        let plan = Plan::first(layout, explained.shape);
        // The worker of the second stage also gets the third stage.
        let mut next = plan.shape.clone();
        let last = next.pipelines[0].stages.pop().unwrap();
        let stage = &mut next.pipelines[0].stages[1];
        let (gains, before) = (stage.worker, stage.segments);
        stage.segments.end = last.segments.end;

        let copies = free.spare_costs(&plan.shape, &layout, &workers).copy_bytes;
        let gained: u64 = plan.units(last.worker).iter().map(|u| copies[u.index()]).sum();
        let trains = explained.memory_bytes[0][1];
        assert!(trains > free.costs.state_bytes(before), "its activations count");
        let needed = trains + gained;
        let without_room = |memory: Option<u64>| {
            let costs = planner(memory).spare_costs(&plan.shape, &layout, &workers);
            without_room_to_follow(&plan, &next, &costs)
        };
        assert!(without_room(Some(needed)).is_empty());
        assert_eq!(without_room(Some(needed - 1)), [gains]);
        assert!(without_room(None).is_empty(), "memory is not known");
    }
}
