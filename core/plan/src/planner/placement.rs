//! Placement: which worker runs which stage of a candidate, so that state stays where it is.
//!
//! Workers of one kind (same state held, memory and speed) and positions of one kind (same segments and need) are matched kind
//! by kind: there are few kinds, whatever the number of workers.

use super::candidate::Candidate;
use super::problem::Problem;
use super::request::WorkerInfo;
use super::state_moves::{fetch_ms, holders, unit_bytes};
use crate::ids::{Unit, WorkerId};
use crate::layout::{Layout, SegmentRange};
use crate::predict::work::rounded_speed;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Workers on the stages of a candidate.
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
        let whole = |unit: Unit| -> u64 { layout.ranges_of(unit).map(of).sum() };
        let mut before = vec![0];
        for s in 0..layout.segments {
            before.push(before[s as usize] + whole(Unit(s)));
        }
        Held {
            before,
            tied: layout.tied_unit().map_or(0, whole),
        }
    }

    fn of(&self, layout: &Layout, range: SegmentRange) -> u64 {
        let ends = layout
            .tied_unit()
            .is_some_and(|t| layout.undivided().stage_needs(range, t));
        self.before[range.end as usize] - self.before[range.start as usize] + if ends { self.tied } else { 0 }
    }

    fn all(&self) -> u64 {
        self.before.last().copied().unwrap_or(0) + self.tied
    }
}

/// About what a worker holds of so many bytes of state, which so many pipelines share out.
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
    /// In order of domain, node, then id: neighbours in a pipeline share a node where they can, else a rack or a zone, and what several pipelines
    /// hold is in several of them as far as each pipeline fits into one.
    workers: Vec<WorkerId>,
}

/// What tells kinds apart: state held, memory, speed.
type KindKey<'a> = (&'a [Unit], u64, Reverse<u64>);

/// A pool of workers by kinds, for any number of candidates.
pub(super) struct WorkerPool {
    kinds: Vec<Kind>,
    whole: Held,
    /// How many workers hold some state.
    holders: u64,
    /// Where the parent has its workers.
    parent: BTreeMap<WorkerId, (usize, usize)>,
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
        let pipelines = request.parent.iter().flat_map(|p| p.pipelines.iter().enumerate());
        let parent =
            pipelines.flat_map(|(i, p)| p.stages.iter().enumerate().map(move |(j, s)| (s.worker, (i, j))));
        let all: Vec<Unit> = layout.all_units().collect();
        WorkerPool {
            kinds: kinds.collect(),
            whole: Held::new(layout, &bytes, &all),
            holders: holders(problem),
            parent: parent.collect(),
        }
    }

    /// Puts workers on the stages of a candidate, what is best kept first: room for old and new state together, then most
    /// bytes kept, then the parent's position, then faster workers on earlier positions.
    pub(super) fn place(&self, problem: &Problem, candidate: &Candidate) -> Placed {
        let layout = &problem.request.layout;
        let pipelines = candidate.pipelines().len();
        let (sites, numbers) = positions(problem, candidate);
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
            open: sites
                .iter()
                .map(|s| s.numbers.iter().copied().collect())
                .collect(),
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
                let needed = shared_out(layout, self.whole.of(layout, sites[site].range), pipelines);
                let lacking = needed.saturating_sub(kept);
                placed.moved_bytes += lacking;
                most = most.max(lacking);
            }
        }
        placed.move_ms = fetch_ms(problem, most, placed.moved_bytes, self.holders);
        if self.holders == 0 {
            // All state is made or loaded anyway.
            placed.moved_bytes = 0;
        }
        placed.workers = filling.chosen.into_iter().flatten().collect();
        placed
    }
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

/// Positions with the same segments and the same need.
struct Positions {
    range: SegmentRange,
    need: u64,
    /// Ascending.
    numbers: Vec<usize>,
}

/// Which worker is on which position, and what is left of both.
struct Filling {
    chosen: Vec<Option<WorkerId>>,
    /// By kind, in order.
    free: Vec<std::collections::VecDeque<WorkerId>>,
    /// By kind of position.
    open: Vec<BTreeSet<usize>>,
}

impl Filling {
    /// Fills positions of pairs of kinds that are equally good; gives the kind of each position that was filled.
    fn fill(
        &mut self,
        pool: &WorkerPool,
        group: &[(bool, Reverse<u64>, usize, usize)],
        numbers: &BTreeMap<(usize, usize), usize>,
    ) -> Vec<usize> {
        let mut taken = Vec::new();
        let mut of_kind: BTreeMap<(Reverse<u64>, usize), Vec<usize>> = BTreeMap::new();
        for (_, _, k, s) in group {
            if !self.free[*k].is_empty() && !self.open[*s].is_empty() {
                of_kind
                    .entry((Reverse(pool.kinds[*k].speed), *k))
                    .or_default()
                    .push(*s);
            }
        }
        // A worker that can stay where the parent has it, stays.
        for ((_, k), sites) in &of_kind {
            let (open, chosen) = (&mut self.open, &mut self.chosen);
            self.free[*k].retain(|worker| {
                let parent = pool.parent.get(worker).filter(|_| !bug!(ForgetPlaces));
                let number = parent.and_then(|at| numbers.get(at));
                let site = number.and_then(|n| sites.iter().find(|s| open[**s].remove(n)));
                if let (Some(n), Some(site)) = (number, site) {
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
