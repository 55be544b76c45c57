use super::*;
use crate::cost::{Costs, Device};
use crate::document::{Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Stage};
use crate::layout::SegmentRange;
use crate::predict::{Speeds, Topology, predict};
use proptest::prelude::*;
use varuna_model::{Transformer, gpt2};

/// Samples of each pipeline: whole groups for interleaved schedules.
const SAMPLES: u64 = 12;

fn costs() -> Costs {
    let gpt = Transformer {
        layers: 10,
        hidden_size: 64,
        sequence_length: 32,
        vocabulary_size: 100,
        ..gpt2::SMALL
    };
    Costs::estimate(&gpt.spec(), Device::CPU_CORE)
}

/// A shape with this many pipelines and stages, in which all workers differ.
fn shape(pipelines: u64, stages: u32, chunks: u32) -> Shape {
    let segments = u32::try_from(costs().segments.len()).unwrap();
    let kind = match chunks {
        1 => ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
        chunks => ScheduleKind::Interleaved { chunks },
    };
    let workers = kind.workers(stages as usize) as u64;
    let pipeline = |i: u64| Pipeline {
        stages: (0..stages)
            .map(|s| Stage {
                worker: WorkerId(1 + i * workers + u64::from(s) % workers),
                segments: SegmentRange {
                    start: s * segments / stages,
                    end: (s + 1) * segments / stages,
                },
                recompute: None,
            })
            .collect(),
        samples: SampleRange {
            start: i * SAMPLES,
            end: (i + 1) * SAMPLES,
        },
    };
    Shape {
        pipelines: (0..pipelines).map(pipeline).collect(),
        spares: Vec::new(),
        micro_batch_size: 1,
        schedule: ScheduleSpec {
            kind,
            recompute: Recompute::Full,
        },
        predicted: Prediction::default(),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of a short step"
)]
fn us(ms: f64) -> u64 {
    (ms * 1e3).round() as u64
}

/// The reports of the workers for the predicted step. Each worker's clock is off by this many microseconds.
fn reported(shape: &Shape, clocks_off: &[i64]) -> MeasuredStep {
    let mut workers = BTreeMap::new();
    for trace in predict(&costs(), shape, &Speeds::nominal(), Topology::ONE_NODE).pipelines {
        for (index, pipeline) in shape
            .pipelines
            .iter()
            .enumerate()
            .skip(trace.first)
            .take(trace.count)
        {
            for w in 0..trace.workers {
                let compute = trace.spans.iter().filter_map(|s| match s.activity {
                    Activity::Compute(instruction) if s.stage % trace.workers == w => Some(MeasuredTask {
                        stage: u32::try_from(s.stage).unwrap(),
                        instruction,
                        from_us: us(s.start_ms),
                        to_us: us(s.end_ms),
                    }),
                    _ => None,
                });
                let mut tasks: Vec<MeasuredTask> = compute.collect();
                tasks.sort_by_key(|t| t.from_us);
                let end = trace.ends[trace.stages.len() - trace.workers + w];
                let off = clocks_off[(index * trace.workers + w) % clocks_off.len()];
                let work = MeasuredWork {
                    began_us: 1_700_000_000_000_000_u64.saturating_add_signed(off),
                    tasks,
                    reduced_us: us(end.rings_to_ms),
                    optimizer_from_us: us(end.optimizer_from_ms),
                    optimizer_to_us: us(end.ms),
                };
                workers.insert(pipeline.stages[w].worker, work);
            }
        }
    }
    MeasuredStep {
        generation: Generation(3),
        step: Step(7),
        workers,
    }
}

fn sorted(trace: &PipelineTrace) -> Vec<Span> {
    let compute = trace.spans.iter().copied();
    let mut spans: Vec<Span> = compute
        .filter(|s| matches!(s.activity, Activity::Compute(_)))
        .collect();
    spans.sort_by(|a, b| (a.stage, a.start_ms).partial_cmp(&(b.stage, b.start_ms)).unwrap());
    spans
}

#[test]
fn what_is_told_of_a_step_comes_to_its_trace() {
    for (pipelines, stages, chunks) in [(1, 1, 1), (1, 3, 1), (3, 4, 1), (1, 4, 2), (2, 6, 2)] {
        let shape = shape(pipelines, stages, chunks);
        let expected = predict(&costs(), &shape, &Speeds::nominal(), Topology::ONE_NODE).pipelines;
        let traces = reported(&shape, &[0]).traces(&shape);
        assert_eq!(traces.len() as u64, pipelines);
        for (index, trace) in traces.iter().enumerate() {
            let expected = &expected[0];
            assert_eq!(
                (trace.first, trace.count, trace.workers),
                (index, 1, expected.workers)
            );
            assert_eq!(
                (trace.micro_batches, &trace.stages),
                (expected.micro_batches, &expected.stages)
            );
            let (spans, wanted) = (sorted(trace), sorted(expected));
            assert_eq!(spans.len(), wanted.len());
            for (a, b) in spans.iter().zip(&wanted) {
                assert_eq!((a.stage, a.activity), (b.stage, b.activity));
                assert!((a.start_ms - b.start_ms).abs() < 2e-3, "{a:?} {b:?}");
                assert!((a.end_ms - b.end_ms).abs() < 2e-3, "{a:?} {b:?}");
            }
            let last = stages as usize - 1;
            assert!((trace.ends[last].ms - expected.ends[last].ms).abs() < 2e-3);
            let optimizers = [trace, expected].map(|t| t.ends[last].optimizer_from_ms);
            assert!((optimizers[0] - optimizers[1]).abs() < 2e-3, "{optimizers:?}");
        }
    }
}

proptest! {
    #[test]
    fn whatever_clocks_say_no_stage_begins_before_what_it_waits_for(
        (stages, chunks) in prop_oneof![(1..6u32).prop_map(|s| (s, 1)), (2..4u32).prop_map(|w| (2 * w, 2))],
        clocks_off in prop::collection::vec(-50_000..50_000i64, 1..6),
    ) {
        let shape = shape(1, stages, chunks);
        let step = reported(&shape, &clocks_off);
        let traces = step.traces(&shape);
        let trace = &traces[0];
        let at = |task: Task| {
            let is = |s: &&Span| s.stage == task.stage && s.activity == Activity::Compute(task.instruction);
            trace.spans.iter().find(is).copied()
        };
        for span in &trace.spans {
            let Activity::Compute(instruction) = span.activity else { continue };
            let Some(other) = waits_for(Task { stage: span.stage, instruction }).and_then(at) else { continue };
            // A message from the last worker back to the first may prove more, but is not considered.
            if span.stage.abs_diff(other.stage) == 1 && (span.stage % trace.workers).abs_diff(other.stage % trace.workers) == 1 {
                prop_assert!(span.start_ms > other.end_ms - 1e-6, "{:?} before {:?}", span, other);
            }
        }
        // The differences between one worker's own times do not change, and no time is before the beginning.
        let first = trace.spans.iter().map(|s| s.start_ms).fold(f64::INFINITY, f64::min);
        prop_assert!(first.abs() < 1e-9);
        for (w, work) in step.workers.values().enumerate() {
            let own: Vec<&Span> = trace.spans.iter().filter(|s| s.stage % trace.workers == w).collect();
            for (span, task) in own.iter().zip(&work.tasks) {
                let (since, reported) = (span.start_ms - own[0].start_ms, task.from_us - work.tasks[0].from_us);
                prop_assert!((since - milliseconds(reported)).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn a_clock_that_can_be_right_is_believed() {
    let shape = shape(1, 3, 1);
    let (exact, off) = (reported(&shape, &[0]), reported(&shape, &[0, 1, 2]));
    let (exact, off) = (exact.traces(&shape), off.traces(&shape));
    let start =
        |t: &[PipelineTrace], stage| sorted(&t[0]).iter().find(|s| s.stage == stage).unwrap().start_ms;
    // One or two microseconds are less than any message takes here.
    for (stage, by) in [(1, 1e-3), (2, 2e-3)] {
        assert!((start(&off, stage) - start(&exact, stage) - by).abs() < 1e-6);
    }
}

#[test]
fn pipeline_is_shown_if_all_its_workers_reported() {
    let shape = shape(6, 2, 1);
    let mut step = reported(&shape, &[0]);
    let measured = measured_workers(&shape);
    assert_eq!(measured, (1..=8).map(WorkerId).collect());
    let firsts =
        |step: &MeasuredStep| -> Vec<usize> { step.traces(&shape).iter().map(|t| t.first).collect() };
    assert_eq!(firsts(&step), [0, 1, 2, 3]);
    step.workers.remove(&WorkerId(4));
    assert_eq!(firsts(&step), [0, 2, 3]);
    let before = step.traces(&shape);
    // With this time, the other worker's clock would be hours behind.
    let strange = |stage| MeasuredTask {
        stage,
        instruction: Instruction::Backward(0),
        from_us: 0,
        to_us: 10_000_000_000,
    };
    // Stages of the other worker, and a stage that does not exist.
    let first = step.workers.get_mut(&WorkerId(1)).unwrap();
    first.tasks.extend([strange(1), strange(2), strange(u32::MAX)]);
    step.workers.insert(WorkerId(99), MeasuredWork::default());
    let after = step.traces(&shape);
    assert_eq!(after, before);
}

#[test]
fn nothing_measured_is_no_picture() {
    let step = MeasuredStep {
        generation: Generation(1),
        step: Step(1),
        workers: BTreeMap::new(),
    };
    assert_eq!(step.traces(&shape(2, 2, 1)), []);
    let silent = MeasuredStep {
        workers: (1..=4).map(|w| (WorkerId(w), MeasuredWork::default())).collect(),
        ..step
    };
    assert!(silent.traces(&shape(2, 2, 1)).iter().all(|t| t.spans.is_empty()));
}

#[test]
fn a_measured_step_is_read_back_from_its_text() {
    let step = reported(&shape(2, 2, 1), &[5]);
    let text = serde_json::to_string(&step).unwrap();
    assert_eq!(serde_json::from_str::<MeasuredStep>(&text).unwrap(), step);
    assert!(
        text.contains(r#""instruction":{"forward":0},"fromUs":"#),
        "{text}"
    );
}
