//! Explains, as a sentence, why there is no plan.

use super::problem::Problem;
use super::request::{Infeasible, WorkerInfo};
use crate::document::Recompute;
use crate::layout::SegmentRange;

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// The workers of a request in ascending order, each once.
///
/// # Errors
/// There are too few workers, no samples, or the costs belong to another model.
pub(super) fn offered(problem: &Problem) -> Result<Vec<WorkerInfo>, Infeasible> {
    let request = problem.request;
    let mut workers = request.workers.clone();
    workers.sort_by_key(|w| w.id);
    workers.dedup_by_key(|w| w.id);
    let (known, asked) = (problem.costs.segments.len(), request.layout.segments);
    if known != asked as usize || asked == 0 {
        return Err(Infeasible(format!(
            "costs are known for {known} segments, the model has {asked}"
        )));
    }
    if request.global_batch_size == 0 {
        return Err(Infeasible(
            "training.globalBatchSize is 0, at least 1 sample is needed".into(),
        ));
    }
    let min = problem.constraints.min_workers.max(1) as usize;
    if workers.len() < min {
        return Err(Infeasible(format!(
            "needs at least {min} workers, {} are there",
            workers.len()
        )));
    }
    Ok(workers)
}

/// Why no candidate was found for this many workers.
pub(super) fn why_no_plan(problem: &Problem, workers: usize) -> Infeasible {
    let constraints = problem.constraints;
    let (min_depth, segments) = (constraints.min_depth, problem.request.layout.segments);
    if (workers as u64) < u64::from(min_depth) {
        return Infeasible(format!(
            "needs at least {min_depth} workers (pipeline.minDepth), {workers} are there"
        ));
    }
    if min_depth > segments {
        return Infeasible(format!(
            "pipeline.minDepth is {min_depth}, but the model has only {segments} segments"
        ));
    }
    let need = |r: SegmentRange| problem.costs.memory_bytes(r, 1, 1, Recompute::Full);
    let one = |s: u32| SegmentRange { start: s, end: s + 1 };
    let capacities = problem.request.workers.iter().map(|w| problem.capacity(w));
    let memory = capacities.max().unwrap_or(u64::MAX);
    // The worker with the most memory may take no more than this.
    let limit = match constraints.device_memory_bytes == Some(memory) {
        true => " (workers.deviceMemory)",
        false => "",
    };
    let largest = (0..segments).map(one).max_by_key(|r| need(*r));
    Infeasible(match largest {
        Some(r) if need(r) > memory => format!(
            "segment {} needs {} MiB with its optimizer state, a worker has {} MiB{limit}",
            r.start,
            mib(need(r)),
            mib(memory)
        ),
        _ => too_few_train(problem, workers, memory < u64::MAX).unwrap_or_else(|| {
            format!(
                "the model does not fit: {} MiB of state over {workers} workers of {} MiB{limit}{}",
                mib(need(problem.request.layout.whole())),
                mib(memory),
                constraints
                    .max_depth
                    .map_or(String::new(), |d| format!(", at most {d} stages in a pipeline")),
            )
        }),
    })
}

/// Says that batch and depths leave no plan for the job's least number of workers. None if memory may be the reason.
fn too_few_train(problem: &Problem, workers: usize, memory_is_limited: bool) -> Option<String> {
    let (constraints, segments) = (problem.constraints, problem.request.layout.segments);
    let least = constraints.min_workers.max(1);
    let deepest = constraints.max_depth.unwrap_or(segments).min(segments);
    let pipelines = problem.micro_batches(constraints.micro_batch_size.unwrap_or(1));
    let most = pipelines.saturating_mul(deepest.into());
    (!memory_is_limited || most < u64::from(least)).then(|| {
        format!(
            "no plan has at least {least} of {workers} workers (elasticity.minWorkers): a step has micro-batches for at most {pipelines} \
             pipelines (training.globalBatchSize, microBatchSize) of {} to {deepest} workers (pipeline.minDepth, maxDepth)",
            constraints.min_depth.max(1)
        )
    })
}
