//! Compares the planner's memory of a stage with the maximum that a real step allocates.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;
use std::time::{Duration, Instant};
use varuna_api::training::default_decaying;
use varuna_api::{LearningRate, Optimizer, Packing, Precision, Schedule, Sharding, Training, UpdateRule};
use varuna_model::{Transformer, bert, gpt2, presets};
use varuna_plan::cost::{Costs, Device as Link};
use varuna_plan::schedule::stash_max;
use varuna_plan::{
    Decision, LossScaling, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind, ScheduleSpec,
    Shape, Stage, StateId, WorkerId,
};
use varuna_torch::{Attention, AttentionChoice, MemoryMeter, taken_bytes};
use varuna_worker::backend::Backend;
use varuna_worker::engine::{Engine, EngineConfig, SampleError, Samples};
use varuna_worker::model::{attention_shape, score_memory};
use varuna_worker::transport::local::LocalMesh;

const ME: WorkerId = WorkerId(1);
/// The first step allocates memory that later steps use again.
const STEPS: usize = 2;
/// Relative tolerance for state; the difference is alignment and the table of units.
const STATE_OFF: f64 = 0.02;
/// Minimum of planned over measured memory: with less, a worker could run out of memory.
const LEAST: f64 = 0.98;
/// Maximum of planned over measured memory: with more, memory would be left unused.
const MOST: f64 = 1.03;
/// Memory that libtorch's products of 16-bit numbers need on CPUs without instructions for these formats.
const SCRATCH: u64 = 1 << 20;

/// All settings for documents.
const PACKED: Packing = Packing {
    block_mask: true,
    reset_positions: true,
    mask_loss: true,
};

struct Counting(i64);

impl Samples for Counting {
    fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), SampleError> {
        for (i, token) in (0..).zip(tokens.iter_mut()) {
            *token = (i64::try_from(index).unwrap() + i) % self.0;
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

/// A model, how it is computed, and the number and size of its micro-batches.
#[derive(Clone, Debug)]
struct Case {
    model: Transformer,
    precision: Precision,
    kind: ScheduleKind,
    recompute: Recompute,
    attention: Attention,
    micro_batches: u32,
    micro_batch_size: u32,
    packing: Packing,
}

impl Case {
    fn batch(&self) -> u64 {
        u64::from(self.micro_batches * self.micro_batch_size)
    }

    fn plan(&self) -> Plan {
        let layout = self.model.layout();
        let shape = Shape {
            pipelines: vec![Pipeline {
                stages: vec![Stage {
                    worker: ME,
                    segments: layout.whole(),
                    recompute: None,
                }],
                samples: SampleRange {
                    start: 0,
                    end: self.batch(),
                },
            }],
            spares: vec![],
            micro_batch_size: self.micro_batch_size,
            schedule: ScheduleSpec {
                kind: self.kind,
                recompute: self.recompute,
            },
            predicted: Prediction::default(),
        };
        Plan::first(layout, shape)
    }

    fn training(&self) -> Training {
        Training {
            global_batch_size: self.batch(),
            steps: 100,
            seed: 5,
            optimizer: Optimizer {
                rule: UpdateRule::Adamw {
                    beta1: 0.9,
                    beta2: 0.95,
                    epsilon: 1e-8,
                },
                weight_decay: 0.1,
                weight_decay_on: default_decaying(),
                clip_norm: Some(0.5),
                sharding: Sharding::Off,
            },
            learning_rate: LearningRate {
                peak: 1e-3,
                min: 1e-4,
                warmup_steps: 4,
                decay_steps: 100,
                schedule: Schedule::Cosine,
            },
            evaluation: None,
            loss_scaling: LossScaling::OFF,
            skip_limit: 10,
            packing: self.packing,
            masking: None,
        }
    }

    /// Bytes of state, and maximum bytes, according to the planner.
    fn planned(&self) -> (u64, u64) {
        let link = Link {
            element_bytes: self.precision.element_bytes(),
            ..Link::CPU_CORE
        };
        let mut costs = Costs::estimate(&self.model.spec(), link);
        if let Some(scores) = score_memory(&self.model, self.attention, self.precision.into()) {
            costs.add_scores(scores);
        }
        costs.packing_bytes = self
            .packing
            .kept_bytes(&self.model, self.precision.element_bytes());
        costs.mask_bytes = self.model.mask_elements() * self.precision.element_bytes();
        let whole = self.model.layout().whole();
        let stash = stash_max(self.kind, 1, 0, self.micro_batches);
        let of = |stash| costs.memory_bytes(whole, stash, self.micro_batch_size, self.recompute);
        (costs.parameters(whole) * costs.parameter.resident, of(stash))
    }

    /// The same according to the allocators: after the state was made, and the maximum of a few steps.
    fn measured(&self) -> (u64, u64) {
        let backend = Backend::of_processor(self.precision.into());
        let shape = attention_shape(&self.model, self.packing, backend.numerics);
        Attention::select(AttentionChoice::Only(self.attention), backend.device, shape).unwrap();
        let meter = MemoryMeter::begin(backend.device).unwrap();
        let before = taken_bytes();
        let mut engine = Engine::new(EngineConfig {
            me: ME,
            model: self.model.clone().into(),
            training: self.training(),
            backend,
            samples: Arc::new(Counting(i64::from(self.model.vocabulary_size))),
        });
        let plan = self.plan();
        for unit in plan.units(ME) {
            engine.initialise(unit).unwrap();
        }
        let link = LocalMesh::new(&[ME]).link(ME);
        // The long-lived buffers of a worker are not allocated as tensors.
        let state = taken_bytes() - before;
        let beside = state - meter.taken().now;
        let mut at = StateId::INITIAL;
        for _ in 0..STEPS {
            let deadline = Instant::now() + Duration::from_secs(60);
            let report = engine.run_step(&plan, at.step, &link, deadline).unwrap();
            let parts: Vec<_> = report.prepared.iter().map(|(_, norm)| *norm).collect();
            let decision = Decision::conclude(at, plan.generation, &parts, None);
            engine.apply(&decision, &plan.units(ME)).unwrap();
            at = decision.id;
        }
        (state, beside + meter.taken().most)
    }
}

/// Models whose attention keeps other tensors: one like a Llama and one like a Qwen; and a BERT, which has norms after the residual
/// additions.
fn families() -> [Transformer; 3] {
    let of = |preset: &str, kv_heads, inner_size| {
        let mut model = presets::preset(preset).unwrap();
        (model.layers, model.hidden_size, model.heads) = (2, 256, 4);
        model.vocabulary_size = 1000;
        model.features.kv_heads = Some(kv_heads);
        model.features.inner_size = Some(inner_size);
        model
    };
    let bert = Transformer {
        features: bert::BASE.features,
        ..model(2, 128, 256, 1000)
    };
    [of("llama-tiny", 1, 704), of("qwen3-tiny", 2, 640), bert]
}

fn model(layers: u32, hidden_size: u32, sequence_length: u32, vocabulary_size: u32) -> Transformer {
    Transformer {
        layers,
        hidden_size,
        heads: hidden_size / 64,
        sequence_length,
        vocabulary_size,
        dropout: 0.0,
        ..gpt2::SMALL
    }
}

/// Schedules, kinds of recompute, kinds of attention, and settings for packed documents.
fn steps() -> [(ScheduleKind, Recompute, Attention, Packing); 11] {
    let alternating = ScheduleKind::OneForwardOneBackward { warmup_factor: 1.0 };
    let (gpipe, flash, math) = (ScheduleKind::Gpipe, Attention::Flash, Attention::Math);
    let plain = Packing::default();
    [
        (alternating, Recompute::None, flash, plain),
        (gpipe, Recompute::None, flash, plain),
        (gpipe, Recompute::Selective, flash, plain),
        (gpipe, Recompute::Full, flash, plain),
        (gpipe, Recompute::None, math, plain),
        (gpipe, Recompute::Selective, math, plain),
        (gpipe, Recompute::Full, math, plain),
        (alternating, Recompute::None, flash, PACKED),
        (gpipe, Recompute::None, math, PACKED),
        (gpipe, Recompute::Selective, flash, PACKED),
        (gpipe, Recompute::Full, flash, PACKED),
    ]
}

/// Without these instructions a step in bf16 takes ten times as long.
fn has_bf16_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    let has = true;
    has
}

/// Models of which blocks need most of the memory, then the head; the logits of the fourth exist in chunks, and attention scores need most of the
/// memory of the fifth. Then the other families.
fn models() -> impl Iterator<Item = Transformer> {
    let of_gpt = [
        model(2, 256, 256, 1000),
        model(5, 128, 256, 256),
        model(2, 128, 256, 4000),
        model(1, 64, 256, 8000),
        model(2, 128, 512, 256),
    ];
    of_gpt.into_iter().chain(families())
}

/// All cases of a model in this precision.
fn cases(model: Transformer, precision: Precision) -> impl Iterator<Item = Case> {
    // The head of so many samples is computed in several chunks.
    let (micro_batches, micro_batch_size) = if model.layers == 1 { (1, 48) } else { (3, 4) };
    let case = move |(kind, recompute, attention, packing)| Case {
        model: model.clone(),
        precision,
        kind,
        recompute,
        attention,
        micro_batches,
        micro_batch_size,
        packing,
    };
    // Masks and angles do not depend on the other sizes of the model.
    let all = steps().into_iter().map(case);
    all.filter(|case| case.packing.is_off() || case.model.hidden_size == 256)
}

/// Runs the cases, prints what was planned and measured of each, and fails if a case is beyond the tolerances. All in one thread and nothing beside it:
/// the memory of the whole process is counted.
#[expect(clippy::cast_precision_loss, reason = "sizes of small models")]
fn compare(cases: impl Iterator<Item = Case>) {
    varuna_torch::keep_freed_memory();
    // The memory that a thread needs itself is within the tolerances, and with one thread the test takes longer.
    tch::set_num_threads(2);
    let mut wrong = Vec::new();
    for case in cases {
        let (planned, measured) = (case.planned(), case.measured());
        let ratio = |planned: u64, measured: u64| planned as f64 / measured as f64;
        let (state, all) = (ratio(planned.0, measured.0), ratio(planned.1, measured.1));
        let Case {
            model,
            precision,
            kind,
            recompute,
            attention,
            packing,
            ..
        } = case;
        let row = format!(
            "{} layers, width {}, vocabulary {}, {precision:?}, {kind:?}, {recompute:?}, {attention}, packed {}: planned / measured: state {state:.3}, most {all:.3} of {} MiB",
            model.layers,
            model.hidden_size,
            model.vocabulary_size,
            !packing.is_off(),
            measured.1 >> 20
        );
        println!("{row}");
        let scratch = if precision == Precision::Bf16 { SCRATCH } else { 0 };
        let least = ratio(planned.1 + scratch, measured.1);
        if (state - 1.0).abs() > STATE_OFF || least < LEAST || all > MOST {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// In bf16 on a processor without instructions for it, the quick ones: the first case of each narrow model.
#[test]
fn the_planner_counts_what_a_step_takes() {
    let fp32 = models().flat_map(|model| cases(model, Precision::Fp32));
    let bf16 = models().flat_map(|model| {
        let most = match (has_bf16_instructions(), model.hidden_size) {
            (true, _) => usize::MAX,
            (false, width) => usize::from(width == 128),
        };
        cases(model, Precision::Bf16).take(most)
    });
    compare(fp32.chain(bf16));
}

/// The first case of each model, whatever the processor.
#[test]
#[ignore = "takes minutes on a processor without instructions for bf16; part of `make nightly`"]
fn the_planner_counts_bf16_of_every_model() {
    compare(models().filter_map(|model| cases(model, Precision::Bf16).next()));
}
