//! A step of a whole shape, stage by stage and moment by moment: for pictures, and for how far noise carries it.
//!
//! The same lists, simulator and rings as the planner's predictions. Deterministic: noise comes from a seed.

use crate::cost::{Costs, Runtime};
use crate::document::{Pipeline, ScheduleSpec, Shape};
use crate::layout::SegmentRange;
use crate::schedule::lists;
use crate::shared;
use crate::simulate::{Simulated, Span, StageTimes, rendezvous, run};
use crate::state::mix;
use crate::sync::{self, Pipelines, StageEnd};

/// Pipelines of equal cuts and equal shares, and what each of them does.
#[derive(Clone, PartialEq, Debug)]
pub struct PipelineTrace {
    /// The first of them.
    pub first: usize,
    /// How many there are.
    pub count: usize,
    /// Micro-batches that each runs.
    pub micro_batches: u32,
    /// Their cuts.
    pub stages: Vec<SegmentRange>,
    /// Workers of each; stage s is on worker s modulo this.
    pub workers: usize,
    /// Compute and transfers, in no particular order.
    pub spans: Vec<Span>,
    /// Rings and optimizer of each stage.
    pub ends: Vec<StageEnd>,
}

/// Mean and 95th percentile of a step under noise, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// Mean.
    pub mean_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
}

/// Kinds of pipelines in order of their first: (first, count).
fn kinds(shape: &Shape) -> Vec<(usize, usize)> {
    let same = |a: &Pipeline, b: &Pipeline| {
        let n = |p: &Pipeline| p.micro_batches(shape.micro_batch_size);
        n(a) == n(b)
            && a.stages.len() == b.stages.len()
            && a.stages
                .iter()
                .zip(&b.stages)
                .all(|(x, y)| (x.segments, x.recompute) == (y.segments, y.recompute))
    };
    let mut kinds: Vec<(usize, usize)> = Vec::new();
    for (i, p) in shape.pipelines.iter().enumerate() {
        match kinds
            .iter_mut()
            .find(|(first, _)| same(&shape.pipelines[*first], p))
        {
            Some((_, count)) => *count += 1,
            None => kinds.push((i, 1)),
        }
    }
    kinds
}

fn simulated(
    costs: &Costs,
    shape: &Shape,
    pipeline: &Pipeline,
    mut noise: impl FnMut(usize, f64) -> f64,
    record: impl FnMut(Span),
) -> Simulated {
    let m = shape.micro_batch_size;
    let n = u32::try_from(pipeline.micro_batches(m)).unwrap_or(u32::MAX);
    let p = pipeline.stages.len();
    let specs: Vec<ScheduleSpec> = pipeline.stages.iter().map(|s| shape.schedule_of(s)).collect();
    let times = |(s, r): (usize, SegmentRange)| {
        let recompute_ms = costs.recompute_ms(r, m, specs[s].recompute);
        // A rendezvous stage has its recompute in its backward.
        let within = costs.runtime == Runtime::Rendezvous && s + 1 < p;
        StageTimes {
            forward_ms: costs.forward_ms(r, m),
            backward_ms: costs.backward_ms(r, m) + if within { recompute_ms } else { 0.0 },
            recompute_ms,
            transfer_ms: if s == 0 {
                0.0
            } else {
                costs.transfer_ms(r.start, m)
            },
        }
    };
    let times: Vec<StageTimes> = pipeline
        .stages
        .iter()
        .map(|s| s.segments)
        .enumerate()
        .map(times)
        .collect();
    match costs.runtime {
        Runtime::Rendezvous => {
            // A stage that is late makes all wait: each is late for the whole step.
            let late = times.iter().enumerate().map(|(s, t)| StageTimes {
                forward_ms: noise(s, t.forward_ms),
                backward_ms: noise(s, t.backward_ms),
                recompute_ms: t.recompute_ms,
                transfer_ms: noise(s, t.transfer_ms),
            });
            rendezvous(&late.collect::<Vec<_>>(), n, record)
        }
        Runtime::Overlapped => run(&lists(&specs, n), &times, n, noise, record),
    }
}

fn parts<'a>(trace: &'a PipelineTrace, run: &'a Simulated) -> Pipelines<'a> {
    Pipelines {
        stages: &trace.stages,
        workers: trace.workers,
        ends_ms: &run.ends_ms,
        count: trace.count,
    }
}

/// What every kind of pipeline of a shape does in a step, on workers of speed 1.
#[must_use]
pub fn trace(costs: &Costs, shape: &Shape) -> Vec<PipelineTrace> {
    let mut traces: Vec<(PipelineTrace, Simulated)> = Vec::new();
    for (first, count) in kinds(shape) {
        let pipeline = &shape.pipelines[first];
        let mut spans = Vec::new();
        let run = simulated(costs, shape, pipeline, |_, ms| ms, |span| spans.push(span));
        let trace = PipelineTrace {
            first,
            count,
            micro_batches: u32::try_from(pipeline.micro_batches(shape.micro_batch_size)).unwrap_or(u32::MAX),
            stages: pipeline.stages.iter().map(|s| s.segments).collect(),
            workers: shape.schedule.kind.workers(pipeline.stages.len()),
            spans,
            ends: Vec::new(),
        };
        traces.push((trace, run));
    }
    let kinds: Vec<Pipelines> = traces.iter().map(|(trace, run)| parts(trace, run)).collect();
    let ends = sync::ends(costs, &kinds);
    let with = |((trace, _), ends)| PipelineTrace { ends, ..trace };
    traces.into_iter().zip(ends).map(with).collect()
}

/// The predicted step of a shape on workers of speed 1, milliseconds; workers that share cores take turns, `per_node` to a
/// node.
#[must_use]
pub fn step_ms(costs: &Costs, shape: &Shape, per_node: usize) -> f64 {
    match &costs.host {
        Some(host) => shared::shape_ms(costs, host, shape, per_node, |_| 1.0),
        None => {
            let ends = trace(costs, shape);
            let ends = ends.iter().flat_map(|t| &t.ends);
            ends.map(|end| end.ms).fold(0.0, f64::max)
        }
    }
}

/// A step under noise: every duration is stretched by up to `most` (0.1: ten per cent), evenly, from a seed; so many runs.
/// Under rendezvous each stage's durations are stretched alike for a whole step.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "53 bits of a hash, and a few runs")]
pub fn spread(costs: &Costs, shape: &Shape, most: f64, seed: u64, runs: u32) -> Spread {
    let kinds = kinds(shape);
    let mut steps: Vec<f64> = (0..u64::from(runs.max(1)))
        .map(|i| {
            let mut state = mix(seed, i);
            let mut noise = |_: usize, ms: f64| {
                state = mix(state, 1);
                ms * (1.0 + most * ((state >> 11) as f64 / (1u64 << 53) as f64))
            };
            let ran: Vec<Simulated> = kinds
                .iter()
                .map(|(first, _)| simulated(costs, shape, &shape.pipelines[*first], &mut noise, |_| {}))
                .collect();
            let cuts: Vec<Vec<SegmentRange>> = kinds
                .iter()
                .map(|(first, _)| {
                    shape.pipelines[*first]
                        .stages
                        .iter()
                        .map(|s| s.segments)
                        .collect()
                })
                .collect();
            let parts = ran.iter().zip(&cuts).zip(&kinds);
            let parts: Vec<Pipelines> = parts
                .map(|((run, stages), (_, count))| Pipelines {
                    stages,
                    workers: shape.schedule.kind.workers(stages.len()),
                    ends_ms: &run.ends_ms,
                    count: *count,
                })
                .collect();
            sync::step_ms(costs, &parts)
        })
        .collect();
    steps.sort_by(f64::total_cmp);
    let at = (steps.len() * 95).div_ceil(100).max(1) - 1;
    Spread {
        mean_ms: steps.iter().sum::<f64>() / steps.len() as f64,
        p95_ms: steps[at],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Device, GptSizes};
    use crate::document::{Prediction, Recompute, SampleRange, ScheduleKind, Stage};
    use crate::ids::WorkerId;
    use crate::simulate::What;

    fn shape() -> Shape {
        let pipeline = |worker: u64, ends: &[u32], samples: SampleRange| {
            let mut start = 0;
            let stage = |(i, end): (usize, &u32)| {
                let segments = SegmentRange { start, end: *end };
                start = *end;
                Stage {
                    worker: WorkerId(worker + i as u64),
                    segments,
                    recompute: None,
                }
            };
            Pipeline {
                stages: ends.iter().enumerate().map(stage).collect(),
                samples,
            }
        };
        Shape {
            pipelines: vec![
                pipeline(1, &[5, 10], SampleRange { start: 0, end: 8 }),
                pipeline(3, &[10], SampleRange { start: 8, end: 12 }),
                pipeline(4, &[5, 10], SampleRange { start: 12, end: 20 }),
            ],
            spares: Vec::new(),
            micro_batch_size: 2,
            schedule: ScheduleSpec {
                kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
                recompute: Recompute::None,
            },
            predicted: Prediction::default(),
        }
    }

    fn costs() -> Costs {
        let gpt = GptSizes {
            layers: 4,
            hidden: 64,
            sequence: 32,
            vocabulary: 100,
            tied: true,
        };
        Costs::estimate(gpt, Device::CPU_CORE)
    }

    #[test]
    fn a_trace_shows_each_kind_of_pipeline_once_and_all_it_does() {
        let traces = trace(&costs(), &shape());
        let kinds: Vec<_> = traces
            .iter()
            .map(|t| (t.first, t.count, t.micro_batches))
            .collect();
        assert_eq!(kinds, [(0, 2, 4), (1, 1, 2)]);
        let compute = |t: &PipelineTrace| {
            t.spans
                .iter()
                .filter(|s| matches!(s.what, What::Compute(_)))
                .count()
        };
        assert_eq!(traces.iter().map(compute).collect::<Vec<_>>(), [2 * 2 * 4, 2 * 2]);
        assert_eq!(
            traces[0].spans.len() - compute(&traces[0]),
            2 * 4,
            "one transfer each way"
        );
        assert!(
            traces
                .iter()
                .flat_map(|t| &t.ends)
                .all(|e| e.rings_to_ms > e.rings_from_ms)
        );
    }

    #[test]
    fn noise_makes_steps_longer_and_the_same_seed_gives_the_same_steps() {
        let (costs, shape) = (costs(), shape());
        let ends = trace(&costs, &shape);
        let quiet = ends
            .iter()
            .flat_map(|t| &t.ends)
            .map(|e| e.ms)
            .fold(0.0, f64::max);
        let still = spread(&costs, &shape, 0.0, 1, 3);
        assert!((still.mean_ms - quiet).abs() < 1e-9 && (still.p95_ms - quiet).abs() < 1e-9);
        let noisy = spread(&costs, &shape, 0.2, 1, 20);
        assert!(noisy.p95_ms > noisy.mean_ms && noisy.mean_ms > quiet && noisy.p95_ms < quiet * 1.2 + 1e-9);
        assert_eq!(noisy, spread(&costs, &shape, 0.2, 1, 20));
        assert_ne!(noisy, spread(&costs, &shape, 0.2, 2, 20));
    }
}
