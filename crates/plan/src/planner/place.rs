//! Placement: which worker takes which place, so that state stays where it is.

use super::compose::Candidate;
use super::{CostPlanner, PlanRequest, WorkerInfo, pace};
use crate::cost::STATE_BYTES;
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Workers on places.
pub(super) struct Placed {
    /// One for each stage, pipeline by pipeline.
    pub(super) workers: Vec<WorkerId>,
    /// State that its new holder has to fetch.
    pub(super) moved_bytes: u64,
    /// Some worker's memory does not hold its old and its new state together, as it must until the plan is in force.
    pub(super) crowded: bool,
}

/// State bytes that a worker holds, for sums over ranges in one step.
struct Held {
    /// `before[s]`: bytes held of segments `0..s`.
    before: Vec<u64>,
    tied: u64,
}

impl Held {
    fn new(layout: &Layout, bytes: &[u64], held: Option<&Vec<Unit>>) -> Held {
        let of = |unit: Unit| match held {
            Some(units) if units.contains(&unit) => bytes.get(unit.index()).copied().unwrap_or(0),
            _ => 0,
        };
        let mut before = vec![0];
        for s in 0..layout.segments {
            before.push(before[s as usize] + of(Unit(s)));
        }
        Held {
            before,
            tied: layout.tied_unit().map_or(0, of),
        }
    }

    fn of(&self, layout: &Layout, range: SegmentRange) -> u64 {
        let ends = layout.tied_unit().is_some_and(|t| layout.stage_holds(range, t));
        self.before[range.end as usize] - self.before[range.start as usize] + if ends { self.tied } else { 0 }
    }

    fn all(&self) -> u64 {
        self.before.last().copied().unwrap_or(0) + self.tied
    }
}

/// A worker on a place, ordered by preference: room for old and new state, most bytes kept, the parent's place, faster;
/// then place and worker, so that the order is total.
type Pair = (bool, Reverse<u64>, bool, Reverse<u64>, usize, WorkerId, usize);

/// Greedy: the best pair first. With a few distinct cuts, as here, pairs that keep much rarely stand in each other's way.
pub(super) fn place(
    planner: &CostPlanner,
    candidate: &Candidate,
    request: &PlanRequest,
    pool: &[WorkerInfo],
) -> Placed {
    let layout = &request.layout;
    let costs = &planner.costs;
    let mut bytes: Vec<u64> = costs
        .segments
        .iter()
        .map(|s| s.parameters * STATE_BYTES)
        .collect();
    bytes.push(costs.tied_parameters * STATE_BYTES);
    let held: Vec<Held> = pool
        .iter()
        .map(|w| Held::new(layout, &bytes, request.held.get(&w.id)))
        .collect();
    let whole = Held::new(layout, &bytes, Some(&layout.all_units().collect()));

    let mut places = Vec::new();
    for (i, p) in candidate.pipelines.iter().enumerate() {
        let n = u32::try_from(p.samples.div_ceil(u64::from(candidate.micro_batch_size))).unwrap_or(u32::MAX);
        for (j, range) in p.stages.iter().enumerate() {
            let need = planner.stage_bytes(
                &candidate.schedule,
                *range,
                (p.stages.len(), j),
                n,
                candidate.micro_batch_size,
            );
            places.push(((i, j), *range, need));
        }
    }
    let mut pairs: Vec<Pair> = Vec::with_capacity(places.len() * pool.len());
    for (at, worker) in pool.iter().enumerate() {
        let now = request.parent.as_ref().and_then(|p| p.place(worker.id));
        for (n, (place, range, need)) in places.iter().enumerate() {
            let kept = held[at].of(layout, *range);
            let crowded = need.saturating_add(held[at].all() - kept) > planner.capacity(worker);
            // Positive floats order as their bits do.
            let speed = Reverse(pace(worker.speed).to_bits());
            pairs.push((
                crowded,
                Reverse(kept),
                now != Some(*place),
                speed,
                n,
                worker.id,
                at,
            ));
        }
    }
    pairs.sort_unstable();
    let mut taken = BTreeSet::new();
    let mut chosen: Vec<Option<WorkerId>> = vec![None; places.len()];
    let mut placed = Placed {
        workers: Vec::new(),
        moved_bytes: 0,
        crowded: false,
    };
    for (crowded, Reverse(kept), _, _, n, worker, _) in pairs {
        if chosen[n].is_none() && taken.insert(worker) {
            chosen[n] = Some(worker);
            placed.moved_bytes += whole.of(layout, places[n].1) - kept;
            placed.crowded |= crowded;
        }
    }
    placed.workers = chosen.into_iter().flatten().collect();
    placed
}
