//! Who may be planned with, and why some are left idle.

use super::compose::Composer;
use super::{CostPlanner, WorkerInfo, pace};
use crate::document::{Shape, Spare};
use crate::ids::WorkerId;
use std::collections::BTreeSet;

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

impl CostPlanner {
    /// Groups that a plan may be made for: all workers, then those with at least some memory and at least some speed. A
    /// worker that is too small or too slow thus costs the plan itself, not everybody's memory or pace.
    pub(super) fn pools<'w>(&self, workers: &'w [WorkerInfo]) -> Vec<Vec<&'w WorkerInfo>> {
        let mut paces: Vec<f64> = workers.iter().map(|w| pace(w.speed)).collect();
        paces.sort_by(f64::total_cmp);
        let mut memories: Vec<u64> = workers.iter().map(|w| self.capacity(w)).collect();
        memories.sort_unstable();
        let mut pools: Vec<Vec<&WorkerInfo>> = Vec::new();
        for memory in levels(memories) {
            for least in levels(paces.clone()) {
                let fit = |w: &&WorkerInfo| self.capacity(w) >= memory && pace(w.speed) >= least;
                let mut pool: Vec<&WorkerInfo> = workers.iter().filter(fit).collect();
                // With more workers than may train, the pace is that of the fastest of them.
                let most = self.constraints.max_workers.max(1) as usize;
                if pool.len() > most {
                    let mut fastest: Vec<f64> = pool.iter().map(|w| pace(w.speed)).collect();
                    fastest.sort_by(|a, b| b.total_cmp(a));
                    pool.retain(|w| pace(w.speed) >= fastest[most - 1]);
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

    pub(super) fn name_spares(
        &self,
        mut shape: Shape,
        workers: &[WorkerInfo],
        pools: &[Vec<&WorkerInfo>],
        composers: &[Composer],
    ) -> Shape {
        let used: BTreeSet<WorkerId> = shape.members().into_iter().collect();
        if used.len() == workers.len() {
            return shape;
        }
        let most = self.constraints.max_workers.max(1) as usize;
        let need = self.memory_bytes(&shape).into_iter().flatten().max().unwrap_or(0);
        let step = shape.predicted.step_ms;
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let members: Vec<BTreeSet<WorkerId>> =
            pools.iter().map(|p| p.iter().map(|w| w.id).collect()).collect();
        let beyond: Vec<Option<(usize, f64)>> = composers.iter().map(|c| c.best_beyond(used.len())).collect();
        let reason = |worker: &WorkerInfo| {
            if used.len() >= most {
                return format!("the job uses at most {most} workers (elasticity.maxWorkers)");
            }
            let has = self.capacity(worker);
            if has < need {
                return format!(
                    "it has {} MiB of memory, a stage of this plan needs {} MiB",
                    mib(has),
                    mib(need)
                );
            }
            let more = u32::try_from(used.len() + 1).unwrap_or(u32::MAX);
            if let Some(host) = self.costs.host.as_ref().filter(|h| h.turns(more) > 1.0) {
                return format!(
                    "workers of a node take turns on its {} cores: no plan of more than {} workers is faster",
                    host.cores,
                    used.len()
                );
            }
            let with = members
                .iter()
                .zip(&beyond)
                .filter(|(pool, _)| pool.contains(&worker.id));
            let better = with.filter_map(|(_, beyond)| *beyond);
            match better.min_by(|a, b| a.1.total_cmp(&b.1)) {
                Some((_, ms)) if ms < step => {
                    format!("using it would shorten a step only from {step:.1} ms to {ms:.1} ms")
                }
                Some((_, ms)) => format!("using it would slow a step from {step:.1} ms to {ms:.1} ms"),
                None => format!(
                    "no plan of more than {} workers comes near {step:.1} ms a step",
                    used.len()
                ),
            }
        };
        let idle = workers.iter().filter(|w| !used.contains(&w.id));
        shape.spares = idle
            .map(|w| Spare {
                worker: w.id,
                reason: reason(w),
            })
            .collect();
        shape
    }
}
