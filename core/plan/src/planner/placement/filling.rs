//! Workers put on positions, pairs of kinds that are equally good at a time.
//!
//! A worker that can stay where the parent has it, stays; the others take what is left, in order. The last copy of a stage is the exception: where all
//! others are on one node, or in one zone, it goes to a worker somewhere else that is as good and has no place of its own.

use super::WorkerPool;
use crate::ids::WorkerId;
use crate::planner::locations::{Common, Copies};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Nothing in common.
const NOTHING: Common = (false, false);

/// A kind of workers by its speed, faster ones first, and the kinds of positions that it may have.
pub(super) type OfKind = BTreeMap<(Reverse<u64>, usize), Vec<usize>>;

/// The copies of one range of segments.
#[derive(Clone, Copy, Default)]
struct Stage {
    /// Without a worker yet.
    open: usize,
    copies: Copies,
}

/// Which worker is on which position, and what is left of both.
pub(super) struct Filling<'a> {
    pool: &'a WorkerPool,
    /// The number of each (pipeline, stage).
    numbers: &'a BTreeMap<(usize, usize), usize>,
    pub(super) chosen: Vec<Option<WorkerId>>,
    /// By kind, in order.
    free: Vec<VecDeque<WorkerId>>,
    /// By kind of position.
    open: Vec<BTreeSet<usize>>,
    /// By kind of position: which of the stages it is a copy of.
    stage_of: Vec<usize>,
    stages: Vec<Stage>,
}

impl<'a> Filling<'a> {
    /// Everything is open: of each kind of position these numbers, which are copies of this stage.
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

    /// Fills positions of pairs of kinds that are equally good; gives the kind of each position that was filled.
    pub(super) fn fill(&mut self, group: &[(bool, Reverse<u64>, usize, usize)]) -> Vec<usize> {
        let mut taken = Vec::new();
        let mut of_kind = OfKind::new();
        for (_, _, k, s) in group {
            if !self.free[*k].is_empty() && !self.open[*s].is_empty() {
                of_kind
                    .entry((Reverse(self.pool.kinds[*k].speed), *k))
                    .or_default()
                    .push(*s);
            }
        }
        // Once more for what waits for a worker somewhere else that then took another position.
        for is_patient in [true, false] {
            let mut waits = self.stay(&of_kind, is_patient, &mut taken);
            waits |= self.take_over(&of_kind, is_patient, &mut taken);
            if !waits {
                break;
            }
        }
        taken
    }

    /// Workers that can stay where the parent has them. Returns whether some could and did not, for the sake of the other copies.
    fn stay(&mut self, of_kind: &OfKind, is_patient: bool, taken: &mut Vec<usize>) -> bool {
        let mut waits = false;
        if self.pool.parent.is_empty() {
            return waits;
        }
        for ((speed, k), sites) in of_kind {
            let mut left = VecDeque::new();
            for worker in self.free[*k].clone() {
                let number = self.parents_number(worker);
                let site = number.and_then(|n| sites.iter().copied().find(|s| self.open[*s].contains(&n)));
                let (Some(number), Some(site)) = (number, site) else {
                    left.push_back(worker);
                    continue;
                };
                if is_patient && self.is_better_somewhere(of_kind, *speed, site, self.common(worker, site)) {
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

    /// Workers on what is open, both in order. Returns whether something was left for a worker of another kind.
    fn take_over(&mut self, of_kind: &OfKind, is_patient: bool, taken: &mut Vec<usize>) -> bool {
        let mut waits = false;
        for ((speed, k), sites) in of_kind {
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
                if is_patient && self.is_better_somewhere(of_kind, *speed, site, self.common(worker, site)) {
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

    /// The position at which the parent has a worker, where this candidate has one there.
    fn parents_number(&self, worker: WorkerId) -> Option<usize> {
        let parent = self.pool.parent.get(&worker).filter(|_| !bug!(ForgetPlaces));
        parent.and_then(|at| self.numbers.get(at)).copied()
    }

    /// What all copies of a stage would have in common, were the last one on this worker; nothing as long as there are others to come.
    fn common(&self, worker: WorkerId, site: usize) -> Common {
        let stage = &self.stages[self.stage_of[site]];
        if stage.open > 1 || self.pool.locations.are_unknown() || bug!(CopiesShareNode) {
            return NOTHING;
        }
        stage.copies.common_with(self.pool.locations.of(worker))
    }

    /// Of the free workers of a kind the first of those that would have least in common with the other copies: the first of all, or one without a place
    /// of its own.
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

    /// Whether a free worker that is as good and as fast, and has no place of its own, would have less in common with the other copies than this.
    fn is_better_somewhere(
        &self,
        of_kind: &OfKind,
        speed: Reverse<u64>,
        site: usize,
        common: Common,
    ) -> bool {
        if common == NOTHING {
            return false;
        }
        let same = of_kind
            .iter()
            .filter(|((other, _), sites)| *other == speed && sites.contains(&site));
        let mut free = same.flat_map(|((_, k), _)| &self.free[*k]);
        free.any(|w| self.parents_number(*w).is_none() && self.common(*w, site) < common)
    }
}
