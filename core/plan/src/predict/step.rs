//! The prediction of a step: equal pipelines are simulated once, then rings and optimizers are added, then the effect of shared cores.

use super::pipeline::run_pipeline;
use super::rings::{self, RingMembers, StageEnd};
use super::shared_cores;
use super::simulation::{Simulated, Span};
use super::stage_times::{StageTimes, period_ms};
use super::work::{PipelineWork, Speeds, StageWork, StepWork, Topology, ranges, schedules};
use crate::cost::Costs;
use crate::document::{ScheduleKind, Shape};
use crate::layout::SegmentRange;
use crate::schedule::stash_max;
use crate::state::mix;
use std::borrow::Borrow;

/// Up to this many workers that share cores are simulated together; for more, sharing is ignored.
const MOST_SHARING: usize = 64;

/// Where a step's time goes, in milliseconds; the sum is the step time.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct StepParts {
    /// All micro-batches at the pace of the slowest stage.
    pub steady_ms: f64,
    /// Filling and draining the pipeline.
    pub fill_ms: f64,
    /// Gradient rings and optimizer after the last backward.
    pub rings_ms: f64,
}

/// Pipelines of equal stages and equal shares of the batch, and what each of them does.
#[derive(Clone, PartialEq, Debug)]
pub struct PipelineTrace {
    /// Index of the first of them in the shape.
    pub first: usize,
    /// Number of these pipelines.
    pub count: usize,
    /// Micro-batches that each runs.
    pub micro_batches: u32,
    /// Segments of each stage.
    pub stages: Vec<SegmentRange>,
    /// Number of workers of each; stage s is on worker s modulo this.
    pub workers: usize,
    /// Compute and transfers, in no particular order.
    pub spans: Vec<Span>,
    /// Rings and optimizer of each stage.
    pub ends: Vec<StageEnd>,
}

/// The predicted step of a shape.
#[derive(Clone, PartialEq, Debug)]
pub struct StepPrediction {
    /// The step time, milliseconds. If the costs have a host, workers take turns on the cores of their nodes.
    pub step_ms: f64,
    /// The parts of the step time.
    pub parts: StepParts,
    /// Share of the workers' time, 0..1, in which the average one does not compute.
    pub bubble: f64,
    /// Each kind of pipeline, computed as if every worker had cores of its own.
    pub pipelines: Vec<PipelineTrace>,
}

/// Predicts the step of a shape on workers of these speeds.
#[must_use]
pub fn predict(costs: &Costs, shape: &Shape, speeds: &Speeds, topology: Topology) -> StepPrediction {
    let work = StepWork::new(shape, speeds);
    let mut spans: Vec<Vec<Span>> = Vec::new();
    let kinds = kinds(&work);
    let groups: Vec<PipelineGroup> = kinds
        .iter()
        .map(|(first, count)| {
            let mut own = Vec::new();
            let pipeline = &work.pipelines[*first];
            let group = PipelineGroup::new(costs, &work, pipeline, *count, |_, ms| ms, |span| own.push(span));
            spans.push(own);
            group
        })
        .collect();
    let step = StepTotals::new(costs, &groups, shared_cores_ms(costs, &work, topology));
    let done = groups.into_iter().zip(spans).zip(step.ends);
    let trace = |((first, count), ((group, spans), ends)): (&(usize, usize), ((PipelineGroup, _), _))| {
        PipelineTrace {
            first: *first,
            count: *count,
            micro_batches: group.micro_batches,
            stages: group.stages,
            workers: group.workers,
            spans,
            ends,
        }
    };
    StepPrediction {
        step_ms: step.step_ms,
        parts: step.parts,
        bubble: step.bubble,
        pipelines: kinds.iter().zip(done).map(trace).collect(),
    }
}

/// Mean and 95th percentile of a step under noise, milliseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// Mean of all steps.
    pub mean_ms: f64,
    /// The 95th percentile: 95 % of the steps take no longer.
    pub p95_ms: f64,
}

/// Predicts `runs` steps on nominal workers with cores of their own. Every duration is stretched by a factor of up to `1 + most` (0.1: ten
/// per cent), uniformly distributed, from a seed.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "53 bits of a hash, and a few runs")]
pub fn predict_with_noise(costs: &Costs, shape: &Shape, most: f64, seed: u64, runs: u32) -> Spread {
    let work = StepWork::new(shape, &Speeds::nominal());
    let kinds = kinds(&work);
    let mut steps: Vec<f64> = (0..u64::from(runs.max(1)))
        .map(|i| {
            let mut state = mix(seed, i);
            let mut noise = |_: usize, ms: f64| {
                state = mix(state, 1);
                ms * (1.0 + most * ((state >> 11) as f64 / (1u64 << 53) as f64))
            };
            let group = |(first, count): &(usize, usize)| {
                PipelineGroup::new(costs, &work, &work.pipelines[*first], *count, &mut noise, |_| {})
            };
            let groups: Vec<PipelineGroup> = kinds.iter().map(group).collect();
            StepTotals::new(costs, &groups, None).step_ms
        })
        .collect();
    steps.sort_by(f64::total_cmp);
    let at = (steps.len() * 95).div_ceil(100).max(1) - 1;
    Spread {
        mean_ms: steps.iter().sum::<f64>() / steps.len() as f64,
        p95_ms: steps[at],
    }
}

/// The kinds of pipelines, in order of their first pipeline: (index of the first, how many).
fn kinds(work: &StepWork) -> Vec<(usize, usize)> {
    let micro_batches = |p: &PipelineWork| p.micro_batches(work.micro_batch_size);
    let mut kinds: Vec<(usize, usize)> = Vec::new();
    for (i, pipeline) in work.pipelines.iter().enumerate() {
        let same = |(first, _): &&mut (usize, usize)| {
            let other = &work.pipelines[*first];
            micro_batches(other) == micro_batches(pipeline) && other.stages == pipeline.stages
        };
        match kinds.iter_mut().find(same) {
            Some((_, count)) => *count += 1,
            None => kinds.push((i, 1)),
        }
    }
    kinds
}

/// The step time of workers that share the cores of their nodes, in milliseconds. None if they do not share cores, or are too many to
/// simulate together.
pub(crate) fn shared_cores_ms(costs: &Costs, work: &StepWork, topology: Topology) -> Option<f64> {
    let host = costs.host.as_ref()?;
    (work.workers() <= MOST_SHARING).then(|| shared_cores::step_ms(costs, host, work, topology))
}

/// Equal pipelines, and the simulated times of one of them.
pub(crate) struct PipelineGroup {
    pub(crate) count: usize,
    pub(crate) micro_batches: u32,
    pub(crate) stages: Vec<SegmentRange>,
    /// Workers of each pipeline.
    pub(crate) workers: usize,
    pub(crate) simulated: Simulated,
    /// Time of all micro-batches at the pipeline's steady rate, milliseconds.
    pub(crate) steady_ms: f64,
}

impl PipelineGroup {
    pub(crate) fn new(
        costs: &Costs,
        work: &StepWork,
        pipeline: &PipelineWork,
        count: usize,
        noise: impl FnMut(usize, f64) -> f64,
        record: impl FnMut(Span),
    ) -> PipelineGroup {
        let (m, stages) = (work.micro_batch_size, &pipeline.stages);
        let n = pipeline.micro_batches(m);
        let times: Vec<StageTimes> = stages.iter().map(|s| StageTimes::new(costs, *s, m)).collect();
        let specs = schedules(stages, work.kind);
        let simulated = run_pipeline(costs.runtime, &specs, &times, n, noise, record);
        let workers = work.kind.workers(stages.len());
        PipelineGroup {
            count,
            micro_batches: n,
            stages: ranges(stages),
            workers,
            steady_ms: steady_ms(costs, work.kind, stages, &times, n, &simulated),
            simulated,
        }
    }
}

/// Time of all micro-batches at the rate of the slowest stage, or, for interleaved pipelines, of the busiest worker, milliseconds.
fn steady_ms(
    costs: &Costs,
    kind: ScheduleKind,
    stages: &[StageWork],
    times: &[StageTimes],
    micro_batches: u32,
    simulated: &Simulated,
) -> f64 {
    let workers = kind.workers(stages.len());
    if workers < stages.len() {
        let busy = |w: usize| simulated.busy_ms.iter().skip(w).step_by(workers).sum::<f64>();
        return (0..workers).map(busy).fold(0.0, f64::max);
    }
    let in_flight = (1..=stages.len()).map(|depth| stash_max(kind, depth, 0, micro_batches));
    period_ms(costs.runtime, times, &in_flight.collect::<Vec<_>>()) * f64::from(micro_batches)
}

/// The totals of all groups of pipelines.
pub(crate) struct StepTotals {
    pub(crate) step_ms: f64,
    pub(crate) parts: StepParts,
    pub(crate) bubble: f64,
    /// The end of each stage, by group and stage.
    pub(crate) ends: Vec<Vec<StageEnd>>,
}

impl StepTotals {
    /// The step of these pipelines. `shared_cores_ms` is the step time if their workers share cores.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(crate) fn new<G: Borrow<PipelineGroup>>(
        costs: &Costs,
        groups: &[G],
        shared_cores_ms: Option<f64>,
    ) -> StepTotals {
        let groups = || groups.iter().map(Borrow::borrow);
        let members: Vec<RingMembers> = groups()
            .map(|g: &PipelineGroup| RingMembers {
                stages: &g.stages,
                workers: g.workers,
                ends_ms: &g.simulated.ends_ms,
                count: g.count,
            })
            .collect();
        let ends = rings::ends(costs, &members);
        let apart_ms = ends.iter().flatten().map(|end| end.ms).fold(0.0, f64::max);
        let longest = |of: &dyn Fn(&PipelineGroup) -> f64| groups().map(of).fold(0.0, f64::max);
        let makespan_ms = longest(&|g| g.simulated.makespan_ms());
        let steady_ms = longest(&|g| g.steady_ms);
        let busy_ms = groups().map(|g| g.count as f64 * g.simulated.busy_ms.iter().sum::<f64>());
        let workers: usize = groups().map(|g| g.count * g.workers).sum();
        let step_ms = shared_cores_ms.map_or(apart_ms, |ms| ms.max(makespan_ms));
        // A step that takes no time has no bubble, and what is no number cannot be written into a plan.
        let worked = workers as f64 * step_ms;
        let busy = if worked > 0.0 {
            busy_ms.sum::<f64>() / worked
        } else {
            1.0
        };
        StepTotals {
            step_ms,
            parts: StepParts {
                steady_ms,
                fill_ms: makespan_ms - steady_ms,
                rings_ms: step_ms - makespan_ms,
            },
            bubble: (1.0 - busy).clamp(0.0, 1.0),
            ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Device;
    use crate::document::{Pipeline, Prediction, Recompute, SampleRange, ScheduleSpec, Stage};
    use crate::ids::WorkerId;
    use crate::predict::simulation::Activity;
    use varuna_model::{Transformer, gpt2};

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
        let gpt = Transformer {
            layers: 4,
            hidden_size: 64,
            sequence_length: 32,
            vocabulary_size: 100,
            tied_head: true,
            ..gpt2::SMALL
        };
        Costs::estimate(&gpt.spec(), Device::CPU_CORE)
    }

    #[test]
    fn a_trace_shows_each_kind_of_pipeline_once_and_all_it_does() {
        let traces = predict(&costs(), &shape(), &Speeds::nominal(), Topology::ONE_NODE).pipelines;
        let kinds: Vec<_> = traces
            .iter()
            .map(|t| (t.first, t.count, t.micro_batches))
            .collect();
        assert_eq!(kinds, [(0, 2, 4), (1, 1, 2)]);
        let compute = |t: &PipelineTrace| {
            t.spans
                .iter()
                .filter(|s| matches!(s.activity, Activity::Compute(_)))
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
    fn noise_lengthens_steps_and_follows_the_seed() {
        let (costs, shape) = (costs(), shape());
        let quiet = predict(&costs, &shape, &Speeds::nominal(), Topology::ONE_NODE).step_ms;
        let still = predict_with_noise(&costs, &shape, 0.0, 1, 3);
        assert!((still.mean_ms - quiet).abs() < 1e-9 && (still.p95_ms - quiet).abs() < 1e-9);
        let noisy = predict_with_noise(&costs, &shape, 0.2, 1, 20);
        assert!(noisy.p95_ms > noisy.mean_ms && noisy.mean_ms > quiet && noisy.p95_ms < quiet * 1.2 + 1e-9);
        assert_eq!(noisy, predict_with_noise(&costs, &shape, 0.2, 1, 20));
        assert_ne!(noisy, predict_with_noise(&costs, &shape, 0.2, 2, 20));
    }
}
