//! Puts workers on positions, for one group of equally good pairs of kinds at a time.
//!
//! A worker that can stay at its position in the parent stays; the others take the remaining positions, in order. The last copy of a stage
//! is an exception: if all others are on one node, or in one zone, it goes to an equally good worker in another place that has no position
//! of its own.

use super::WorkerPool;
use crate::ids::WorkerId;
use crate::planner::locations::{Common, Copies};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Neither node nor zone in common.
const NOTHING: Common = (false, false);

/// Kinds of workers by speed, faster ones first, and the kinds of positions that each may have.
pub(super) type WorkersByKind = BTreeMap<(Reverse<u64>, usize), Vec<usize>>;

/// The copies of one range of segments.
#[derive(Clone, Copy, Default)]
struct Stage {
    /// Number of copies without a worker yet.
    open: usize,
    copies: Copies,
}

/// Which worker is on which position, and which workers and positions remain.
pub(super) struct Filling<'a> {
    pool: &'a WorkerPool,
    /// The number of each (pipeline, stage).
    numbers: &'a BTreeMap<(usize, usize), usize>,
    pub(super) chosen: Vec<Option<WorkerId>>,
    /// The free workers of each kind, in order.
    free: Vec<VecDeque<WorkerId>>,
    /// The open position numbers of each kind of position.
    open: Vec<BTreeSet<usize>>,
    /// For each kind of position, the stage that it is a copy of.
    stage_of: Vec<usize>,
    stages: Vec<Stage>,
}

impl<'a> Filling<'a> {
    /// All positions are open. `open` has, for each kind of position, the stage that it is a copy of and its position numbers.
    pub(super) fn new(
        pool: &'a WorkerPool,
        numbers: &'a BTreeMap<(usize, usize), usize>,
        open: Vec<(usize, BTreeSet<usize>)>,
    ) -> Filling<'a> {
        let count = open.iter().map(|(stage, _)| stage + 1).max().unwrap_or(0);
        let mut stages = vec![Stage::default(); count];
        for (stage, positions) in &open {
            stages[*stage].open += positions.len();
        }
        let (stage_of, open): (Vec<usize>, Vec<BTreeSet<usize>>) = open.into_iter().unzip();
        Filling {
            pool,
            numbers,
            chosen: vec![None; numbers.len()],
            free: pool
                .kinds
                .iter()
                .map(|k| k.workers.iter().copied().collect())
                .collect(),
            open,
            stage_of,
            stages,
        }
    }

    /// Fills positions for pairs of kinds that are equally good. Returns the kind of each position that was filled.
    pub(super) fn fill(&mut self, group: &[(bool, Reverse<u64>, usize, usize)]) -> Vec<usize> {
        let mut taken = Vec::new();
        let mut by_kind = WorkersByKind::new();
        for (_, _, k, s) in group {
            if !self.free[*k].is_empty() && !self.open[*s].is_empty() {
                by_kind
                    .entry((Reverse(self.pool.kinds[*k].speed), *k))
                    .or_default()
                    .push(*s);
            }
        }
        // The second round is for positions that waited for a worker in another place, which then took another position.
        for is_patient in [true, false] {
            let mut waits = self.stay(&by_kind, is_patient, &mut taken);
            waits |= self.take_over(&by_kind, is_patient, &mut taken);
            if !waits {
                break;
            }
        }
        taken
    }

    /// Places workers that can stay at their position in the parent. Returns whether some of them did not stay, for the sake of the other
    /// copies.
    fn stay(&mut self, by_kind: &WorkersByKind, is_patient: bool, taken: &mut Vec<usize>) -> bool {
        let mut waits = false;
        if self.pool.parent.is_empty() {
            return waits;
        }
        for ((speed, k), sites) in by_kind {
            let mut left = VecDeque::new();
            for worker in self.free[*k].clone() {
                let number = self.parents_number(worker);
                let site = number.and_then(|n| sites.iter().copied().find(|s| self.open[*s].contains(&n)));
                let (Some(number), Some(site)) = (number, site) else {
                    left.push_back(worker);
                    continue;
                };
                if is_patient && self.has_better_worker(by_kind, *speed, site, self.common(worker, site)) {
                    waits = true;
                    left.push_back(worker);
                    continue;
                }
                self.put(worker, number, site);
                taken.push(site);
            }
            self.free[*k] = left;
        }
        waits
    }

    /// Places free workers on open positions, both in order. Returns whether something was left for a worker of another kind.
    fn take_over(&mut self, by_kind: &WorkersByKind, is_patient: bool, taken: &mut Vec<usize>) -> bool {
        let mut waits = false;
        for ((speed, k), sites) in by_kind {
            let mut open: Vec<(usize, usize)> = Vec::new();
            for s in sites {
                open.extend(self.open[*s].iter().map(|n| (*n, *s)));
            }
            open.sort_unstable();
            for (number, site) in open {
                let at = if is_patient { self.farthest(*k, site) } else { 0 };
                let Some(worker) = self.free[*k].get(at).copied() else {
                    break;
                };
                if is_patient && self.has_better_worker(by_kind, *speed, site, self.common(worker, site)) {
                    waits = true;
                    continue;
                }
                self.free[*k].remove(at);
                self.put(worker, number, site);
                taken.push(site);
            }
        }
        waits
    }

    fn put(&mut self, worker: WorkerId, number: usize, site: usize) {
        self.chosen[number] = Some(worker);
        self.open[site].remove(&number);
        let stage = &mut self.stages[self.stage_of[site]];
        stage.open -= 1;
        stage.copies.add(self.pool.locations.of(worker));
    }

    /// The position of a worker in the parent, if this candidate has that position.
    fn parents_number(&self, worker: WorkerId) -> Option<usize> {
        let parent = self.pool.parent.get(&worker).filter(|_| !bug!(ForgetPlaces));
        parent.and_then(|at| self.numbers.get(at)).copied()
    }

    /// What all copies of a stage would have in common if the last one were on this worker; nothing as long as other copies are still open.
    fn common(&self, worker: WorkerId, site: usize) -> Common {
        let stage = &self.stages[self.stage_of[site]];
        if stage.open > 1 || self.pool.locations.are_unknown() || bug!(CopiesShareNode) {
            return NOTHING;
        }
        stage.copies.common_with(self.pool.locations.of(worker))
    }

    /// Among the free workers of a kind, the first of those that have least in common with the other copies: either the first of all, or
    /// one without a position of its own.
    fn farthest(&self, kind: usize, site: usize) -> usize {
        let free = &self.free[kind];
        let mut best = (0, free.front().map_or(NOTHING, |w| self.common(*w, site)));
        for (at, worker) in free.iter().enumerate().skip(1) {
            if best.1 == NOTHING {
                break;
            }
            let common = self.common(*worker, site);
            if common < best.1 && self.parents_number(*worker).is_none() {
                best = (at, common);
            }
        }
        best.0
    }

    /// Whether there is a free worker that is as good and as fast, has no position of its own, and would have less in common with the other
    /// copies than `common`.
    fn has_better_worker(
        &self,
        by_kind: &WorkersByKind,
        speed: Reverse<u64>,
        site: usize,
        common: Common,
    ) -> bool {
        if common == NOTHING {
            return false;
        }
        let same = by_kind
            .iter()
            .filter(|((other, _), sites)| *other == speed && sites.contains(&site));
        let mut free = same.flat_map(|((_, k), _)| &self.free[*k]);
        free.any(|w| self.parents_number(*w).is_none() && self.common(*w, site) < common)
    }
}
