//! Compute: whole steps of a real engine on one stage, taken apart by segment.

use crate::backend::Backend;
use crate::engine::{Engine, EngineConfig, EngineError, SampleError, SegmentTiming, StepReport, Work};
use crate::model::Module;
use crate::transport::Link;
use crate::transport::local::LocalMesh;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::{Optimizer, Sharding, Training};
use varuna_plan::cost::{self, Chunked};
use varuna_plan::state::mix;
use varuna_plan::{
    Decision, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec, Shape, Stage,
    StateId, Unit, WorkerId,
};
use varuna_torch::Attention;

const ME: WorkerId = WorkerId(1);
/// A step that takes longer does not end any more.
const DEADLINE: Duration = Duration::from_secs(3600);

/// Tokens from a hash: no data is needed, and none is compressible.
struct Random {
    vocabulary: u64,
}

impl crate::engine::Samples for Random {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        for (i, token) in tokens.iter_mut().enumerate() {
            *token = i64::try_from(mix(index, i as u64) % self.vocabulary).unwrap_or(0);
        }
        Ok(())
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        self.train(index, tokens)
    }
    fn held_out_len(&self) -> u64 {
        0
    }
}

/// An engine that holds a whole model and trains it on random tokens.
pub(super) struct Bench {
    pub(super) model: Module,
    pub(super) backend: Backend,
    /// How a transformer's attention is computed.
    pub(super) attention: Option<Attention>,
    engine: Engine,
    link: Arc<dyn Link>,
    at: StateId,
}

/// The times that were measured.
#[derive(Default)]
pub(super) struct Samples {
    /// Milliseconds by segment, micro-batch size and work.
    segment_timings: BTreeMap<(u32, u32, Work), Vec<f64>>,
    /// Milliseconds of the optimizer by unit.
    optimizer: BTreeMap<Unit, Vec<f64>>,
    /// Milliseconds of a step that are in no timing of a segment: zeroing, norms, tokens.
    rest: Vec<f64>,
    tied: Option<Unit>,
    segments: u32,
    parameters: BTreeMap<Unit, u64>,
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

impl Samples {
    fn take(&mut self, segment_timings: &[SegmentTiming], warm: bool) {
        for timing in segment_timings.iter().filter(|_| warm) {
            let key = (timing.segment, timing.samples, timing.work);
            self.segment_timings.entry(key).or_default().push(ms(timing.took));
        }
    }

    /// All timings of segments of one kind.
    pub(super) fn of(&self, segments: &[u32], samples: u32, work: Work) -> Vec<f64> {
        let segment_timings = segments
            .iter()
            .filter_map(|s| self.segment_timings.get(&(*s, samples, work)));
        segment_timings.flatten().copied().collect()
    }

    /// The optimizer of a segment of this kind, with its share of what a step takes besides the timings of its segments. A tied weight counts
    /// at both ends: where they are one stage, once too often.
    #[expect(clippy::cast_precision_loss, reason = "parameter counts")]
    pub(super) fn optimizer_ms(&self, segments: &[u32]) -> f64 {
        let Some(first) = segments.first() else { return 0.0 };
        let all: f64 = self.parameters.values().map(|n| *n as f64).sum();
        let (rest, _) = super::middle(&self.rest);
        let of = |unit: Unit, among: &[u32]| {
            let times = among.iter().filter_map(|s| self.optimizer.get(&Unit(*s)));
            let times: Vec<f64> = match Some(unit) == self.tied {
                true => self.optimizer.get(&unit).cloned().unwrap_or_default(),
                false => times.flatten().copied().collect(),
            };
            let share = self.parameters.get(&unit).map_or(0.0, |n| *n as f64) / all.max(1.0);
            super::middle(&times).0 + rest * share
        };
        let ends = *first == 0 || *first + 1 == self.segments;
        let tied = self.tied.filter(|_| ends).map_or(0.0, |unit| of(unit, &[]));
        of(Unit(*first), segments) + tied
    }
}

/// The upper bound of random tokens. In a user-defined model some numbers, such as labels, may have a smaller bound, so all are 0.
fn vocabulary(model: &Module) -> u64 {
    match model {
        Module::Transformer(model) => model.vocabulary_size.max(1).into(),
        Module::Exported(_) => 1,
    }
}

impl Bench {
    /// Makes the model's first state.
    pub(super) fn new(
        model: Module,
        training: &Training,
        backend: Backend,
        attention: Option<Attention>,
    ) -> Result<Bench, EngineError> {
        let mut engine = Engine::new(EngineConfig {
            me: ME,
            model: model.clone(),
            training: Training {
                evaluation: None,
                // Costs are those of whole units, whoever shares out their state, and so are the plans that are measured here.
                optimizer: Optimizer {
                    sharding: Sharding::Off,
                    ..training.optimizer.clone()
                },
                ..training.clone()
            },
            backend,
            samples: Arc::new(Random {
                vocabulary: vocabulary(&model),
            }),
        });
        for unit in model.layout().all_units() {
            engine.initialise(unit)?;
        }
        Ok(Bench {
            model,
            backend,
            attention,
            engine,
            link: LocalMesh::new(&[ME]).link(ME),
            at: StateId::INITIAL,
        })
    }

    /// A chunk's bytes on this device; estimates without a profile are the processor's.
    pub(super) fn of_device(&self, chunked: Chunked) -> Chunked {
        match self.backend.device.is_host() {
            true => chunked,
            false => Chunked {
                bytes_max: 2 * cost::Device::GPU_LOGITS,
                ..chunked
            },
        }
    }

    /// One stage, with this many samples in micro-batches of this size.
    fn plan(&self, samples: u64, micro_batch_size: u32, recompute: Recompute) -> Plan {
        let layout = self.model.layout();
        let kind = match recompute {
            Recompute::None => ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            // All forwards first, so that each micro-batch is recomputed.
            _ => ScheduleKind::Gpipe,
        };
        let shape = Shape {
            pipelines: vec![Pipeline {
                stages: vec![Stage {
                    worker: ME,
                    segments: layout.whole(),
                    recompute: None,
                }],
                samples: SampleRange {
                    start: 0,
                    end: samples,
                },
            }],
            spares: Vec::new(),
            micro_batch_size,
            schedule: ScheduleSpec { kind, recompute },
            predicted: Prediction::default(),
        };
        Plan::first(layout, shape)
    }

    /// Runs a step; the optimizer unit by unit. Its times go to `into`.
    fn step(&mut self, plan: &Plan, into: &mut Samples, warm: bool) -> Result<StepReport, EngineError> {
        let deadline = Instant::now() + DEADLINE;
        let report = self
            .engine
            .run_step(plan, self.at.step, &self.link, deadline)
            .map_err(|f| f.error)?;
        let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
        let decision = Decision::conclude(self.at, plan.generation, &parts, None);
        for unit in self.engine.held() {
            let start = self.backend.streams.mark()?;
            self.engine.apply(&decision, &[unit])?;
            if warm {
                let took = self.backend.streams.mark()?.since(&start)?;
                into.optimizer.entry(unit).or_default().push(ms(took));
            }
        }
        self.at = decision.id;
        if warm && plan.shape.schedule.recompute == Recompute::None {
            let segment_timings: Duration = report.segment_timings.iter().map(|l| l.took).sum();
            into.rest
                .push(ms(report.timings.total.saturating_sub(segment_timings)));
        }
        Ok(report)
    }

    /// Steps of all micro-batch sizes in turn, so that changes of the machine's speed affect all of them alike.
    pub(super) fn measure(&mut self, sizes: &[u32], repeats: u32) -> Result<Samples, EngineError> {
        let largest = u64::from(sizes.last().copied().unwrap_or(1));
        let layout = self.model.layout();
        let mut found = Samples {
            tied: layout.tied_unit(),
            segments: layout.segments,
            ..Samples::default()
        };
        for unit in layout.all_units() {
            let parameters = self.model.unit(unit).parameters;
            let elements = parameters.iter().map(|p| p.elements() as u64).sum();
            found.parameters.insert(unit, elements);
        }
        for round in 0..=repeats {
            tracing::info!("compute: round {round} of {repeats}");
            for size in sizes {
                let warm = round > 0;
                let whole = largest / u64::from(*size) * u64::from(*size);
                let plan = self.plan(whole, *size, Recompute::None);
                let report = self.step(&plan, &mut found, warm)?;
                found.take(&report.segment_timings, warm);
                // Two micro-batches are recomputed; their forwards keep nothing and do not count.
                if round < 2 || round == repeats {
                    let plan = self.plan(u64::from(size * 2), *size, Recompute::Full);
                    let report = self.step(&plan, &mut found, false)?;
                    let again: Vec<SegmentTiming> = report
                        .segment_timings
                        .into_iter()
                        .filter(|l| l.work == Work::Recompute)
                        .collect();
                    found.take(&again, warm);
                }
            }
        }
        Ok(found)
    }

    /// Forwards and backwards of a step of two samples, milliseconds.
    pub(super) fn step_work_ms(&mut self) -> Result<f64, EngineError> {
        let plan = self.plan(2, 1, Recompute::None);
        let report = self.step(&plan, &mut Samples::default(), false)?;
        Ok(report.segment_timings.iter().map(|l| ms(l.took)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::Numerics;
    use varuna_api::training::default_decaying;
    use varuna_api::{LearningRate, Schedule, UpdateRule};
    use varuna_model::{Transformer, gpt2};

    fn bench() -> Bench {
        bench_on(Backend::of_processor(Numerics::FP32))
    }

    fn bench_on(backend: Backend) -> Bench {
        bench_of(backend, Sharding::Off)
    }

    fn bench_of(backend: Backend, sharding: Sharding) -> Bench {
        let model = Transformer {
            layers: 2,
            hidden_size: 16,
            heads: 2,
            sequence_length: 8,
            vocabulary_size: 30,
            ..gpt2::SMALL
        };
        let training = Training {
            global_batch_size: 8,
            steps: 10,
            seed: 1,
            optimizer: Optimizer {
                rule: UpdateRule::Adamw {
                    beta1: 0.9,
                    beta2: 0.95,
                    epsilon: 1e-8,
                },
                weight_decay: 0.1,
                weight_decay_on: default_decaying(),
                clip_norm: Some(1.0),
                sharding,
            },
            learning_rate: LearningRate {
                peak: 1e-3,
                min: 1e-4,
                warmup_steps: 1,
                decay_steps: 10,
                schedule: Schedule::Cosine,
            },
            evaluation: None,
            loss_scaling: varuna_plan::LossScaling::OFF,
            skip_limit: varuna_api::training::DEFAULT_SKIP_LIMIT,
            packing: varuna_api::Packing::default(),
            masking: None,
        };
        Bench::new(model.into(), &training, backend, Some(Attention::Flash)).unwrap()
    }

    #[test]
    fn every_segment_is_measured_at_every_size_in_every_way() {
        let mut bench = bench();
        let found = bench.measure(&[1, 3], 2).unwrap();
        for segment in 0..bench.model.layout().segments {
            // Micro-batches of 1 and of 3 samples, for three samples in each of two steps: six or two micro-batches.
            for (size, count) in [(1, 6), (3, 2)] {
                for work in [Work::Forward, Work::Backward] {
                    assert_eq!(
                        found.of(&[segment], size, work).len(),
                        count,
                        "{segment} {size} {work:?}"
                    );
                }
                assert!(found.of(&[segment], size, Work::Recompute).len() >= 2);
            }
            assert!(found.optimizer_ms(&[segment]) > 0.0);
        }
    }

    #[test]
    fn whole_units_are_profiled_despite_sharding() {
        let mut bench = bench_of(Backend::of_processor(Numerics::FP32), Sharding::Zero1);
        let found = bench.measure(&[1], 1).unwrap();
        for segment in 0..bench.model.layout().segments {
            for work in [Work::Forward, Work::Backward] {
                assert_eq!(found.of(&[segment], 1, work).len(), 1, "{segment} {work:?}");
            }
            assert!(found.optimizer_ms(&[segment]) > 0.0);
        }
    }

    /// Streams of the stand-in for the driver, for whose work the host does not wait.
    #[test]
    fn a_device_that_is_late_is_measured_by_its_own_clock() {
        let library = std::env::current_exe().unwrap();
        let library = library.with_file_name("libvaruna_fake_nccl.so");
        let libraries = varuna_cuda::Libraries::load_from(&library).unwrap();
        let device = varuna_torch::Device::CpuSeparateMemory;
        let mut bench = bench_on(Backend {
            device,
            streams: varuna_torch::Streams::open(&libraries, device, 0, varuna_torch::Copies::Beside)
                .unwrap(),
            ..Backend::of_processor(Numerics::FP32)
        });
        let found = bench.measure(&[1, 2], 1).unwrap();
        for segment in 0..bench.model.layout().segments {
            for work in [Work::Forward, Work::Backward] {
                let times = found.of(&[segment], 2, work);
                // The device's clock advances by at least 150 microseconds from one mark to the next, whatever is computed between them.
                assert!(
                    times.iter().all(|ms| *ms >= 0.14),
                    "{segment} {work:?}: {times:?}"
                );
                assert!(!times.is_empty());
            }
            assert!(found.optimizer_ms(&[segment]) >= 0.14);
        }
    }

    #[test]
    fn memory_grows_by_what_autograd_keeps() {
        let bench = bench();
        let bytes = super::super::memory::measure(&bench).unwrap();
        let block = bytes[&1];
        // A block keeps at least the boundary of 8 tokens of width 16, in single precision.
        assert!(block.saved >= 8 * 16 * 4, "{block:?}");
        // The head keeps the output of its norm, and needs the logits of 8 tokens over a vocabulary of 30 in its backward.
        let head = bytes[&5];
        assert!(head.saved >= 8 * 16 * 4 && head.working >= 8 * 30 * 4, "{head:?}");
    }
}
