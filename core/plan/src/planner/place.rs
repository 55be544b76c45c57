//! Placement: which worker takes which place, so that state stays where it is.
//!
//! Workers of one kind (same state held, memory and pace) and places of one kind (same segments and need) are matched kind
//! by kind: there are few kinds, whatever the number of workers.

use super::candidate::Candidate;
use super::{CostPlanner, PlanRequest, WorkerInfo, pace};
use crate::cost::STATE_BYTES;
use crate::document::{Shape, Stage};
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Workers on places.
pub(super) struct Placed {
    /// One for each stage, pipeline by pipeline.
    pub(super) workers: Vec<WorkerId>,
    /// State that its new holder has to fetch.
    pub(super) moved_bytes: u64,
    /// How long that takes at least: until the last one has fetched what it lacks, and the holders have sent it.
    pub(super) move_ms: f64,
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
    fn new(layout: &Layout, bytes: &[u64], held: &[Unit]) -> Held {
        let held: BTreeSet<Unit> = held.iter().copied().collect();
        let of = |unit: Unit| match held.contains(&unit) {
            true => bytes.get(unit.index()).copied().unwrap_or(0),
            false => 0,
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

/// Workers that hold the same, with the same memory and pace.
struct Kind {
    held: Held,
    capacity: u64,
    /// Positive floats order as their bits do.
    pace: u64,
    /// In order of node, then id: neighbours in a pipeline share a node where they can.
    workers: Vec<WorkerId>,
}

/// What tells kinds apart: state held, memory, pace.
type KindKey<'a> = (&'a [Unit], u64, Reverse<u64>);

/// A pool of workers by kinds, for any number of candidates.
pub(super) struct Pool {
    kinds: Vec<Kind>,
    whole: Held,
    /// How many workers hold some state.
    holders: u64,
    /// Where the parent has its workers.
    parent: BTreeMap<WorkerId, (usize, usize)>,
}

impl Pool {
    pub(super) fn new(planner: &CostPlanner, request: &PlanRequest, workers: &[&WorkerInfo]) -> Pool {
        let layout = &request.layout;
        let bytes = planner.unit_bytes();
        let mut kinds: BTreeMap<KindKey, Vec<&WorkerInfo>> = BTreeMap::new();
        for worker in workers {
            let held = request.held.get(&worker.id).map_or(&[][..], Vec::as_slice);
            let key = (
                held,
                planner.capacity(worker),
                Reverse(pace(worker.speed).to_bits()),
            );
            kinds.entry(key).or_default().push(worker);
        }
        let kinds = kinds.into_iter().map(|((held, capacity, pace), mut workers)| {
            workers.sort_by(|a, b| (&a.node, a.id).cmp(&(&b.node, b.id)));
            Kind {
                held: Held::new(layout, &bytes, held),
                capacity,
                pace: pace.0,
                workers: workers.into_iter().map(|w| w.id).collect(),
            }
        });
        let places = request.parent.iter().flat_map(|p| p.pipelines.iter().enumerate());
        let parent =
            places.flat_map(|(i, p)| p.stages.iter().enumerate().map(move |(j, s)| (s.worker, (i, j))));
        let all: Vec<Unit> = layout.all_units().collect();
        Pool {
            kinds: kinds.collect(),
            whole: Held::new(layout, &bytes, &all),
            holders: request.held.values().filter(|units| !units.is_empty()).count() as u64,
            parent: parent.collect(),
        }
    }

    /// Puts workers on the places of a candidate, what is best kept first: room for old and new state together, then most
    /// bytes kept, then the parent's place, then faster workers on earlier places.
    #[expect(clippy::cast_precision_loss, reason = "bytes of state")]
    pub(super) fn place(&self, planner: &CostPlanner, candidate: &Candidate, layout: &Layout) -> Placed {
        let (sites, numbers) = self.sites(planner, candidate);
        let mut pairs: Vec<(bool, Reverse<u64>, usize, usize)> = Vec::new();
        for (k, kind) in self.kinds.iter().enumerate() {
            for (s, site) in sites.iter().enumerate() {
                let kept = kind.held.of(layout, site.range);
                let crowded = site.need.saturating_add(kind.held.all() - kept) > kind.capacity;
                pairs.push((crowded, Reverse(kept), k, s));
            }
        }
        pairs.sort_unstable();
        let mut filling = Filling {
            chosen: vec![None; candidate.workers()],
            free: self
                .kinds
                .iter()
                .map(|k| k.workers.iter().copied().collect())
                .collect(),
            open: sites.iter().map(|s| s.places.iter().copied().collect()).collect(),
        };
        let mut placed = Placed {
            workers: Vec::new(),
            moved_bytes: 0,
            move_ms: 0.0,
            crowded: false,
        };
        let mut most = 0;
        for group in pairs.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (crowded, Reverse(kept), ..) = group[0];
            let taken = filling.fill(self, group, &numbers);
            placed.crowded |= crowded && !taken.is_empty();
            for site in taken {
                let lacking = self.whole.of(layout, sites[site].range) - kept;
                placed.moved_bytes += lacking;
                most = most.max(lacking);
            }
        }
        match placed.moved_bytes.checked_div(self.holders) {
            // Nobody holds anything: all state is made or loaded anyway.
            None => placed.moved_bytes = 0,
            Some(each) => {
                placed.move_ms = most.max(each) as f64 / planner.costs.device.bytes_per_s * 1e3;
            }
        }
        placed.workers = filling.chosen.into_iter().flatten().collect();
        placed
    }

    /// Places by kind, and the number of each place.
    fn sites(
        &self,
        planner: &CostPlanner,
        candidate: &Candidate,
    ) -> (Vec<Site>, BTreeMap<(usize, usize), usize>) {
        let mut kinds: BTreeMap<(SegmentRange, u64), Vec<usize>> = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        let mut needs: BTreeMap<(usize, usize, SegmentRange, u32), u64> = BTreeMap::new();
        let micro = candidate.micro_batch_size;
        for (i, p) in candidate.pipelines.iter().enumerate() {
            let n = u32::try_from(p.samples.div_ceil(u64::from(micro))).unwrap_or(u32::MAX);
            for (j, range) in p.stages.iter().enumerate() {
                let at = (p.stages.len(), j);
                let need = needs.entry((at.0, j, *range, n)).or_insert_with(|| {
                    planner.stage_bytes(candidate.schedule.kind, p.policies[j], *range, at, n, micro)
                });
                kinds.entry((*range, *need)).or_default().push(numbers.len());
                numbers.insert((i, j), numbers.len());
            }
        }
        let site = |((range, need), places)| Site { range, need, places };
        (kinds.into_iter().map(site).collect(), numbers)
    }
}

impl CostPlanner {
    /// State of each unit, the tied one last.
    pub(super) fn unit_bytes(&self) -> Vec<u64> {
        let own = self.costs.segments.iter().map(|s| s.parameters);
        let all = own.chain([self.costs.tied_parameters]);
        all.map(|parameters| parameters * STATE_BYTES).collect()
    }

    /// What each of a shape's workers lacks, and how many workers hold some state.
    fn lacking(&self, request: &PlanRequest, shape: &Shape) -> (Vec<u64>, u64) {
        let (layout, bytes) = (&request.layout, self.unit_bytes());
        let holders = request.held.values().filter(|units| !units.is_empty()).count() as u64;
        let lacks = |stage: &Stage| -> u64 {
            let held = request.held.get(&stage.worker).map_or(&[][..], Vec::as_slice);
            let lacking = layout
                .all_units()
                .filter(|u| layout.stage_holds(stage.segments, *u) && !held.contains(u));
            lacking.map(|u| bytes.get(u.index()).copied().unwrap_or(0)).sum()
        };
        let mut lacking: BTreeMap<WorkerId, u64> = BTreeMap::new();
        for stage in shape.pipelines.iter().flat_map(|p| &p.stages) {
            *lacking.entry(stage.worker).or_default() += lacks(stage);
        }
        (lacking.into_values().collect(), holders)
    }

    /// State that a shape's workers fetch ([`Placed::moved_bytes`]).
    pub(super) fn moved_bytes(&self, request: &PlanRequest, shape: &Shape) -> u64 {
        match self.lacking(request, shape) {
            (_, 0) => 0,
            (lacking, _) => lacking.iter().sum(),
        }
    }

    /// How long they fetch what they lack, at least ([`Placed::move_ms`]).
    #[expect(clippy::cast_precision_loss, reason = "bytes of state")]
    pub(super) fn move_ms(&self, request: &PlanRequest, shape: &Shape) -> f64 {
        let (lacking, holders) = self.lacking(request, shape);
        let most = lacking.iter().copied().max().unwrap_or(0);
        let each = lacking.iter().sum::<u64>().checked_div(holders);
        each.map_or(0.0, |each| {
            most.max(each) as f64 / self.costs.device.bytes_per_s * 1e3
        })
    }
}

/// Places with the same segments and the same need.
struct Site {
    range: SegmentRange,
    need: u64,
    /// Ascending.
    places: Vec<usize>,
}

/// Who is where, and what is left.
struct Filling {
    chosen: Vec<Option<WorkerId>>,
    /// By kind, in order.
    free: Vec<std::collections::VecDeque<WorkerId>>,
    /// By site.
    open: Vec<BTreeSet<usize>>,
}

impl Filling {
    /// Fills places of pairs of kind and site that are equally good; gives the site of each place that was filled.
    fn fill(
        &mut self,
        pool: &Pool,
        group: &[(bool, Reverse<u64>, usize, usize)],
        numbers: &BTreeMap<(usize, usize), usize>,
    ) -> Vec<usize> {
        let mut taken = Vec::new();
        let mut of_kind: BTreeMap<(Reverse<u64>, usize), Vec<usize>> = BTreeMap::new();
        for (_, _, k, s) in group {
            if !self.free[*k].is_empty() && !self.open[*s].is_empty() {
                of_kind
                    .entry((Reverse(pool.kinds[*k].pace), *k))
                    .or_default()
                    .push(*s);
            }
        }
        // Who can stay where the parent has it, stays.
        for ((_, k), sites) in &of_kind {
            let (open, chosen) = (&mut self.open, &mut self.chosen);
            self.free[*k].retain(|worker| {
                let place = pool.parent.get(worker).and_then(|at| numbers.get(at));
                let site = place.and_then(|n| sites.iter().find(|s| open[**s].remove(n)));
                if let (Some(n), Some(site)) = (place, site) {
                    chosen[*n] = Some(*worker);
                    taken.push(*site);
                }
                site.is_none()
            });
        }
        for ((_, k), sites) in &of_kind {
            let mut open: Vec<(usize, usize)> = Vec::new();
            for s in sites {
                open.extend(self.open[*s].iter().map(|n| (*n, *s)));
            }
            open.sort_unstable();
            for (n, s) in open {
                let Some(worker) = self.free[*k].pop_front() else {
                    break;
                };
                self.chosen[n] = Some(worker);
                self.open[s].remove(&n);
                taken.push(s);
            }
        }
        taken
    }
}

/// Workers of the node that has most.
pub(super) fn fullest_node(workers: &[WorkerInfo]) -> usize {
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for worker in workers {
        *nodes.entry(worker.node.as_str()).or_default() += 1;
    }
    nodes.into_values().max().unwrap_or(1)
}
