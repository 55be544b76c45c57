//! A small model, synthetic text, engines in threads, and the reference in plain libtorch.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tch::Tensor;
use varuna_api::{Adam, Evaluation, LearningRate, Model, Training};
use varuna_plan::state::UnitNorm;
use varuna_plan::{
    Base, Decision, Generation, Pipeline, Plan, Prediction, Recompute, SampleRange, ScheduleKind,
    ScheduleSpec, SegmentRange, Shape, Stage, StateId, Unit, WorkerId,
};
use varuna_worker::engine::{Engine, EngineConfig, SampleError, Samples};
use varuna_worker::transport::local::LocalMesh;

const BATCH: u64 = 8;

/// What tests vary.
pub(crate) struct Case {
    pub(crate) tied: bool,
    pub(crate) dropout: f64,
    pub(crate) evaluate: bool,
}

impl Default for Case {
    fn default() -> Self {
        Case {
            tied: true,
            dropout: 0.1,
            evaluate: false,
        }
    }
}

impl Case {
    /// Two blocks: four segments.
    pub(crate) fn model(&self) -> Model {
        Model {
            layers: 2,
            hidden_size: 32,
            heads: 4,
            sequence_length: 16,
            vocabulary_size: 40,
            tied_head: self.tied,
            dropout: self.dropout,
        }
    }

    pub(crate) fn training(&self) -> Training {
        Training {
            global_batch_size: BATCH,
            steps: 100,
            seed: 5,
            optimizer: Adam {
                beta1: 0.9,
                beta2: 0.95,
                epsilon: 1e-8,
                weight_decay: 0.1,
                clip_norm: Some(0.5),
            },
            learning_rate: LearningRate {
                peak: 3e-3,
                min: 1e-4,
                warmup_steps: 4,
                decay_steps: 100,
            },
            evaluation: self.evaluate.then_some(Evaluation {
                interval_steps: 4,
                samples: 6,
            }),
        }
    }
}

/// Sequences that count upwards in strides: learnable, different for each sample.
struct Counting;

impl Counting {
    fn fill(seed: u64, tokens: &mut [i64]) {
        let stride = 1 + seed % 3;
        for (i, t) in tokens.iter_mut().enumerate() {
            *t = i64::try_from((seed * 7 + i as u64 * stride) % 40).unwrap();
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
}

/// A shape: per pipeline the numbers of segments of its stages, and its samples.
pub(crate) fn shape(_case: &Case, depths: &[&[u32]], samples: &[u64], micro_batch_size: u32) -> Shape {
    let mut worker = 0;
    let mut first = 0;
    let pipelines = depths.iter().zip(samples).map(|(stages, count)| {
        let mut start = 0;
        let stages = stages.iter().map(|n| {
            worker += 1;
            start += n;
            Stage {
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

/// The unsplit model on one worker.
pub(crate) fn single(case: &Case) -> Shape {
    shape(case, &[&[4]], &[BATCH], 4)
}

/// What a run leaves.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    /// (step that began with it, loss)
    pub(crate) evaluations: Vec<(usize, f64)>,
    /// By unit: parameters, first and second moments.
    pub(crate) parameters: BTreeMap<Unit, Vec<f32>>,
}

/// A first plan of this shape.
pub(crate) fn plan(case: &Case, shape: &Shape) -> Plan {
    let layout = case.model().layout();
    let plan = Plan {
        generation: Generation(1),
        parent: Generation(0),
        base: Base::Fixed {
            id: StateId::INITIAL,
            decision: None,
            checkpoint: true,
        },
        layout,
        shape: shape.clone(),
        sources: vec![vec![]; layout.units()],
        addresses: shape.members().iter().map(|w| (*w, String::new())).collect(),
        deadline_ns: 0,
        relay: false,
        secret: String::new(),
        evidence: vec![],
        reason: String::new(),
    };
    varuna_plan::check::check_plan(&plan, BATCH).unwrap();
    plan
}

/// An engine without state.
pub(crate) fn engine(case: &Case, me: WorkerId) -> Engine {
    Engine::new(EngineConfig {
        me,
        model: case.model(),
        training: case.training(),
        samples: Arc::new(Counting),
    })
}

/// Far enough for any step here.
pub(crate) fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Trains with a shape: a thread for each worker, the norm exchange through a shared table.
pub(crate) fn run(case: &Case, shape: &Shape, steps: u64) -> Trained {
    let members = shape.members();
    let plan = plan(case, shape);
    let mesh = LocalMesh::new(&members);
    let exchange = Arc::new(Exchange::new(members.len()));
    let threads: Vec<_> = members
        .iter()
        .map(|me| {
            let (me, mut engine) = (*me, engine(case, *me));
            let (plan, link, exchange) = (plan.clone(), mesh.link(me), Arc::clone(&exchange));
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
                    trained
                        .evaluations
                        .extend(decision.eval_loss.map(|l| (usize::try_from(step).unwrap(), l)));
                }
                for unit in engine.held() {
                    trained.parameters.insert(unit, engine.export(unit).unwrap().data);
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
        whole.losses = part.losses;
        whole.evaluations = part.evaluations;
    }
    whole
}

type Put = (usize, BTreeMap<Unit, UnitNorm>);

/// The norm exchange: everyone puts in what it has prepared, everyone gets all units in order.
struct Exchange {
    members: usize,
    /// By step: how many have put in, and what.
    steps: std::sync::Mutex<BTreeMap<u64, Put>>,
    changed: std::sync::Condvar,
}

impl Exchange {
    fn new(members: usize) -> Self {
        Exchange {
            members,
            steps: std::sync::Mutex::default(),
            changed: std::sync::Condvar::new(),
        }
    }

    fn all(&self, step: u64, prepared: &[(Unit, UnitNorm)]) -> Vec<UnitNorm> {
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

pub(crate) fn assert_close(a: &Trained, b: &Trained, tolerance: f64, what: &str) {
    assert_eq!(a.losses.len(), b.losses.len());
    for (step, (x, y)) in a.losses.iter().zip(&b.losses).enumerate() {
        assert!(
            (x - y).abs() <= tolerance * x.abs(),
            "{what}: loss at step {step}: {x} and {y}"
        );
    }
    for (unit, x) in &a.parameters {
        let y = &b.parameters[unit];
        let weights = x.len() / 3;
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

/// The same training in plain libtorch: one graph over the whole batch, torch's own AdamW by hand-written formulas.
pub(crate) fn plain(case: &Case, steps: u64) -> Trained {
    assert!(case.dropout == 0.0, "plain libtorch draws other masks");
    let (model, training) = (case.model(), case.training());
    let mut engine = engine(case, WorkerId(1));
    let mut leaves: Vec<(Unit, Tensor, bool)> = Vec::new();
    for unit in model.layout().all_units() {
        engine.initialise(unit).unwrap();
        for (_, tensor) in engine.parameters(unit).unwrap() {
            let decays = tensor.dim() > 1;
            if tensor.numel() > 0 {
                leaves.push((unit, tensor.set_requires_grad(true), decays));
            }
        }
    }
    let zeros: Vec<Tensor> = leaves.iter().map(|(_, p, _)| p.zeros_like().detach()).collect();
    let (mut first, mut second) = (zeros.iter().map(Tensor::copy).collect::<Vec<_>>(), zeros);
    let mut losses = Vec::new();
    for step in 0..steps {
        let mut tokens = vec![0i64; 8 * 17];
        for (i, row) in tokens.chunks_exact_mut(17).enumerate() {
            Counting::fill(step * BATCH + i as u64, row);
        }
        let rows = Tensor::from_slice(&tokens).view([8, 17]);
        let logits = plain_forward(&model, &leaves, &rows.narrow(1, 0, 16));
        let targets = rows.narrow(1, 1, 16).reshape([-1]);
        let loss = logits.view([-1, 40]).cross_entropy_for_logits(&targets);
        losses.push(loss.double_value(&[]));
        loss.backward();
        let norm2: f64 = leaves
            .iter()
            .map(|(_, p, _)| p.grad().square().sum(tch::Kind::Double).double_value(&[]))
            .sum();
        let clip = (0.5 / (norm2.sqrt() + 1e-6)).min(1.0);
        let rate = training.learning_rate.at(step);
        let t = i32::try_from(step).unwrap() + 1;
        let _guard = tch::no_grad_guard();
        for (i, (_, p, decays)) in leaves.iter_mut().enumerate() {
            let g = p.grad() * clip;
            first[i] = &first[i] * 0.9 + &g * 0.1;
            second[i] = &second[i] * 0.95 + &g * &g * 0.05;
            let (m, v) = (
                &first[i] / (1.0 - 0.9f64.powi(t)),
                &second[i] / (1.0 - 0.95f64.powi(t)),
            );
            if *decays {
                *p *= 1.0 - rate * 0.1;
            }
            *p -= m / (v.sqrt() + 1e-8) * rate;
            p.zero_grad();
        }
    }
    let mut parameters: BTreeMap<Unit, Vec<f32>> = BTreeMap::new();
    for (unit, p, _) in &leaves {
        let values = Vec::<f32>::try_from(p.detach().reshape([-1])).unwrap();
        parameters.entry(*unit).or_default().extend(values);
    }
    // assert_close compares the first third: weights.
    for values in parameters.values_mut() {
        values.resize(values.len() * 3, 0.0);
    }
    Trained {
        losses,
        evaluations: vec![],
        parameters,
    }
}

fn plain_forward(model: &Model, leaves: &[(Unit, Tensor, bool)], tokens: &Tensor) -> Tensor {
    let of = |unit: u32| -> Vec<&Tensor> {
        leaves
            .iter()
            .filter(|(u, _, _)| u.0 == unit)
            .map(|(_, t, _)| t)
            .collect()
    };
    let (embedding, head) = (of(0), of(model.layers + 1));
    let (table, positions) = if model.tied_head {
        (of(model.layers + 2)[0], embedding[0])
    } else {
        (embedding[0], embedding[1])
    };
    let d = i64::from(model.hidden_size);
    let heads = i64::from(model.heads);
    let mut x = Tensor::embedding(table, tokens, -1, false, false) + positions;
    let (b, t) = (x.size()[0], x.size()[1]);
    let mask = Tensor::ones([t, t], (tch::Kind::Float, tch::Device::Cpu))
        .tril(0)
        .eq(0.0);
    for layer in 1..=model.layers {
        let p = of(layer);
        let qkv = x
            .layer_norm([d], Some(p[4]), Some(p[5]), 1e-5, true)
            .linear(p[0], Some(p[6]));
        let part = |i: i64| {
            qkv.narrow(2, i * d, d)
                .view([b, t, heads, d / heads])
                .transpose(1, 2)
        };
        let scores = part(0).matmul(&part(1).transpose(2, 3)) / ((d / heads) as f64).sqrt();
        let weights = scores
            .masked_fill(&mask, f64::NEG_INFINITY)
            .softmax(-1, tch::Kind::Float);
        let a = weights.matmul(&part(2)).transpose(1, 2).reshape([b, t, d]);
        x = &x + a.linear(p[1], Some(p[7]));
        let up = x
            .layer_norm([d], Some(p[8]), Some(p[9]), 1e-5, true)
            .linear(p[2], Some(p[10]));
        x = &x + up.gelu("tanh").linear(p[3], Some(p[11]));
    }
    let norm = &head[head.len() - 2..];
    let y = x.layer_norm([d], Some(norm[0]), Some(norm[1]), 1e-5, true);
    y.linear(if model.tied_head { table } else { head[0] }, None::<&Tensor>)
}
