use super::*;
use crate::check::check_shape;
use crate::layout::SHARDED_RANGES;
use crate::planner::{CostPlanner, PlanRequest, Planner};
use std::collections::BTreeSet;

fn planner(min_depth: u32) -> CostPlanner {
    let mut planner = crate::planner::tests::planner(min_depth, None);
    planner.constraints.micro_batch_size = Some(1);
    planner.constraints.max_depth = Some(4);
    planner
}

/// A request with this many workers, `per_node` on each node, and two nodes in each zone.
fn request(planner: &CostPlanner, workers: u64, per_node: u64) -> PlanRequest {
    let worker = |i: u64| WorkerInfo {
        domain: format!("zone-{}", i / per_node / 2),
        ..WorkerInfo::nominal(WorkerId(i + 1), format!("node-{}", i / per_node))
    };
    let layout = planner.costs.layout().in_ranges(SHARDED_RANGES);
    PlanRequest::first((0..workers).map(worker).collect(), layout, 64)
}

/// Units that have no holder any more after the loss of some node.
fn lost_with_a_node(request: &PlanRequest, shape: &Shape) -> Vec<Unit> {
    let node = |id: &WorkerId| {
        let worker = request.workers.iter().find(|w| w.id == *id);
        worker.unwrap().node.as_str()
    };
    let is_lost = |unit: &Unit| {
        let holders = shape.holders(&request.layout, *unit);
        let nodes: BTreeSet<&str> = holders.iter().map(node).collect();
        nodes.len() < 2
    };
    request.layout.all_units().filter(is_lost).collect()
}

#[test]
fn no_node_and_no_zone_has_all_holders_of_a_range() {
    let planner = planner(4);
    for (nodes, pipelines) in [(2, 4), (4, 8)] {
        let request = request(&planner, nodes * 8, 8);
        let shape = planner.plan(&request).unwrap();
        let all: Vec<WorkerId> = request.workers.iter().map(|w| w.id).collect();
        assert_eq!(shape.pipelines.len(), pipelines, "{shape:?}");
        assert_eq!(check_shape(&shape, &request.layout, 64, &all), Ok(()));
        let lost = lost_with_a_node(&request, &shape);
        assert!(lost.is_empty(), "{nodes} nodes: {lost:?}");
        let workers: Vec<&WorkerInfo> = request.workers.iter().collect();
        let locations = Locations::new(&workers);
        assert_eq!(at_risk(&request.layout, &locations, &shape), (0, 0));
    }
}

#[test]
fn a_plan_whose_pipelines_are_in_order_stays_as_it_is() {
    for (min_depth, workers, per_node) in [(4, 16, 8), (4, 32, 8), (3, 13, 5)] {
        let planner = planner(min_depth);
        let request = request(&planner, workers, per_node);
        let shape = planner.plan(&request).unwrap();
        let again = planner.explain(&request.after(shape.clone())).unwrap();
        assert_eq!(again.shape, shape, "{workers} workers");
        assert_eq!(again.moved_bytes, 0);
    }
}

#[test]
fn pipelines_change_places_where_nothing_is_held_or_that_repays() {
    let planner = planner(4);
    let first = request(&planner, 16, 8);
    let good = planner.plan(&first).unwrap();
    // Pipelines in the order of their nodes.
    let mut by_node: Vec<usize> = (0..good.pipelines.len()).collect();
    by_node.sort_by_key(|i| good.pipelines[*i].stages[0].worker);
    let bad = reordered(&good, &by_node);
    assert!(!lost_with_a_node(&first, &bad).is_empty());
    let put_in_order = |request: &PlanRequest| {
        let mut shape = bad.clone();
        let moved = order(&planner.problem(request, 6), &mut shape).unwrap();
        (moved > 0, lost_with_a_node(request, &shape).is_empty())
    };
    assert_eq!(put_in_order(&first), (false, true), "nothing is held");
    let after = |horizon_ms| PlanRequest {
        horizon_ms,
        ..first.clone().after(bad.clone())
    };
    assert_eq!(put_in_order(&after(Some(1e9))), (true, true));
    assert_eq!(
        put_in_order(&after(Some(20.0))),
        (false, false),
        "what moves takes longer than the plan is worth"
    );
}

#[test]
fn a_circle_keeps_those_apart_that_share_something_where_it_can() {
    // Pipelines by the letter of their node.
    let of = |nodes: &str| {
        let nodes: Vec<char> = nodes.chars().collect();
        let with = |a: &char| nodes.iter().map(|b| (usize::from(a == b), 0)).collect();
        let shared: Vec<Vec<Shared>> = nodes.iter().map(with).collect();
        let circle = interleaved(&shared);
        let next = circle.iter().cycle().skip(1);
        circle
            .iter()
            .zip(next)
            .filter(|(a, b)| nodes[**a] == nodes[**b])
            .count()
    };
    for apart in ["aabb", "aabbccdd", "aaabc", "caabbaab", "aaabbbc", "abbbcdd"] {
        let expected = usize::from(apart == "aaabc");
        assert_eq!(of(apart), expected, "{apart}");
    }
    assert_eq!(of("aaab"), 2);
}
