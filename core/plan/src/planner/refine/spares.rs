//! The reasons why workers are left idle.

use crate::document::{Shape, Spare};
use crate::ids::WorkerId;
use crate::planner::problem::Problem;
use crate::planner::request::WorkerInfo;
use crate::planner::search::PoolSearch;
use std::collections::BTreeSet;

/// Names the workers that the shape does not use as its spares.
pub(in crate::planner) fn name(
    problem: &Problem,
    shape: &mut Shape,
    workers: &[WorkerInfo],
    pools: &[PoolSearch],
) {
    let used: BTreeSet<WorkerId> = shape.members().into_iter().collect();
    if used.len() == workers.len() {
        return;
    }
    let most = problem.max_workers();
    let need = problem
        .memory_bytes(shape)
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(0);
    let step = shape.predicted.step_ms;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let members: Vec<BTreeSet<WorkerId>> = pools
        .iter()
        .map(|p| p.workers.iter().map(|w| w.id).collect())
        .collect();
    let beyond: Vec<Option<(usize, f64)>> = pools.iter().map(|p| p.best_above(used.len())).collect();
    let reason = |worker: &WorkerInfo| {
        if used.len() >= most {
            return format!("the job uses at most {most} workers (elasticity.maxWorkers)");
        }
        let has = problem.capacity(worker);
        if has < need {
            return format!(
                "it has {} MiB of memory, a stage of this plan needs {} MiB",
                mib(has),
                mib(need)
            );
        }
        let more = u32::try_from(used.len() + 1).unwrap_or(u32::MAX);
        if let Some(host) = problem.costs.host.as_ref().filter(|h| h.turns(more) > 1.0) {
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
}
