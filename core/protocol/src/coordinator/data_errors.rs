//! Finds workers that cannot read the job's data, or the code of an exported model, while others can. Both are called data here.
//!
//! Each step for which such a worker has to read data fails, yet the worker answers each fence, so the same plan would be made again and
//! again. If nobody can read, the store is slow or unavailable, and no worker is to blame.

use std::collections::{BTreeMap, BTreeSet};
use varuna_plan::{Generation, WorkerId};

/// Number of generations in a row in which a worker must fail to read: a store may be slow for a moment.
const FENCES: u32 = 3;

/// What workers have reported about their data.
#[derive(Default)]
pub(super) struct DataErrors {
    /// The last generation in which a worker reported that its data cannot be read.
    generation: Generation,
    /// The workers that reported it.
    said: BTreeSet<WorkerId>,
    /// Whether this generation was judged; later reports about it come too late.
    judged: bool,
    /// For each worker: the number of generations in which it could not read while others could, and in which no step was committed with
    /// it.
    fences: BTreeMap<WorkerId, u32>,
}

/// What follows from a generation.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Finding {
    /// Nothing follows, or not yet.
    Nothing,
    /// No worker could read.
    NobodyReads,
    /// These workers are not used as readers for a while.
    LeaveOut(Vec<WorkerId>),
}

impl DataErrors {
    /// The last generation in which a worker reported that its data cannot be read.
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// The worker reports that it could not read in this generation.
    pub(super) fn note(&mut self, generation: Generation, worker: WorkerId) {
        if generation > self.generation {
            self.generation = generation;
            self.said.clear();
            self.judged = false;
        }
        if generation == self.generation {
            self.said.insert(worker);
        }
    }

    /// The generation has stopped. `readers` are the workers that answered and had to read in it; those that did not report otherwise can
    /// read. A worker is blamed only if at least as many can read as cannot: when a store is unavailable, some workers may have read what
    /// they needed before.
    pub(super) fn judge(&mut self, readers: &BTreeSet<WorkerId>) -> Finding {
        if std::mem::replace(&mut self.judged, true) || self.said.is_empty() {
            return Finding::Nothing;
        }
        let can = readers.difference(&self.said).count();
        let blames_all = bug!(LeaveOutAllReaders);
        if can == 0 && !blames_all {
            self.fences.clear();
            return Finding::NobodyReads;
        }
        if can < self.said.len() && !blames_all {
            return Finding::Nothing;
        }
        let mut left_out = Vec::new();
        for worker in &self.said {
            let fences = self.fences.entry(*worker).or_default();
            *fences = fences.saturating_add(1);
            if *fences >= FENCES {
                left_out.push(*worker);
            }
        }
        Finding::LeaveOut(left_out)
    }

    /// A step was committed in which these workers took part. A worker that is left out meanwhile has proved nothing: it is left out again
    /// at once if it still cannot read.
    pub(super) fn committed(&mut self, took_part: impl Fn(WorkerId) -> bool) {
        self.fences.retain(|worker, _| !took_part(*worker));
    }

    /// The worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.fences.remove(&worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(1);
    const B: WorkerId = WorkerId(2);
    const C: WorkerId = WorkerId(3);

    /// The generation fails, and all workers answer.
    fn fails(data_errors: &mut DataErrors, generation: u64, lacking: &[WorkerId]) -> Finding {
        for worker in lacking {
            data_errors.note(Generation(generation), *worker);
        }
        data_errors.judge(&BTreeSet::from([A, B, C]))
    }

    fn nobody() -> Finding {
        Finding::LeaveOut(vec![])
    }

    #[test]
    fn each_generation_counts_once() {
        let mut data_errors = DataErrors::default();
        for generation in 1..3 {
            assert_eq!(fails(&mut data_errors, generation, &[B]), nobody());
            assert_eq!(fails(&mut data_errors, generation, &[B, C]), Finding::Nothing);
        }
        assert_eq!(fails(&mut data_errors, 2, &[B]), Finding::Nothing);
        assert_eq!(fails(&mut data_errors, 1, &[C]), Finding::Nothing, "an older one");
        assert_eq!(fails(&mut data_errors, 3, &[B]), Finding::LeaveOut(vec![B]));
        assert_eq!(fails(&mut data_errors, 4, &[]), Finding::Nothing);
    }

    #[test]
    fn as_many_have_to_read_as_cannot() {
        let mut data_errors = DataErrors::default();
        for generation in 1..6 {
            let found = fails(&mut data_errors, generation, &[B, C]);
            assert_eq!(found, Finding::Nothing);
        }
        assert_eq!(fails(&mut data_errors, 6, &[A, B, C]), Finding::NobodyReads);
        // Two workers in the middle of pipelines, which read data if documents are packed.
        let middle = [WorkerId(8), WorkerId(9)];
        for generation in 7..9 {
            assert_eq!(fails(&mut data_errors, generation, &middle), nobody());
        }
        assert_eq!(
            fails(&mut data_errors, 9, &middle),
            Finding::LeaveOut(middle.to_vec())
        );
    }

    #[test]
    fn a_commit_absolves_those_who_took_part_in_it() {
        let mut data_errors = DataErrors::default();
        for generation in 1..4 {
            fails(&mut data_errors, generation, &[B]);
        }
        data_errors.committed(|worker| worker != B);
        assert_eq!(fails(&mut data_errors, 4, &[B]), Finding::LeaveOut(vec![B]));
        data_errors.committed(|_| true);
        assert_eq!(fails(&mut data_errors, 5, &[B]), nobody());
    }
}
