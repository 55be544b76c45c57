//! The pools of workers from which a plan may be made: all workers, or those with enough memory and speed.

use crate::planner::problem::Problem;
use crate::planner::request::WorkerInfo;
use crate::predict::work::rounded_speed;

/// At most four of the sorted values, first and last among them.
fn levels<T: Copy + PartialEq>(mut sorted: Vec<T>) -> Vec<T> {
    sorted.dedup();
    let last = sorted.len() - 1;
    if last < 4 {
        sorted
    } else {
        (0..4).map(|i| sorted[i * last / 3]).collect()
    }
}

/// Pools for which a plan may be made: all workers, then those with at least some memory and at least some speed. So a worker that is too
/// small or too slow is left out, and does not reduce everyone's memory or speed.
pub(super) fn pools<'w>(problem: &Problem, workers: &'w [WorkerInfo]) -> Vec<Vec<&'w WorkerInfo>> {
    let mut speeds: Vec<f64> = workers.iter().map(|w| rounded_speed(w.speed)).collect();
    speeds.sort_by(f64::total_cmp);
    let mut memories: Vec<u64> = workers.iter().map(|w| problem.capacity(w)).collect();
    memories.sort_unstable();
    let mut pools: Vec<Vec<&WorkerInfo>> = Vec::new();
    for memory in levels(memories) {
        for least in levels(speeds.clone()) {
            if bug!(SlowWorkersTrain) && least > speeds[0] {
                continue;
            }
            let fit = |w: &&WorkerInfo| problem.capacity(w) >= memory && rounded_speed(w.speed) >= least;
            let mut pool: Vec<&WorkerInfo> = workers.iter().filter(fit).collect();
            // If there are more workers than may train, the speed is that of the fastest of them.
            let most = problem.max_workers();
            if pool.len() > most {
                let mut fastest: Vec<f64> = pool.iter().map(|w| rounded_speed(w.speed)).collect();
                fastest.sort_by(|a, b| b.total_cmp(a));
                pool.retain(|w| rounded_speed(w.speed) >= fastest[most - 1]);
            }
            let same = |other: &Vec<&WorkerInfo>| {
                other.len() == pool.len() && other.iter().zip(&pool).all(|(a, b)| a.id == b.id)
            };
            if !pool.is_empty() && !pools.iter().any(same) {
                pools.push(pool);
            }
        }
    }
    pools
}
