//! Chooses among candidates: first what trains most until the next change, then redundancy, then little movement of state.

use super::PoolSearch;
use crate::document::Shape;
use crate::planner::candidate::Candidate;
use crate::planner::placement::{Placed, WorkerPool};
use crate::planner::problem::Problem;
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Predictions within this factor count as equal; then redundancy and little movement decide.
pub(in crate::planner) const EQUAL: f64 = 1.01;

/// No plan is preferred for having more holders of each segment than this. Spot nodes are often lost several at a time: with two holders of
/// each segment, such a loss often takes both of one, and the run goes back to a checkpoint. With three it rarely takes all.
const HOLDERS: usize = 3;

/// The criteria among equally fast candidates: smaller is better, the first field first.
#[derive(PartialEq, PartialOrd)]
struct Preference {
    /// Whether some worker cannot hold its old and new state together.
    exceeds_memory: bool,
    /// How many holders a segment lacks.
    missing_holders: usize,
    moved_bytes: u64,
    effective_ms: f64,
    workers: usize,
}

/// How many holders each segment lacks if there are so many pipelines, each of which holds all segments.
pub(in crate::planner) fn missing_holders(pipelines: usize) -> usize {
    if bug!(IgnoreRedundancy) {
        return 0;
    }
    HOLDERS.saturating_sub(pipelines)
}

/// The candidate to take, with its workers: the most preferred of those within [`EQUAL`] of the best. If state must arrive in time, it is
/// chosen among those for which it does.
pub(in crate::planner) fn choose(
    problem: &Problem,
    pools: &[PoolSearch],
    workers: usize,
) -> Option<(Candidate, Placed)> {
    let all = pools.iter().enumerate();
    let found: Vec<(usize, &Candidate)> = all
        .flat_map(|(i, pool)| pool.candidates.iter().map(move |c| (i, c)))
        .collect();
    let mut quickest: Vec<usize> = (0..found.len()).collect();
    quickest.sort_by(|a, b| found[*a].1.step_ms.total_cmp(&found[*b].1.step_ms));
    let mut worker_pools: BTreeMap<usize, WorkerPool> = BTreeMap::new();
    let mut judged: Vec<(f64, usize, Placed)> = Vec::new();
    let (mut best, mut fewer) = (f64::INFINITY, f64::INFINITY);
    for i in quickest {
        let (pool, candidate) = found[i];
        // A move only adds time, so slower candidates cannot win any more.
        if candidate.step_ms > best * EQUAL {
            break;
        }
        let worker_pool = worker_pools.entry(pool);
        let worker_pool = worker_pool.or_insert_with(|| WorkerPool::new(problem, &pools[pool].workers));
        let placed = worker_pool.place(problem, candidate);
        if !placed.is_in_time {
            continue;
        }
        let effective_ms = problem.effective_step_ms(candidate.step_ms, placed.move_ms);
        best = best.min(effective_ms);
        if candidate.workers() < workers {
            fewer = fewer.min(effective_ms);
        }
        judged.push((effective_ms, i, placed));
    }
    // One more worker must never make the step longer, so what fewer workers reach is also a limit.
    let fewer = if bug!(MoreMayBeSlower) {
        f64::INFINITY
    } else {
        fewer
    };
    let limit = fewer.min(best * EQUAL).max(best);
    // Among equals take the first: pools go from all workers to few.
    judged.sort_by_key(|(_, i, _)| *i);
    let near = judged.into_iter().filter(|(ms, ..)| *ms <= limit);
    let ranked = near.map(|(effective_ms, i, placed)| {
        let preference = Preference {
            exceeds_memory: placed.exceeds_memory && !bug!(IgnoreCrowding),
            missing_holders: missing_holders(found[i].1.pipelines().len()),
            moved_bytes: if bug!(MoveFreely) { 0 } else { placed.moved_bytes },
            effective_ms,
            workers: placed.workers.len(),
        };
        (preference, i, placed)
    });
    let least = ranked.min_by(|(a, ..), (b, ..)| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    least.map(|(_, i, placed)| (found[i].1.clone(), placed))
}

/// The fastest candidate that was found for the pool of all workers, on its workers.
pub(in crate::planner) fn fastest_of_all(problem: &Problem, pools: &[PoolSearch]) -> Option<Shape> {
    let all = pools.first()?;
    let by_step = |a: &&Candidate, b: &&Candidate| a.step_ms.total_cmp(&b.step_ms);
    let best = all.candidates.iter().min_by(by_step)?;
    let placed = WorkerPool::new(problem, &all.workers).place(problem, best);
    Some(best.shape(&placed.workers, placed.move_ms, problem.costs.calibrated))
}

#[cfg(test)]
mod tests;
