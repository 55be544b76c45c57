//! Pipelines whose workers have several stages each, if the job allows that and it is faster.
//!
//! This runs after the search: the plan in force, the plan found, and the grids that should gain most are cut into as many stages as their
//! workers have chunks, in the order of the workers. Filling and draining get shorter with the number of chunks, and boundaries are crossed
//! as many times as often; the simulation tells which effect is larger.

use super::uneven_speeds::cut_by_speed;
use crate::cost::Runtime;
use crate::document::{
    Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage,
};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::planner::candidate::Candidate;
use crate::planner::placement::WorkerPool;
use crate::planner::problem::{Problem, speeds};
use crate::planner::request::WorkerInfo;
use crate::planner::search::PoolSearch;
use crate::planner::search::choice::EQUAL;
use crate::planner::state_moves::Holdings;
use crate::predict::StepParts;
use crate::predict::simulation::simulate;
use crate::predict::stage_times::StageTimes;
use crate::predict::work::{PipelineWork, StageWork, StepWork, rounded_speed};
use crate::schedule::lists;
use std::collections::{BTreeMap, BTreeSet};

/// Number of grids that are tried for each pool of workers.
const GRIDS: usize = 8;
/// Number of groups of micro-batches with which cuts are balanced: enough for the steady state to show.
const GROUPS: u64 = 6;
/// Number of rounds in which all cuts are tried.
const ROUNDS: usize = 6;

/// The workers of pipelines of one depth, in order.
struct Grid {
    /// The workers of each pipeline, in order.
    workers: Vec<Vec<WorkerId>>,
    micro_batch_size: u32,
}

impl Grid {
    /// The grid of a shape, interleaved or not. None if pipelines have a single worker, or several depths.
    fn of(shape: &Shape) -> Option<Grid> {
        let first_round = |p: &Pipeline| {
            let workers = shape.schedule.kind.workers(p.stages.len());
            p.stages.iter().take(workers).map(|s| s.worker).collect()
        };
        let workers: Vec<Vec<WorkerId>> = shape.pipelines.iter().map(first_round).collect();
        let depth = workers.first()?.len();
        let even = depth > 1 && workers.iter().all(|w| w.len() == depth);
        even.then_some(Grid {
            workers,
            micro_batch_size: shape.micro_batch_size,
        })
    }
}

/// The best interleaved plan, if its prediction is better than that of the other plan by more than counts as equal.
pub(in crate::planner) fn refine(
    problem: &Problem,
    shape: &Shape,
    pools: &[PoolSearch],
) -> Option<(Shape, Candidate)> {
    let request = problem.request;
    let kinds = problem.constraints.schedules.iter().map(|s| s.kind);
    let chunks: BTreeSet<usize> = kinds.map(ScheduleKind::chunks).filter(|c| *c > 1).collect();
    let most = *chunks.last()?;
    if problem.costs.runtime == Runtime::Rendezvous {
        return None;
    }
    let offered: BTreeMap<WorkerId, &WorkerInfo> = request.workers.iter().map(|w| (w.id, w)).collect();
    let mut bases: Vec<Grid> = [request.parent.as_ref(), Some(shape)]
        .into_iter()
        .flatten()
        .filter_map(Grid::of)
        .collect();
    for pool in pools {
        bases.extend(grids(problem, pool, most));
    }
    bases.retain(|g| {
        let mut workers = g.workers.iter().flatten();
        let count = workers.clone().count();
        workers.all(|w| offered.contains_key(w)) && problem.allows_size(g.workers.len(), count)
    });
    let holdings = Holdings::new(problem);
    let made = bases.iter().flat_map(|grid| {
        let of = |count: &usize| interleave(&holdings, grid, *count, &offered);
        chunks.iter().filter_map(of).collect::<Vec<_>>()
    });
    let effective_ms = |p: &Prediction| problem.effective_ms(p);
    let made: Vec<Shape> = made.collect();
    let least = made
        .iter()
        .map(|s| effective_ms(&s.predicted))
        .fold(f64::INFINITY, f64::min);
    // Among plans that count as equal, the one that moves least state, then the fastest.
    let near = made
        .into_iter()
        .filter(|s| effective_ms(&s.predicted) <= least * EQUAL);
    let best = near.min_by(|a, b| {
        let moved = a.predicted.move_ms.total_cmp(&b.predicted.move_ms);
        moved.then(effective_ms(&a.predicted).total_cmp(&effective_ms(&b.predicted)))
    })?;
    (effective_ms(&best.predicted) * EQUAL < effective_ms(&shape.predicted)).then(|| described(problem, best))
}

/// The grids that should be fastest with this many chunks, with workers on their positions. Any depth and number of pipelines may be among
/// them, whatever the search's verdict without chunks.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn grids(problem: &Problem, pool: &PoolSearch, chunks: usize) -> Vec<Grid> {
    let most = pool.workers.len().min(problem.max_workers());
    let mut hoped: Vec<Candidate> = Vec::new();
    for set in &pool.sets {
        let m = set.micro_batch_size;
        let whole = problem.request.layout.whole();
        let work_ms = problem.costs.forward_ms(whole, m) + problem.costs.backward_ms(whole, m);
        for partition in set.partitions().filter(|p| p.stages.len() > 1) {
            let depth = partition.stages.len();
            let groups = set.micro_batches / depth as u64;
            let widest = (most / depth) as u64;
            if !set.micro_batches.is_multiple_of(depth as u64) || widest.min(groups) == 0 {
                continue;
            }
            // Only as many pipelines as make the longest one shorter.
            let longest = groups.div_ceil(widest.min(groups));
            let count = groups.div_ceil(longest);
            let n = longest * depth as u64;
            let step_ms = work_ms / depth as f64 * (n as f64 + (depth - 1) as f64 / chunks as f64);
            let share =
                |i: u64| (groups / count + u64::from(i < groups % count)) * depth as u64 * u64::from(m);
            let pipeline = |i: u64| PipelineWork {
                stages: partition.work(1.0),
                samples: share(i),
            };
            hoped.push(Candidate {
                work: StepWork {
                    pipelines: (0..count).map(pipeline).collect(),
                    micro_batch_size: m,
                    kind: set.schedules[0],
                },
                recompute: partition.policies[0],
                step_ms,
                bubble: 0.0,
                parts: StepParts::default(),
            });
        }
    }
    hoped.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    let workers = WorkerPool::new(problem, &pool.workers);
    let with_workers = |candidate: &Candidate| {
        let placed = workers.place(problem, candidate);
        let depth = candidate.pipelines()[0].stages.len();
        Grid {
            workers: placed.workers.chunks(depth).map(<[WorkerId]>::to_vec).collect(),
            micro_batch_size: candidate.work.micro_batch_size,
        }
    };
    hoped.iter().take(GRIDS).map(with_workers).collect()
}

/// A grid with this many stages per worker, keeping as much of a forward as fits into memory. None if it does not fit, or if the
/// micro-batches do not make whole groups.
fn interleave(
    holdings: &Holdings,
    grid: &Grid,
    chunks: usize,
    offered: &BTreeMap<WorkerId, &WorkerInfo>,
) -> Option<Shape> {
    let problem = &holdings.problem;
    let kind = ScheduleKind::Interleaved {
        chunks: u32::try_from(chunks).ok()?,
    };
    let mut policies: Vec<Recompute> = problem
        .constraints
        .schedules
        .iter()
        .map(|s| s.recompute)
        .collect();
    policies.sort_unstable();
    policies.dedup();
    policies.into_iter().find_map(|recompute| {
        let schedule = ScheduleSpec { kind, recompute };
        let mut made = cut_grid(problem, grid, schedule, offered)?;
        if holdings.exceeds_memory(&made, offered) || !holdings.is_in_time(&made) {
            return None;
        }
        made.predicted.step_ms = problem.predict(&made).step_ms;
        made.predicted.move_ms = holdings.move_ms(&made);
        Some(made)
    })
}

fn cut_grid(
    problem: &Problem,
    grid: &Grid,
    schedule: ScheduleSpec,
    offered: &BTreeMap<WorkerId, &WorkerInfo>,
) -> Option<Shape> {
    let m = u64::from(grid.micro_batch_size.max(1));
    let (depth, count) = (grid.workers[0].len() as u64, grid.workers.len() as u64);
    let batches = problem.micro_batches(grid.micro_batch_size);
    let groups = batches / depth;
    if !batches.is_multiple_of(depth) || groups < count {
        return None;
    }
    let stages = grid.workers[0].len() * schedule.kind.chunks();
    let mut cuts: BTreeMap<Vec<(u64, u64)>, Vec<SegmentRange>> = BTreeMap::new();
    let mut start = 0;
    let mut pipelines = Vec::with_capacity(grid.workers.len());
    for (i, workers) in (0u64..).zip(&grid.workers) {
        let round = workers.iter().filter_map(|w| offered.get(w).copied());
        let stage_workers: Vec<_> = round.map(|w| (w, schedule)).cycle().take(stages).collect();
        // Pipelines whose workers are alike are cut alike.
        let alike =
            |(w, _): &(&WorkerInfo, ScheduleSpec)| (rounded_speed(w.speed).to_bits(), problem.capacity(w));
        let key: Vec<(u64, u64)> = stage_workers.iter().map(alike).collect();
        let cut = match cuts.get(&key) {
            Some(cut) => cut.clone(),
            None => {
                let m = grid.micro_batch_size;
                let cut = cut_by_speed(problem, m, &stage_workers, batches)?.stages;
                let n = (groups / count).min(GROUPS) * depth;
                balanced(problem, cut, &stage_workers, m, u32::try_from(n).ok()?)
            }
        };
        let share = (groups / count + u64::from(i < groups % count)) * depth * m;
        let end = (start + share).min(problem.request.global_batch_size);
        let stage = |(segments, worker): (&SegmentRange, &WorkerId)| Stage {
            worker: *worker,
            segments: *segments,
            recompute: None,
        };
        pipelines.push(Pipeline {
            stages: cut.iter().zip(workers.iter().cycle()).map(stage).collect(),
            samples: SampleRange { start, end },
        });
        cuts.insert(key, cut);
        start = end;
    }
    Some(Shape {
        pipelines,
        spares: Vec::new(),
        micro_batch_size: grid.micro_batch_size,
        schedule,
        predicted: Prediction {
            calibrated: problem.costs.calibrated,
            ..Prediction::default()
        },
    })
}

/// Moves cuts by a segment at a time while that shortens a step of `n` micro-batches. The slowest stage alone tells little if each worker
/// has several stages.
fn balanced(
    problem: &Problem,
    mut cut: Vec<SegmentRange>,
    workers: &[(&WorkerInfo, ScheduleSpec)],
    m: u32,
    n: u32,
) -> Vec<SegmentRange> {
    let specs: Vec<ScheduleSpec> = workers.iter().map(|(_, spec)| *spec).collect();
    let lists = lists(&specs, n);
    let fits = |cut: &[SegmentRange], s: usize| {
        let (worker, spec) = workers[s];
        let need = problem.stage_bytes(spec.kind, spec.recompute, cut[s], (cut.len(), s), n, m);
        !cut[s].is_empty() && need <= problem.capacity(worker)
    };
    let took = |cut: &[SegmentRange]| {
        let stages = cut
            .iter()
            .zip(workers)
            .map(|(segments, (worker, spec))| StageWork {
                segments: *segments,
                recompute: spec.recompute,
                speed: rounded_speed(worker.speed),
            });
        let times: Vec<StageTimes> = stages.map(|s| StageTimes::new(problem.costs, s, m)).collect();
        simulate(&lists, &times, n).makespan_ms()
    };
    let mut best = took(&cut);
    for _ in 0..ROUNDS {
        let before = best;
        for at in 1..cut.len() {
            for forth in [true, false] {
                let end = cut[at].start;
                let moved = if forth { end + 1 } else { end - 1 };
                let mut other = cut.clone();
                (other[at - 1].end, other[at].start) = (moved, moved);
                if !fits(&other, at - 1) || !fits(&other, at) {
                    continue;
                }
                let ms = took(&other);
                if ms < best * (1.0 - 1e-9) {
                    (best, cut) = (ms, other);
                }
            }
        }
        if best >= before {
            break;
        }
    }
    cut
}

/// The plan with its predicted bubble, and the same plan as a candidate.
fn described(problem: &Problem, mut shape: Shape) -> (Shape, Candidate) {
    let step = problem.predict(&shape);
    shape.predicted.bubble = step.bubble;
    let candidate = Candidate {
        work: StepWork::new(&shape, &speeds(&problem.request.workers)),
        recompute: shape.schedule.recompute,
        step_ms: step.step_ms,
        bubble: step.bubble,
        parts: step.parts,
    };
    (shape, candidate)
}

#[cfg(test)]
mod tests;
