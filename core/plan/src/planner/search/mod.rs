//! The search for candidates: which depths, how many pipelines of each, cut where, with which share of the batch.
//!
//! For each pool of workers ([`pools`]) the model is cut for every depth ([`partitions`]), every composition of depths is scored
//! in closed form ([`composition`], [`screening`]), and the best are simulated ([`short_list`]). [`choice`] decides among all.

pub(super) mod choice;
pub(super) mod composition;
pub(super) mod partitions;
pub(super) mod pools;
pub(super) mod screening;
pub(super) mod short_list;

use super::candidate::Candidate;
use super::problem::Problem;
use super::request::WorkerInfo;
use partitions::{PartitionSet, Partitioner};
use screening::Screening;

/// What was found for one pool of workers.
pub(super) struct PoolSearch<'w> {
    pub(super) workers: Vec<&'w WorkerInfo>,
    pub(super) sets: Vec<PartitionSet>,
    screening: Screening,
    /// Simulated compositions.
    pub(super) candidates: Vec<Candidate>,
}

impl PoolSearch<'_> {
    /// The least number of workers above `used` that some good composition uses, and its score.
    pub(super) fn best_above(&self, used: usize) -> Option<(usize, f64)> {
        self.screening.best_above(used)
    }

    /// Compositions that were scored.
    pub(super) fn scored(&self) -> u64 {
        self.screening.scored
    }
}

/// Searches all pools, that of all workers first.
pub(super) fn search<'w>(problem: Problem, workers: &'w [WorkerInfo]) -> Vec<PoolSearch<'w>> {
    let pools = pools::pools(&problem, workers).into_iter();
    pools
        .map(|workers| {
            let partitioner = Partitioner::new(problem, &workers);
            let sets = partitioner.sets();
            let screening = Screening::new(&partitioner, &sets);
            let candidates = short_list::simulate(&partitioner, &sets, &screening);
            PoolSearch {
                workers,
                sets,
                screening,
                candidates,
            }
        })
        .collect()
}
