//! Placement: which worker runs which stage of a candidate, so that state stays where it is.
//!
//! Workers of one kind (same held state, memory and speed) and positions of one kind (same segments and memory need) are matched kind by
//! kind: there are few kinds, however many workers there are.

mod filling;

use super::candidate::Candidate;
use super::held_bytes::{Held, unit_bytes};
use super::locations::Locations;
use super::problem::Problem;
use super::request::WorkerInfo;
use super::state_moves::{fetch_ms, holders};
use crate::document::{Pipeline, Shape};
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use crate::predict::work::rounded_speed;
use filling::Filling;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Workers on the stages of a candidate.
pub(super) struct Placed {
    /// One for each stage, pipeline by pipeline.
    pub(super) workers: Vec<WorkerId>,
    /// Bytes of state that new holders have to fetch.
    pub(super) moved_bytes: u64,
    /// Lower bound of the time for that, in milliseconds: until the last worker has fetched what it is missing and the holders have sent
    /// it.
    pub(super) move_ms: f64,
    /// Whether some worker's memory cannot hold its old and new state together, which it must until the plan is in force.
    pub(super) exceeds_memory: bool,
    /// Whether the workers have state before the workers go that alone hold it, if they must.
    pub(super) is_in_time: bool,
}

/// Approximately how much of `bytes` bytes of state one worker holds if `pipelines` pipelines share it out.
fn shared_out(layout: &Layout, bytes: u64, pipelines: usize) -> u64 {
    match layout.ranges {
        1 => bytes,
        ranges => bytes * layout.ranges_held(pipelines) / u64::from(ranges),
    }
}

/// Workers that hold the same, with the same memory and speed.
struct Kind {
    held: Held,
    capacity: u64,
    /// Positive floats order as their bits do.
    speed: u64,
    /// In order of domain, node, then id. So neighbours in a pipeline share a node if possible, otherwise a rack or a zone, and the copies
    /// that several pipelines hold are in several of these, as far as each pipeline fits into one.
    workers: Vec<WorkerId>,
}

/// The key of a kind: held state, memory, speed.
type KindKey<'a> = (&'a [Unit], u64, Reverse<u64>);

/// A pool of workers by kinds, for any number of candidates.
pub(super) struct WorkerPool {
    kinds: Vec<Kind>,
    whole: Held,
    /// How many workers hold some state.
    holders: u64,
    /// The parent's positions of its workers, with its pipelines in the order in which a search lists them.
    parent: BTreeMap<WorkerId, (usize, usize)>,
    locations: Locations,
}

impl WorkerPool {
    pub(super) fn new(problem: &Problem, workers: &[&WorkerInfo]) -> WorkerPool {
        let (request, layout) = (problem.request, &problem.request.layout);
        let bytes = unit_bytes(problem.costs, layout);
        let mut kinds: BTreeMap<KindKey, Vec<&WorkerInfo>> = BTreeMap::new();
        for worker in workers {
            let held = request.held.get(&worker.id).map_or(&[][..], Vec::as_slice);
            let key = (
                held,
                problem.capacity(worker),
                Reverse(rounded_speed(worker.speed).to_bits()),
            );
            kinds.entry(key).or_default().push(worker);
        }
        let kinds = kinds.into_iter().map(|((held, capacity, speed), mut workers)| {
            if !bug!(PlaceAcrossZones) {
                workers.sort_by(|a, b| (&a.domain, &a.node, a.id).cmp(&(&b.domain, &b.node, b.id)));
            }
            Kind {
                held: Held::new(layout, &bytes, held),
                capacity,
                speed: speed.0,
                workers: workers.into_iter().map(|w| w.id).collect(),
            }
        });
        let pipelines = request
            .parent
            .iter()
            .flat_map(|p| in_search_order(layout, p).into_iter().enumerate());
        let parent =
            pipelines.flat_map(|(i, p)| p.stages.iter().enumerate().map(move |(j, s)| (s.worker, (i, j))));
        let all: Vec<Unit> = layout.all_units().collect();
        WorkerPool {
            kinds: kinds.collect(),
            whole: Held::new(layout, &bytes, &all),
            holders: holders(problem),
            parent: parent.collect(),
            locations: Locations::new(workers),
        }
    }

    /// Places workers on the stages of a candidate. The criteria in order: memory for old and new state together, most bytes kept, the
    /// parent's position, faster workers on earlier positions. If several workers are equally good, the last copy of a stage goes to
    /// another node or zone than all other copies.
    pub(super) fn place(&self, problem: &Problem, candidate: &Candidate) -> Placed {
        let layout = &problem.request.layout;
        let pipelines = candidate.pipelines().len();
        let (sites, numbers) = positions(problem, candidate);
        let mut pairs: Vec<(bool, Reverse<u64>, usize, usize)> = Vec::new();
        for (k, kind) in self.kinds.iter().enumerate() {
            for (s, site) in sites.iter().enumerate() {
                let kept = kind.held.of(layout, site.range);
                let exceeds_memory = site.need.saturating_add(kind.held.all() - kept) > kind.capacity;
                pairs.push((exceeds_memory, Reverse(kept), k, s));
            }
        }
        pairs.sort_unstable();
        let mut filling = Filling::new(self, &numbers, open(&sites));
        let mut placed = Placed {
            workers: Vec::new(),
            moved_bytes: 0,
            move_ms: 0.0,
            exceeds_memory: false,
            is_in_time: true,
        };
        let mut most = 0;
        let mut stages: Vec<(SegmentRange, u64)> = Vec::new();
        for group in pairs.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (exceeds_memory, Reverse(kept), ..) = group[0];
            let taken = filling.fill(group);
            placed.exceeds_memory |= exceeds_memory && !taken.is_empty();
            for site in taken {
                let range = sites[site].range;
                let needed = shared_out(layout, self.whole.of(layout, range), pipelines);
                let lacking = needed.saturating_sub(kept);
                placed.moved_bytes += lacking;
                most = most.max(lacking);
                if problem.in_time.is_some() {
                    stages.push((range, lacking));
                }
            }
        }
        let in_time = problem.in_time;
        placed.is_in_time = in_time.is_none_or(|at_risk| at_risk.arrives_in_time(pipelines, stages));
        placed.move_ms = fetch_ms(problem, most, placed.moved_bytes, self.holders);
        if self.holders == 0 {
            // All state is made or loaded anyway.
            placed.moved_bytes = 0;
        }
        placed.workers = filling.chosen.into_iter().flatten().collect();
        placed
    }
}

/// The parent's pipelines in the order in which a search lists them: deep ones first, among these the ones with more samples. If state is
/// shared out, the parent may have them in another order ([`super::ring_order`]).
fn in_search_order<'p>(layout: &Layout, parent: &'p Shape) -> Vec<&'p Pipeline> {
    let mut pipelines: Vec<&Pipeline> = parent.pipelines.iter().collect();
    if layout.ranges > 1 {
        pipelines.sort_by_key(|p| (Reverse(p.stages.len()), Reverse(p.samples.len())));
    }
    pipelines
}

/// Positions by kind, and the number of each (pipeline, stage).
fn positions(problem: &Problem, candidate: &Candidate) -> (Vec<Positions>, BTreeMap<(usize, usize), usize>) {
    let mut kinds: BTreeMap<(SegmentRange, u64), Vec<usize>> = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    let mut needs: BTreeMap<(usize, usize, SegmentRange, u32), u64> = BTreeMap::new();
    let (kind, micro) = (candidate.work.kind, candidate.work.micro_batch_size);
    for (i, p) in candidate.pipelines().iter().enumerate() {
        let n = p.micro_batches(micro);
        for (j, stage) in p.stages.iter().enumerate() {
            let (at, range) = ((p.stages.len(), j), stage.segments);
            let need = needs
                .entry((at.0, j, range, n))
                .or_insert_with(|| problem.stage_bytes(kind, stage.recompute, range, at, n, micro));
            kinds.entry((range, *need)).or_default().push(numbers.len());
            numbers.insert((i, j), numbers.len());
        }
    }
    let of = |((range, need), numbers)| Positions { range, need, numbers };
    (kinds.into_iter().map(of).collect(), numbers)
}

/// Positions with the same segments and the same memory need.
struct Positions {
    range: SegmentRange,
    need: u64,
    /// Positions, ascending.
    numbers: Vec<usize>,
}

/// For each kind of position: the stage that it is a copy of (kinds with the same segments, whatever else they need, are copies of one
/// stage), and its position numbers.
fn open(sites: &[Positions]) -> Vec<(usize, BTreeSet<usize>)> {
    let ranges: BTreeSet<SegmentRange> = sites.iter().map(|s| s.range).collect();
    let stages: BTreeMap<SegmentRange, usize> = ranges.into_iter().zip(0..).collect();
    let of = |site: &Positions| -> (usize, BTreeSet<usize>) {
        (stages[&site.range], site.numbers.iter().copied().collect())
    };
    sites.iter().map(of).collect()
}
