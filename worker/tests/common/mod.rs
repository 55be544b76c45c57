//! A small model, synthetic text, engines in threads, and the reference in plain libtorch.
#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod formulas;
pub(crate) mod late;
pub(crate) mod plain;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::masking::Masking;
use varuna_api::training::{DEFAULT_SKIP_LIMIT, default_decaying};
use varuna_api::{
    Evaluation, LearningRate, Optimizer, Packing, Precision, Schedule, Sharding, Training, UpdateRule,
};
use varuna_model::{
    Features, Layout, ParameterKind, Positions, Real, Rotary, Scaling, Transformer, bert, llama3, qwen3,
};
use varuna_plan::state::UnitNorm;
use varuna_plan::{
    Decision, LossScaling, Moments, OptimizerProgress, Pipeline, Plan, Prediction, Recompute, SampleRange,
    ScheduleKind, ScheduleSpec, SegmentRange, Shape, Stage, StateId, Unit, WorkerId,
};
use varuna_torch::{Device, Kernels, Streams};
use varuna_worker::ablation::Ablations;
use varuna_worker::backend::Backend;
use varuna_worker::engine::{Engine, EngineConfig, SampleError, Samples};
use varuna_worker::memory::SpareMemory;
use varuna_worker::transport::Link;
use varuna_worker::transport::local::LocalMesh;

pub(crate) const BATCH: u64 = 8;

pub(crate) const MUON: UpdateRule = UpdateRule::Muon {
    momentum: 0.95,
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
};

const ADAMW: UpdateRule = UpdateRule::Adamw {
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
};

/// The features of a Llama, with the sizes of these tests. Samples are longer than the original ones, so that all of its angles are scaled.
pub(crate) const LLAMA_LIKE: Features = Features {
    positions: Positions::Rotary(Rotary {
        theta: Real::new(100.0),
        scaling: Some(Scaling {
            factor: Real::new(8.0),
            low_turns: Real::new(0.5),
            high_turns: Real::new(1.0),
            original_length: 10,
        }),
    }),
    kv_heads: Some(2),
    inner_size: Some(80),
    ..llama3::SMALL.features
};

/// The features of a Qwen, with the sizes of these tests. Its heads together are wider than the model.
pub(crate) const QWEN_LIKE: Features = Features {
    kv_heads: Some(2),
    head_size: Some(12),
    inner_size: Some(80),
    ..qwen3::SMALL.features
};

/// The features of a BERT.
pub(crate) const BERT_LIKE: Features = bert::BASE.features;

/// All settings for documents.
pub(crate) const PACKED: Packing = Packing {
    block_mask: true,
    reset_positions: true,
    mask_loss: true,
};

pub(crate) const MASKING: Masking = Masking {
    probability: 0.3,
    mask_token: 39,
};

/// A bidirectional model that learns to predict masked tokens.
pub(crate) fn masked(features: Features) -> Case {
    Case {
        dropout: 0.0,
        features: Features {
            bidirectional: true,
            ..features
        },
        masking: Some(MASKING),
        ..Case::default()
    }
}

/// The settings in which tests differ.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) tied: bool,
    pub(crate) dropout: f64,
    pub(crate) evaluate: bool,
    pub(crate) features: Features,
    pub(crate) precision: Precision,
    pub(crate) device: Device,
    pub(crate) kernels: Kernels,
    pub(crate) streams: Streams,
    pub(crate) without: Ablations,
    pub(crate) scaling: LossScaling,
    pub(crate) schedule: Schedule,
    pub(crate) weight_decay_on: BTreeSet<ParameterKind>,
    pub(crate) rule: UpdateRule,
    pub(crate) sharding: Sharding,
    pub(crate) clip_norm: Option<f64>,
    pub(crate) packing: Packing,
    pub(crate) masking: Option<Masking>,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            tied: true,
            dropout: 0.1,
            evaluate: false,
            features: Features::GPT2,
            precision: Precision::Fp32,
            device: Device::Cpu,
            kernels: Kernels::PROCESSOR,
            streams: Streams::HOST,
            without: Ablations::NONE,
            scaling: LossScaling::OFF,
            schedule: Schedule::Cosine,
            weight_decay_on: default_decaying(),
            rule: ADAMW,
            sharding: Sharding::Off,
            clip_norm: Some(0.5),
            packing: Packing::default(),
            masking: None,
        }
    }
}

impl Case {
    /// A model with two blocks, which are six segments with embedding and head.
    pub(crate) fn model(&self) -> Transformer {
        Transformer {
            layers: 2,
            hidden_size: 32,
            heads: 4,
            sequence_length: 16,
            vocabulary_size: 40,
            tied_head: self.tied,
            dropout: self.dropout,
            features: self.features,
        }
    }

    /// The layout of its state.
    pub(crate) fn layout(&self) -> Layout {
        self.sharding.layout(self.model().layout())
    }

    pub(crate) fn training(&self) -> Training {
        Training {
            global_batch_size: BATCH,
            steps: 100,
            seed: 5,
            optimizer: Optimizer {
                rule: self.rule,
                weight_decay: 0.1,
                weight_decay_on: self.weight_decay_on.clone(),
                clip_norm: self.clip_norm,
                sharding: self.sharding,
            },
            learning_rate: LearningRate {
                peak: 3e-3,
                min: 1e-4,
                warmup_steps: 4,
                decay_steps: 100,
                schedule: self.schedule,
            },
            evaluation: self.evaluate.then_some(Evaluation {
                interval_steps: 4,
                samples: 6,
            }),
            loss_scaling: self.scaling,
            skip_limit: DEFAULT_SKIP_LIMIT,
            packing: self.packing,
            masking: self.masking,
        }
    }
}

/// Sequences that count upwards with different strides, so that they can be learned and differ for each sample.
pub(crate) struct Counting;

impl Counting {
    fn fill(seed: u64, tokens: &mut [i64]) {
        let stride = 1 + seed % 3;
        for (i, t) in tokens.iter_mut().enumerate() {
            *t = i64::try_from((seed * 7 + i as u64 * stride) % 40).unwrap();
        }
    }

    /// The samples consist of consecutive documents of 1, 3, 7, 2 and 5 tokens. The start of a sample depends on its seed.
    fn positions(seed: u64, positions: &mut [i64]) {
        const DOCUMENTS: [i64; 5] = [1, 3, 7, 2, 5];
        let of_all = DOCUMENTS.iter().flat_map(|length| 0..*length).cycle();
        let skipped = usize::try_from(seed % 18).unwrap();
        let mut position = -1;
        for (place, in_order) in positions.iter_mut().zip(of_all.skip(skipped)) {
            position = if in_order == 0 { 0 } else { position + 1 };
            *place = position;
        }
    }
}

impl Samples for Counting {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        Counting::fill(index, tokens);
        Ok(())
    }
    fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        Counting::fill(index + 1_000_003, tokens);
        Ok(())
    }
    fn held_out_len(&self) -> u64 {
        50
    }
    fn train_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        Counting::positions(index, positions);
        Ok(())
    }
    fn held_out_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), SampleError> {
        Counting::positions(index + 1_000_003, positions);
        Ok(())
    }
}

/// A shape. For each pipeline: the numbers of segments of its stages, and its samples.
pub(crate) fn shape(_case: &Case, depths: &[&[u32]], samples: &[u64], micro_batch_size: u32) -> Shape {
    let mut worker = 0;
    let mut first = 0;
    let pipelines = depths.iter().zip(samples).map(|(stages, count)| {
        let mut start = 0;
        let stages = stages.iter().map(|n| {
            worker += 1;
            start += n;
            Stage {
                recompute: None,
                worker: WorkerId(worker),
                segments: SegmentRange {
                    start: start - n,
                    end: start,
                },
            }
        });
        let stages = stages.collect();
        first += count;
        Pipeline {
            stages,
            samples: SampleRange {
                start: first - count,
                end: first,
            },
        }
    });
    Shape {
        pipelines: pipelines.collect(),
        spares: vec![],
        micro_batch_size,
        schedule: ScheduleSpec {
            kind: ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 },
            recompute: Recompute::None,
        },
        predicted: Prediction::default(),
    }
}

/// The shape with the whole model on one worker.
pub(crate) fn single(case: &Case) -> Shape {
    shape(case, &[&[6]], &[BATCH], 4)
}

/// The results of a run.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    /// For each step, whether it was skipped.
    pub(crate) overflows: Vec<bool>,
    /// The optimizer's counters at the end; equal for all units.
    pub(crate) progress: Option<OptimizerProgress>,
    /// (number of steps before it, loss)
    pub(crate) evaluations: Vec<(usize, f64)>,
    pub(crate) moments: Moments,
    /// For each unit: its parameters, and then the moments.
    pub(crate) parameters: BTreeMap<Unit, Vec<f32>>,
}

/// A first plan with this shape.
pub(crate) fn plan(case: &Case, shape: &Shape) -> Plan {
    let mut plan = Plan::first(case.layout(), shape.clone());
    plan.addresses = shape.members().iter().map(|w| (*w, String::new())).collect();
    varuna_plan::check::check_plan(&plan, BATCH).unwrap();
    plan
}

/// An engine without state.
pub(crate) fn engine(case: &Case, me: WorkerId) -> Engine {
    engine_with(case, me, Counting)
}

/// An engine without state, with other data.
pub(crate) fn engine_with(case: &Case, me: WorkerId, samples: impl Samples + 'static) -> Engine {
    Engine::new(EngineConfig {
        me,
        model: case.model().into(),
        training: case.training(),
        backend: Backend {
            device: case.device,
            numerics: case.precision.into(),
            kernels: case.kernels,
            streams: case.streams,
            spare: SpareMemory::of(case.device, 1),
            without: case.without,
        },
        samples: Arc::new(samples),
    })
}

/// A deadline that is far enough for any step here.
pub(crate) fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Trains with a shape: a thread for each worker, and the norm exchange through a shared table.
pub(crate) fn run(case: &Case, shape: &Shape, steps: u64) -> Trained {
    let mesh = LocalMesh::new(&shape.members());
    Trained {
        moments: case.rule.moments(),
        ..run_over(case, shape, steps, |me| mesh.link(me))
    }
}

/// Trains with a shape over these links.
pub(crate) fn run_over(
    case: &Case,
    shape: &Shape,
    steps: u64,
    link: impl Fn(WorkerId) -> Arc<dyn Link>,
) -> Trained {
    run_engines(&plan(case, shape), steps, |me| engine(case, me), link)
}

/// Trains with a plan: a thread for each worker's engine, which has no state yet.
pub(crate) fn run_engines(
    plan: &Plan,
    steps: u64,
    engine: impl Fn(WorkerId) -> Engine,
    link: impl Fn(WorkerId) -> Arc<dyn Link>,
) -> Trained {
    let members = plan.shape.members();
    let exchange = Arc::new(Exchange::new(members.len()));
    let threads: Vec<_> = members
        .iter()
        .map(|me| {
            let (me, mut engine) = (*me, engine(*me));
            let (plan, link, exchange) = (plan.clone(), link(me), Arc::clone(&exchange));
            std::thread::spawn(move || {
                tch::set_num_threads(1);
                for unit in plan.units(me) {
                    engine.initialise(unit).unwrap();
                }
                let mut trained = Trained::default();
                let mut at = StateId::INITIAL;
                for step in 0..steps {
                    let report = engine.run_step(&plan, at.step, &link, later()).unwrap();
                    let parts = exchange.all(step, &report.prepared);
                    let decision = Decision::conclude(at, plan.generation, &parts, None);
                    engine.apply(&decision, &plan.units(me)).unwrap();
                    at = decision.id;
                    trained.losses.push(decision.loss);
                    trained.overflows.push(decision.overflow);
                    trained
                        .evaluations
                        .extend(decision.eval_loss.map(|l| (usize::try_from(step).unwrap(), l)));
                }
                for unit in engine.held() {
                    let state = engine.export(unit).unwrap();
                    let counted = *trained.progress.get_or_insert(state.progress);
                    assert_eq!(counted, state.progress, "unit {unit}");
                    trained.parameters.insert(unit, state.data);
                }
                trained
            })
        })
        .collect();
    let mut whole = Trained::default();
    for thread in threads {
        let part = thread.join().unwrap();
        for (unit, data) in part.parameters {
            if let Some(other) = whole.parameters.insert(unit, data.clone()) {
                assert_eq!(other, data, "all holders of unit {unit} have the same bits");
            }
        }
        assert_eq!(
            whole.progress.get_or_insert(part.progress.unwrap()),
            &part.progress.unwrap()
        );
        whole.losses = part.losses;
        whole.overflows = part.overflows;
        whole.evaluations = part.evaluations;
    }
    whole
}

type Put = (usize, BTreeMap<Unit, UnitNorm>);

/// The norm exchange: every worker adds what it has prepared, and gets all units in order.
pub(crate) struct Exchange {
    members: usize,
    /// For each step, the number of workers that have added their part, and the parts.
    steps: std::sync::Mutex<BTreeMap<u64, Put>>,
    changed: std::sync::Condvar,
}

impl Exchange {
    pub(crate) fn new(members: usize) -> Self {
        Exchange {
            members,
            steps: std::sync::Mutex::default(),
            changed: std::sync::Condvar::new(),
        }
    }

    pub(crate) fn all(&self, step: u64, prepared: &[(Unit, UnitNorm)]) -> Vec<UnitNorm> {
        let mut steps = self.steps.lock().unwrap();
        let entry = steps.entry(step).or_default();
        entry.0 += 1;
        for (unit, norm) in prepared {
            if let Some(other) = entry.1.insert(*unit, *norm) {
                assert_eq!(
                    other, *norm,
                    "all holders of unit {unit} reduced to the same bits"
                );
            }
        }
        self.changed.notify_all();
        loop {
            if steps[&step].0 == self.members {
                return steps[&step].1.values().copied().collect();
            }
            let (guard, late) = self.changed.wait_timeout(steps, Duration::from_secs(60)).unwrap();
            assert!(!late.timed_out(), "a member did not put in its norm");
            steps = guard;
        }
    }
}

/// Asserts that both runs have the same losses, within this relative tolerance.
pub(crate) fn assert_losses_close(a: &Trained, b: &Trained, tolerance: f64, what: &str) {
    assert_eq!(a.losses.len(), b.losses.len());
    for (step, (x, y)) in a.losses.iter().zip(&b.losses).enumerate() {
        assert!(
            (x - y).abs() <= tolerance * x.abs(),
            "{what}: loss at step {step}: {x} and {y}"
        );
    }
}

/// The largest relative difference of two runs' losses.
pub(crate) fn apart(a: &Trained, b: &Trained) -> f64 {
    assert_eq!(a.losses.len(), b.losses.len());
    let both = a.losses.iter().zip(&b.losses);
    both.map(|(x, y)| (x - y).abs() / x.abs()).fold(0.0, f64::max)
}

pub(crate) fn assert_close(a: &Trained, b: &Trained, tolerance: f64, what: &str) {
    assert_losses_close(a, b, tolerance, what);
    for (unit, x) in &a.parameters {
        let y = &b.parameters[unit];
        let weights = x.len() / (1 + a.moments.of_parameter());
        let (mut difference, mut size) = (0.0f64, 0.0f64);
        for (p, q) in x[..weights].iter().zip(&y[..weights]) {
            difference += f64::from(p - q).powi(2);
            size += f64::from(*p).powi(2);
        }
        let off = (difference / size.max(1e-30)).sqrt();
        assert!(
            off <= tolerance,
            "{what}: parameters of unit {unit} are {off:.1e} off"
        );
    }
}
