//! Workers of unequal speed within one plan: fewer segments, or fewer samples, for the slower ones.
//!
//! A few shapes are kept as they are (which worker runs which stage, how deep pipelines are), but are cut again with each worker's own
//! speed, and given shares of the batch so that all pipelines end together. State moves only across the cuts. If all workers are alike,
//! this does nothing.

use crate::document::{
    Pipeline, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage,
};
use crate::ids::WorkerId;
use crate::layout::SegmentRange;
use crate::partition::partition_all;
use crate::planner::problem::Problem;
use crate::planner::request::WorkerInfo;
use crate::planner::search::choice::{EQUAL, missing_holders};
use crate::planner::state_moves::Holdings;
use crate::predict::stage_sums::StageSums;
use crate::predict::work::rounded_speed;
use crate::schedule::stash_max;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Number of rounds in which the pipelines of a GPipe schedule get memory for as many micro-batches as their share has. After these, each
/// gets memory for all.
const ROUNDS: usize = 3;

/// The best of these shapes with cuts and shares by speed, if it is better than `other`. None if all workers are alike.
///
/// As in the choice among candidates: among shapes that are equally fast, prefer one under which memory holds old and new state together,
/// then one with several pipelines, then the fastest.
pub(in crate::planner) fn refine(
    problem: &Problem,
    shapes: &[Option<&Shape>],
    other: &Shape,
) -> Option<Shape> {
    let request = problem.request;
    let speeds: BTreeSet<u64> = request
        .workers
        .iter()
        .map(|w| rounded_speed(w.speed).to_bits())
        .collect();
    if speeds.len() < 2 {
        return None;
    }
    let offered: BTreeMap<WorkerId, &WorkerInfo> = request.workers.iter().map(|w| (w.id, w)).collect();
    let fits = |shape: &&Shape| {
        let members = shape.members();
        let known = members.iter().all(|w| offered.contains_key(w));
        let is_allowed = problem.allows_size(shape.pipelines.len(), members.len());
        let stages = shape.pipelines.iter().flat_map(|p| &p.stages);
        let last = stages.map(|s| s.segments.end).max();
        let plain = shape.schedule.kind.chunks() == 1;
        plain && known && is_allowed && last == Some(request.layout.segments)
    };
    let mut bases: Vec<&Shape> = Vec::new();
    for shape in shapes.iter().flatten().copied().filter(fits) {
        if !bases.iter().any(|base| are_cut_alike(base, shape)) {
            bases.push(shape);
        }
    }
    let holdings = Holdings::new(problem);
    let made: Vec<Shape> = bases
        .into_iter()
        .filter_map(|shape| by_speed(&holdings, shape, &offered))
        .filter(|shape| holdings.is_in_time(shape))
        .collect();
    let judge = |shape: &Shape| Judged {
        exceeds_memory: holdings.exceeds_memory(shape, &offered) && !bug!(IgnoreCrowding),
        missing_holders: missing_holders(shape.pipelines.len()),
        effective_ms: problem.effective_ms(&shape.predicted),
    };
    let judged: Vec<Judged> = std::iter::once(other).chain(&made).map(judge).collect();
    let best = preferred(&judged).checked_sub(1)?;
    made.into_iter().nth(best)
}

/// The criteria between plans: smaller is better, the first field first.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
struct Judged {
    /// Whether some worker cannot hold its old and new state together.
    exceeds_memory: bool,
    /// How many holders a segment lacks.
    missing_holders: usize,
    effective_ms: f64,
}

/// The index of the best of those that are as fast as the fastest. The first one is kept unless another is better by more than rounding.
fn preferred(judged: &[Judged]) -> usize {
    let fastest = judged
        .iter()
        .map(|j| j.effective_ms)
        .fold(f64::INFINITY, f64::min);
    let near = |i: &usize| judged[*i].effective_ms <= fastest * EQUAL;
    let rank = |i: usize| Judged {
        effective_ms: judged[i].effective_ms * if i == 0 { 1.0 - 1e-9 } else { 1.0 },
        ..judged[i]
    };
    let best = (0..judged.len()).filter(near).min_by(|a, b| {
        let order = rank(*a).partial_cmp(&rank(*b));
        order.unwrap_or(Ordering::Equal)
    });
    best.unwrap_or(0)
}

/// Whether both would be cut alike by speed: they have the same workers, the same recompute on each stage, and the same micro-batch size.
fn are_cut_alike(a: &Shape, b: &Shape) -> bool {
    let stages = |shape: &Shape| -> Vec<Vec<(WorkerId, Recompute)>> {
        let of = |p: &Pipeline| {
            let stages = p.stages.iter();
            stages
                .map(|s| (s.worker, shape.schedule_of(s).recompute))
                .collect()
        };
        shape.pipelines.iter().map(of).collect()
    };
    let same = (a.micro_batch_size, a.schedule) == (b.micro_batch_size, b.schedule);
    same && stages(a) == stages(b)
}

/// A shape cut by speed. None if it does not fit into memory, or a pipeline would get no sample.
fn by_speed(holdings: &Holdings, shape: &Shape, offered: &BTreeMap<WorkerId, &WorkerInfo>) -> Option<Shape> {
    let (problem, m) = (&holdings.problem, shape.micro_batch_size);
    let (cuts, shares) = cuts_and_shares(problem, shape, offered)?;
    let mut start = 0;
    let mut pipelines = Vec::with_capacity(cuts.len());
    for ((pipeline, cut), share) in shape.pipelines.iter().zip(&cuts).zip(shares) {
        let end = (start + share * u64::from(m)).min(problem.request.global_batch_size);
        let stage = |(stage, segments): (&Stage, &SegmentRange)| Stage {
            segments: *segments,
            ..stage.clone()
        };
        pipelines.push(Pipeline {
            stages: pipeline.stages.iter().zip(&cut.stages).map(stage).collect(),
            samples: SampleRange { start, end },
        });
        start = end;
    }
    let mut made = Shape {
        pipelines,
        spares: Vec::new(),
        micro_batch_size: m,
        schedule: shape.schedule,
        predicted: Prediction {
            calibrated: problem.costs.calibrated,
            ..shape.predicted
        },
    };
    made.predicted.step_ms = problem.predict(&made).step_ms;
    made.predicted.move_ms = holdings.move_ms(&made);
    let all_have_samples = made.pipelines.iter().all(|p| p.samples.start < p.samples.end);
    all_have_samples.then_some(made)
}

/// The workers of a pipeline's stages, with what each keeps of a forward.
type Line<'a> = Vec<(&'a WorkerInfo, ScheduleSpec)>;

/// What cuts depend on: the number of micro-batches that memory must hold, and the speed, memory and recompute of each worker.
type LineKey = (u64, Vec<(u64, u64, Recompute)>);

/// The cut of each pipeline, and its number of micro-batches.
fn cuts_and_shares(
    problem: &Problem,
    shape: &Shape,
    offered: &BTreeMap<WorkerId, &WorkerInfo>,
) -> Option<(Vec<PipelineCut>, Vec<u64>)> {
    let m = shape.micro_batch_size;
    let mut lines: Vec<Line> = Vec::with_capacity(shape.pipelines.len());
    for pipeline in &shape.pipelines {
        let stages = pipeline.stages.iter();
        let stages = stages.filter_map(|s| Some((*offered.get(&s.worker)?, shape.schedule_of(s))));
        lines.push(stages.collect());
    }
    let micro_batches = problem.micro_batches(m);
    // Shares are not known before the cuts. Except for GPipe, which keeps all of its micro-batches, memory for the whole batch is enough
    // for any share.
    let mut room = vec![micro_batches; lines.len()];
    if shape.schedule.kind == ScheduleKind::Gpipe {
        room.fill(micro_batches.div_ceil(lines.len().max(1) as u64));
    }
    for _ in 0..ROUNDS {
        let cuts = cuts(problem, m, &lines, &room)?;
        let shares = shares(&cuts, micro_batches)?;
        if shares.iter().zip(&room).all(|(share, room)| share <= room) {
            return Some((cuts, shares));
        }
        for (room, share) in room.iter_mut().zip(&shares) {
            *room = (*room).max(*share);
        }
    }
    room.fill(micro_batches);
    let cuts = cuts(problem, m, &lines, &room)?;
    let shares = shares(&cuts, micro_batches)?;
    Some((cuts, shares))
}

/// The cut of each pipeline, with memory for `room` micro-batches each. Pipelines whose workers are alike are cut once.
fn cuts(problem: &Problem, m: u32, lines: &[Line], room: &[u64]) -> Option<Vec<PipelineCut>> {
    let alike = |(w, spec): &(&WorkerInfo, ScheduleSpec)| {
        (
            rounded_speed(w.speed).to_bits(),
            problem.capacity(w),
            spec.recompute,
        )
    };
    let mut known: BTreeMap<LineKey, PipelineCut> = BTreeMap::new();
    let mut cuts = Vec::with_capacity(lines.len());
    for (line, room) in lines.iter().zip(room) {
        let key: LineKey = (*room, line.iter().map(alike).collect());
        let cut = match known.get(&key) {
            Some(cut) => cut.clone(),
            None => cut_by_speed(problem, m, line, *room)?,
        };
        known.insert(key, cut.clone());
        cuts.push(cut);
    }
    Some(cuts)
}

/// The cuts of one pipeline that minimise the time of its slowest stage, each worker at its own speed, with memory for this many
/// micro-batches.
pub(super) fn cut_by_speed(
    problem: &Problem,
    m: u32,
    workers: &[(&WorkerInfo, ScheduleSpec)],
    micro_batches: u64,
) -> Option<PipelineCut> {
    let (depth, costs) = (workers.len(), problem.costs);
    let segments = costs.layout().segments;
    let work = |r: SegmentRange, at: usize| {
        let (worker, spec) = workers[at];
        // On the last stage each backward directly follows its forward, except with GPipe.
        let is_fresh = r.end == segments && spec.kind != ScheduleKind::Gpipe;
        let policy = if is_fresh { Recompute::None } else { spec.recompute };
        let again = costs.recompute_ms(r, m, policy);
        let ms = costs.forward_ms(r, m) + costs.backward_ms(r, m) + again;
        ms / rounded_speed(worker.speed)
    };
    let most = u32::try_from(micro_batches).unwrap_or(u32::MAX).min(u32::MAX / 2);
    let is_limited = workers.iter().any(|(w, _)| problem.capacity(w) < u64::MAX);
    let sums = is_limited.then(|| StageSums::new(costs, m, Recompute::None, 1.0));
    // As `Problem::stage_bytes`, looked up.
    let fits = |r: SegmentRange, at: usize| {
        let (worker, spec) = workers[at];
        let stash = stash_max(spec.kind, depth, at, most);
        let need = sums.as_ref().map(|s| s.memory_bytes(r, stash, spec.recompute));
        need.is_none_or(|need| need <= problem.capacity(worker))
    };
    let cost = |r: SegmentRange, later: u32| {
        let at = depth.checked_sub(later as usize + 1)?;
        fits(r, at).then(|| work(r, at))
    };
    let cuts = partition_all(segments, u32::try_from(depth).ok()?, cost);
    let stages = cuts.stages(u32::try_from(depth).ok()?)?;
    let each: Vec<f64> = stages.iter().enumerate().map(|(at, r)| work(*r, at)).collect();
    let period_ms = each.iter().copied().fold(0.0, f64::max);
    Some(PipelineCut {
        fill_ms: each.iter().sum::<f64>() - period_ms,
        stages,
        period_ms,
    })
}

/// How a pipeline is cut: it takes `fill_ms + period_ms * n` for n micro-batches.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PipelineCut {
    pub(super) stages: Vec<SegmentRange>,
    period_ms: f64,
    fill_ms: f64,
}

/// The number of micro-batches of each pipeline: the next one always goes to the pipeline that would end first; at least one each.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
fn shares(cuts: &[PipelineCut], micro_batches: u64) -> Option<Vec<u64>> {
    let left = micro_batches.checked_sub(cuts.len() as u64)?;
    let mut shares = vec![1u64; cuts.len()];
    for _ in 0..left {
        let end = |(i, cut): (usize, &PipelineCut)| (cut.fill_ms + cut.period_ms * (shares[i] + 1) as f64, i);
        let ends = cuts.iter().enumerate().map(end);
        let (_, first) = ends.min_by(|a, b| a.0.total_cmp(&b.0))?;
        shares[first] += 1;
    }
    Some(shares)
}

#[cfg(test)]
mod tests;
