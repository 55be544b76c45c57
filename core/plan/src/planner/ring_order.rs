//! The order of pipelines, if optimizer state is shared out among them (ADR 39).
//!
//! The workers that compute with a segment form a ring, in the order of their pipelines, and neighbours hold the same range. Placement
//! fills nodes pipeline by pipeline, so neighbours are often on one node, and losing that node loses ranges. The order of the pipelines
//! makes no difference to a step, so it is chosen such that neighbours are on different nodes, and in different zones, as far as possible.
//!
//! A different order moves ranges from worker to worker. So the parent's order stays unless another one loses less with a node or a zone
//! and moving to it costs no more than counts as equal among plans. Among orders with the same neighbours, the one that moves least is
//! taken. This must never change what a pipeline does.

use super::locations::{Copies, Locations, NodeAndZone};
use super::problem::Problem;
use super::request::WorkerInfo;
use super::search::choice::EQUAL;
use super::state_moves::Holdings;
use crate::document::{Pipeline, SampleRange, Shape};
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, RANGE_HOLDERS};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// With more pipelines than this there are so many runs, each with all ranges, that no node has all holders of a range.
const PIPELINES_MAX: usize = 96;

/// The number of segments, or of ranges, for which workers share a node, and for which they share a zone.
type Shared = (usize, usize);

/// Orders the pipelines of a shape that share out state, and predicts how long the state takes to move. Returns the bytes that move. None
/// if nothing is shared out; then the shape stays as it is.
pub(super) fn order(problem: &Problem, shape: &mut Shape) -> Option<u64> {
    let request = problem.request;
    if request.layout.ranges == 1 {
        return None;
    }
    let workers: Vec<&WorkerInfo> = request.workers.iter().collect();
    let locations = Locations::new(&workers);
    let holdings = Holdings::new(problem);
    let judge = |order: &[usize]| Ordered::new(&holdings, &locations, reordered(shape, order));
    let mut best = judge(&in_parent_order(request.parent.as_ref(), shape));
    let pipelines = shape.pipelines.len();
    let is_ring = (RANGE_HOLDERS + 1..=PIPELINES_MAX).contains(&pipelines);
    if is_ring && best.at_risk > (0, 0) && !bug!(NeighboursShareNode) {
        let circle = circle(&locations, shape);
        // Rotated orders have the same neighbours but other ranges, so one of them may move less.
        let is_one_run = request.layout.is_shared_out(pipelines);
        let turns = if is_one_run { pipelines } else { 1 };
        let others: Vec<Ordered> = rotations(&circle, turns)
            .iter()
            .map(|order| judge(order))
            .collect();
        let least = others
            .iter()
            .map(|o| o.effective_ms)
            .fold(best.effective_ms, f64::min);
        for other in others {
            let is_near = other.effective_ms <= least * EQUAL;
            if is_near && (other.at_risk, other.moved_bytes) < (best.at_risk, best.moved_bytes) {
                best = other;
            }
        }
    }
    *shape = best.shape;
    Some(best.moved_bytes)
}

/// A circle of the pipelines in which neighbours share little. It does not depend on how a shape lists them, so that a plan that is made
/// again stays the same.
fn circle(locations: &Locations, shape: &Shape) -> Vec<usize> {
    let mut listed: Vec<usize> = (0..shape.pipelines.len()).collect();
    listed.sort_by_key(|i| shape.pipelines[*i].stages.first().map(|s| s.worker));
    let circle = interleaved(&shared_segments(locations, &reordered(shape, &listed)));
    circle.into_iter().map(|i| listed[i]).collect()
}

/// A shape whose pipelines are in some order.
struct Ordered {
    shape: Shape,
    /// The number of ranges whose holders are all on one node, and of those whose holders are all in one zone.
    at_risk: Shared,
    moved_bytes: u64,
    effective_ms: f64,
}

impl Ordered {
    fn new(holdings: &Holdings, locations: &Locations, mut shape: Shape) -> Ordered {
        let problem = &holdings.problem;
        let (moved_bytes, move_ms) = holdings.moved(&shape);
        shape.predicted.move_ms = move_ms;
        Ordered {
            at_risk: at_risk(&problem.request.layout, locations, &shape),
            moved_bytes,
            effective_ms: problem.effective_ms(&shape.predicted),
            shape,
        }
    }
}

/// The same pipelines in another order, each with as many samples as before.
fn reordered(shape: &Shape, order: &[usize]) -> Shape {
    let mut start = 0;
    let next = |i: &usize| {
        let of = &shape.pipelines[*i];
        let end = start + of.samples.len();
        let samples = SampleRange { start, end };
        start = end;
        Pipeline {
            samples,
            ..of.clone()
        }
    };
    Shape {
        pipelines: order.iter().map(next).collect(),
        ..shape.clone()
    }
}

/// An order that puts each pipeline where the parent has the pipeline with most of its workers; new ones come last.
fn in_parent_order(parent: Option<&Shape>, shape: &Shape) -> Vec<usize> {
    let parent = parent.iter().flat_map(|p| p.pipelines.iter().enumerate());
    let at: BTreeMap<WorkerId, usize> = parent
        .flat_map(|(i, p)| p.stages.iter().map(move |s| (s.worker, i)))
        .collect();
    let from = |pipeline: &Pipeline| {
        let mut workers: BTreeMap<usize, usize> = BTreeMap::new();
        for i in pipeline.stages.iter().filter_map(|s| at.get(&s.worker)) {
            *workers.entry(*i).or_default() += 1;
        }
        let most = workers.into_iter().max_by_key(|(i, count)| (*count, Reverse(*i)));
        most.map_or(usize::MAX, |(i, _)| i)
    };
    let mut order: Vec<usize> = (0..shape.pipelines.len()).collect();
    order.sort_by_cached_key(|i| from(&shape.pipelines[*i]));
    order
}

/// The number of ranges whose holders are all on one node, and of those whose holders are all in one zone.
fn at_risk(layout: &Layout, locations: &Locations, shape: &Shape) -> Shared {
    let (mut nodes, mut zones) = (0, 0);
    let whole = layout.undivided().all_units();
    let groups = whole.map(|unit| shape.group(layout, Unit(unit.0 * layout.ranges)));
    let groups: Vec<Vec<WorkerId>> = groups.collect();
    // The segments of a stage have the same workers, which share out each of them in the same way.
    for alike in groups.chunk_by(|a, b| a == b) {
        let group = &alike[0];
        for range in layout.ranges_of(Unit(0)) {
            let mut copies = Copies::default();
            for place in layout.places_of(range, group.len()) {
                copies.add(locations.of(group[place]));
            }
            let (node, zone) = copies.common();
            nodes += if node { alike.len() } else { 0 };
            zones += if zone { alike.len() } else { 0 };
        }
    }
    (nodes, zones)
}

/// For each pair of pipelines: the number of segments whose workers share a node, and a zone.
fn shared_segments(locations: &Locations, shape: &Shape) -> Vec<Vec<Shared>> {
    let by_segment = |p: &Pipeline| -> Vec<NodeAndZone> {
        let mut at = Vec::new();
        for stage in &p.stages {
            let segments = stage.segments.len() as usize;
            at.extend(std::iter::repeat_n(locations.of(stage.worker), segments));
        }
        at
    };
    let all: Vec<Vec<NodeAndZone>> = shape.pipelines.iter().map(by_segment).collect();
    let of_two = |a: &[NodeAndZone], b: &[NodeAndZone]| -> Shared {
        let mut shared = (0, 0);
        for (a, b) in a.iter().zip(b) {
            let (node, zone) = a.common_with(*b);
            shared = (shared.0 + usize::from(node), shared.1 + usize::from(zone));
        }
        shared
    };
    let with_all = |a: &Vec<NodeAndZone>| all.iter().map(|b| of_two(a, b)).collect();
    all.iter().map(with_all).collect()
}

/// A circle in which neighbours share as little as this heuristic finds. The next pipeline is always the one that shares least with the
/// last one; among equals, the one that shares with most of the remaining pipelines, so that these do not stay for the end. Then pairs are
/// swapped while that reduces what is shared.
fn interleaved(shared: &[Vec<Shared>]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..shared.len()).collect();
    let mut circle: Vec<usize> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let with_last = |i: usize| circle.last().map_or((0, 0), |last| shared[*last][i]);
        let with_left = |i: usize| {
            let others = || {
                let others = left.iter().filter(move |j| **j != i);
                others.map(move |j| shared[i][*j])
            };
            let nodes = others().filter(|(node, _)| *node > 0).count();
            (nodes, others().filter(|(_, zone)| *zone > 0).count())
        };
        let key = |i: &usize| (with_last(*i), Reverse(with_left(*i)), *i);
        let Some(next) = left.iter().copied().min_by_key(key) else {
            break;
        };
        left.retain(|i| *i != next);
        circle.push(next);
    }
    improved(circle, shared)
}

fn improved(mut circle: Vec<usize>, shared: &[Vec<Shared>]) -> Vec<usize> {
    let all = |circle: &[usize]| {
        let next = circle.iter().cycle().skip(1);
        let each = circle.iter().zip(next).map(|(a, b)| shared[*a][*b]);
        each.fold((0, 0), |sum: Shared, of| (sum.0 + of.0, sum.1 + of.1))
    };
    let mut best = all(&circle);
    loop {
        let before = best;
        for a in 0..circle.len() {
            for b in a + 1..circle.len() {
                circle.swap(a, b);
                let now = all(&circle);
                if now < best {
                    best = now;
                } else {
                    circle.swap(a, b);
                }
            }
        }
        if best == before {
            return circle;
        }
    }
}

/// The circle started at each of its first `turns` places, forwards and backwards.
fn rotations(circle: &[usize], turns: usize) -> Vec<Vec<usize>> {
    let mut orders = Vec::with_capacity(2 * turns);
    for turn in 0..turns {
        let mut order = circle.to_vec();
        order.rotate_left(turn);
        orders.push(order.clone());
        order.reverse();
        orders.push(order);
    }
    orders
}

#[cfg(test)]
mod tests;
