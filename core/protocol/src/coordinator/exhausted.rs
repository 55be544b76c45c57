//! Workers that ran out of memory under a plan that should have fit: the plan takes more than the planner reckons, or the device has less
//! than its worker reported.
//!
//! A step for which the device has no memory fails, and its worker answers the fence. Once may be chance, for example memory in pieces. But
//! the same plan would be made again and again. So a worker that runs out in two generations in a row is planned with less than the plan
//! took, and with still less whenever it runs out again. The worker itself ends if it runs out too often in a row. One that is started again in its
//! place has the same device, and is planned with no more.

use std::collections::BTreeMap;
use varuna_plan::{Generation, WorkerId};

/// Number of generations in a row in which a worker must run out of memory before it is planned with less.
const FENCES: u32 = 2;
/// One part in this many is taken off what the plan takes. Large enough that a few plans find one that fits, small enough that little
/// memory is left unused after that.
const PART: u64 = 8;

/// What is known of a worker that ran out of memory.
#[derive(Clone, Copy, Default)]
struct Shortage {
    /// The last generation in which it ran out.
    generation: Generation,
    /// The number of generations in which it ran out, and in which no step was committed with it.
    fences: u32,
    /// The most that it is planned with, bytes.
    limit: Option<u64>,
}

/// The workers that ran out of memory. Nearly always empty.
#[derive(Default)]
pub(super) struct Exhausted(BTreeMap<WorkerId, Shortage>);

impl Exhausted {
    /// The worker ran out in this generation, whose plan takes `planned` bytes of it as the planner reckons.
    pub(super) fn note(&mut self, generation: Generation, worker: WorkerId, planned: Option<u64>) {
        let known = self.0.entry(worker).or_default();
        if generation <= known.generation {
            return; // it is said again
        }
        known.generation = generation;
        known.fences = known.fences.saturating_add(1);
        let again = known.fences >= FENCES || known.limit.is_some();
        if let Some(planned) = planned.filter(|_| again && !bug!(SameWorkWithoutMemory)) {
            let less = planned.saturating_sub((planned / PART).max(1));
            known.limit = Some(known.limit.map_or(less, |before| before.min(less)));
        }
    }

    /// A step was committed in which these workers took part. What they are planned with stays: it was enough.
    pub(super) fn committed(&mut self, took_part: impl Fn(WorkerId) -> bool) {
        for (worker, known) in &mut self.0 {
            if took_part(*worker) {
                known.fences = 0;
            }
        }
    }

    /// A worker has come that is new, in the place of those for which `was_here` holds. It is planned with no more than any of them.
    pub(super) fn inherit(&mut self, worker: WorkerId, was_here: impl Fn(WorkerId) -> bool) {
        let before = self.0.iter().filter(|(gone, _)| was_here(**gone));
        let limit = before.filter_map(|(_, known)| known.limit).min();
        if limit.is_some() {
            self.0.entry(worker).or_default().limit = limit;
        }
    }

    /// The worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.0.remove(&worker);
    }

    /// What a worker is planned with that reported this.
    pub(super) fn planned_with(&self, worker: WorkerId, reported: Option<u64>) -> Option<u64> {
        [self.limit(worker), reported].into_iter().flatten().min()
    }

    /// The most that it is planned with, if that is limited.
    pub(super) fn limit(&self, worker: WorkerId) -> Option<u64> {
        self.0.get(&worker)?.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(1);
    const B: WorkerId = WorkerId(2);

    #[test]
    fn from_the_second_time_in_a_row_running_out_lowers_the_limit() {
        let mut exhausted = Exhausted::default();
        for _ in 0..3 {
            exhausted.note(Generation(1), A, Some(800));
            assert_eq!(exhausted.planned_with(A, Some(1000)), Some(1000), "once");
        }
        exhausted.note(Generation(2), A, Some(800));
        assert_eq!(exhausted.planned_with(A, Some(1000)), Some(700));
        assert_eq!(exhausted.planned_with(A, None), Some(700));
        assert_eq!(exhausted.planned_with(A, Some(600)), Some(600));
        exhausted.note(Generation(3), A, Some(640));
        assert_eq!(exhausted.planned_with(A, Some(1000)), Some(560));
        // Under a plan that takes more, since there is no other.
        exhausted.note(Generation(4), A, Some(800));
        assert_eq!(exhausted.planned_with(A, Some(1000)), Some(560));
        assert_eq!(exhausted.planned_with(B, Some(1000)), Some(1000));
        exhausted.forget(A);
        assert_eq!(exhausted.planned_with(A, Some(1000)), Some(1000));
    }

    #[test]
    fn a_commit_absolves_who_took_part_and_gives_nothing_back() {
        let mut exhausted = Exhausted::default();
        let run_out = |exhausted: &mut Exhausted, generation| {
            exhausted.note(Generation(generation), A, Some(800));
            exhausted.planned_with(A, Some(1000))
        };
        assert_eq!(run_out(&mut exhausted, 1), Some(1000));
        exhausted.committed(|_| true);
        assert_eq!(run_out(&mut exhausted, 2), Some(1000));
        exhausted.committed(|worker| worker != A);
        assert_eq!(run_out(&mut exhausted, 3), Some(700));
        exhausted.committed(|_| true);
        assert_eq!(exhausted.planned_with(A, Some(1000)), Some(700));
    }

    #[test]
    fn a_replacement_has_no_more_than_the_least_it_replaces() {
        let mut exhausted = Exhausted::default();
        for generation in 1..3 {
            exhausted.note(Generation(generation), A, Some(800));
            exhausted.note(Generation(generation), B, Some(640));
        }
        let (new, other, none) = (WorkerId(3), WorkerId(4), WorkerId(5));
        exhausted.inherit(new, |_| true);
        assert_eq!(exhausted.limit(new), Some(560));
        exhausted.inherit(other, |gone| gone == A);
        assert_eq!(exhausted.planned_with(other, Some(1000)), Some(700));
        exhausted.inherit(none, |_| false);
        assert_eq!(exhausted.limit(none), None);
        // From then on it is as any worker that is planned with less.
        exhausted.note(Generation(3), other, Some(640));
        assert_eq!(exhausted.limit(other), Some(560));
        assert_eq!(exhausted.limit(A), Some(700));
    }

    #[test]
    fn nothing_follows_if_the_planner_does_not_know_a_plans_memory() {
        let mut exhausted = Exhausted::default();
        for generation in 1..5 {
            exhausted.note(Generation(generation), A, None);
            assert_eq!(exhausted.planned_with(A, Some(1000)), Some(1000));
        }
    }
}
