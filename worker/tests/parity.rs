//! Any plan trains like the unsplit model. The engines are threads of one process, connected by local links.

#[expect(clippy::unwrap_used, reason = "a part of tests")]
mod common;

use common::{
    BERT_LIKE, Case, LLAMA_LIKE, PACKED, QWEN_LIKE, Trained, assert_close, assert_losses_close, masked, run,
    shape, single,
};
use varuna_api::{Packing, Precision, Schedule, UpdateRule};
use varuna_model::{Biases, Features, Mlp, Norm, ParameterKind, Positions, Real, Rotary};
use varuna_plan::{Recompute, ScheduleKind, ScheduleSpec, Shape};

const STEPS: u64 = 22;

fn one_forward_one_backward(warmup_factor: f64) -> ScheduleSpec {
    ScheduleSpec {
        kind: ScheduleKind::OneForwardOneBackward { warmup_factor },
        recompute: Recompute::None,
    }
}

#[test]
fn one_worker_trains_like_plain_libtorch_on_the_whole_batch() {
    for tied in [false, true] {
        let case = Case {
            tied,
            dropout: 0.0,
            ..Case::default()
        };
        let ours = run(&case, &single(&case), STEPS);
        let plain = common::plain::train(&case, STEPS);
        assert_close(&plain, &ours, 1e-5, &format!("tied {tied}"));
    }
}

#[test]
fn schedule_and_weight_decay_match_libtorch() {
    let of = |schedule, kinds: &[ParameterKind]| Case {
        dropout: 0.0,
        schedule,
        weight_decay_on: kinds.iter().copied().collect(),
        ..Case::default()
    };
    let stable = Schedule::WarmupStableDecay { stable_steps: 60 };
    let (matrix, embedding) = (ParameterKind::Matrix, ParameterKind::Embedding);
    let usual = of(Schedule::Cosine, &[matrix, embedding]);
    let usual = run(&usual, &single(&usual), STEPS);
    for case in [
        of(Schedule::Linear, &ParameterKind::ALL),
        of(stable, &[matrix]),
        of(Schedule::Constant, &[ParameterKind::Norm, ParameterKind::Bias]),
        of(Schedule::Cosine, &[]),
    ] {
        let what = format!("{:?}, {:?}", case.schedule, case.weight_decay_on);
        let plain = common::plain::train(&case, STEPS);
        for plan in [single(&case), shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2)] {
            let ours = run(&case, &plan, STEPS);
            assert_close(&plain, &ours, 1e-5, &what);
            let gone = (ours.losses[21] - usual.losses[21]).abs() / usual.losses[21];
            assert!(
                gone > 1e-4,
                "{what}: the last loss is {gone:.1e} off the usual one"
            );
        }
    }
}

#[test]
fn sgd_is_plain_libtorchs_under_every_plan_and_recompute() {
    for momentum in [0.0, 0.9] {
        let case = Case {
            dropout: 0.0,
            rule: UpdateRule::Sgd { momentum },
            ..Case::default()
        };
        let plain = common::plain::train(&case, STEPS);
        let adamw = Case {
            dropout: 0.0,
            ..Case::default()
        };
        let gone = (plain.losses[21] - common::plain::train(&adamw, STEPS).losses[21]).abs();
        assert!(gone > 1e-3, "AdamW draws another curve: {gone}");
        let two = shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2);
        let mut recomputed = two.clone();
        recomputed.schedule.recompute = Recompute::Full;
        for plan in [single(&case), two, recomputed] {
            let ours = run(&case, &plan, STEPS);
            assert_close(&plain, &ours, 1e-5, &format!("momentum {momentum}, {plan:?}"));
        }
    }
}

#[test]
fn muon_is_its_formulas_under_every_plan_and_recompute() {
    let plain = Case::default().features;
    for (tied, features) in [(false, plain), (true, plain), (false, QWEN_LIKE)] {
        let of = |rule| Case {
            dropout: 0.0,
            tied,
            features,
            rule,
            ..Case::default()
        };
        let case = of(common::MUON);
        let plain = common::plain::train(&case, STEPS);
        let gone =
            (plain.losses[21] - common::plain::train(&of(Case::default().rule), STEPS).losses[21]).abs();
        assert!(gone > 1e-3, "AdamW draws another curve: {gone}");
        let two = shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2);
        let mut recomputed = two.clone();
        recomputed.schedule.recompute = Recompute::Full;
        for plan in [single(&case), two, recomputed] {
            let ours = run(&case, &plan, STEPS);
            // The iteration makes small singular values hundreds of times larger, and with them their rounding errors.
            assert_close(&plain, &ours, 1e-4, &format!("tied {tied}, {plan:?}"));
        }
    }
}

#[test]
fn the_same_plan_twice_gives_the_same_bits() {
    let case = Case::default();
    let plan = shape(&case, &[&[3, 3], &[4, 2]], &[5, 3], 1);
    let (a, b) = (run(&case, &plan, STEPS), run(&case, &plan, STEPS));
    assert_eq!(a.losses, b.losses);
    assert_eq!(a.parameters, b.parameters);
}

#[test]
fn every_plan_draws_the_curve_of_the_unsplit_model() {
    for tied in [false, true] {
        let case = Case {
            tied,
            ..Case::default()
        };
        let unsplit = run(&case, &single(&case), STEPS);
        let plans = [
            ("two stages", shape(&case, &[&[3, 3]], &[8], 2)),
            ("cut inside a block", shape(&case, &[&[2, 4]], &[8], 2)),
            ("three stages", shape(&case, &[&[1, 4, 1]], &[8], 1)),
            ("two pipelines", shape(&case, &[&[6], &[6]], &[4, 4], 2)),
            ("two by two", shape(&case, &[&[3, 3], &[3, 3]], &[4, 4], 1)),
            ("unequal depths", shape(&case, &[&[5, 1], &[6]], &[5, 3], 2)),
            (
                "unequal cuts and shares",
                shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2),
            ),
            (
                "a stage for each segment",
                shape(&case, &[&[1, 1, 1, 1, 1, 1]], &[8], 3),
            ),
        ];
        for (name, plan) in plans {
            let split = run(&case, &plan, STEPS);
            assert_close(&unsplit, &split, 1e-5, &format!("{name}, tied {tied}"));
        }
    }
}

#[test]
fn cuts_alone_inside_blocks_too_change_no_bit() {
    // An untied head, and one micro-batch for the whole batch: no sum has another order.
    let case = Case {
        tied: false,
        ..Case::default()
    };
    let of = |stages: &[u32]| run(&case, &shape(&case, &[stages], &[8], 8), STEPS);
    let unsplit = of(&[6]);
    for stages in [&[2, 4][..], &[3, 3], &[4, 2], &[1, 1, 1, 1, 1, 1]] {
        let split = of(stages);
        assert_eq!(split.losses, unsplit.losses, "{stages:?}");
        assert_eq!(split.parameters, unsplit.parameters, "{stages:?}");
    }
}

#[test]
fn every_schedule_draws_the_same_curve() {
    let case = Case::default();
    let unsplit = run(&case, &single(&case), STEPS);
    let gpipe = ScheduleSpec {
        kind: ScheduleKind::Gpipe,
        recompute: Recompute::None,
    };
    for schedule in [
        gpipe,
        one_forward_one_backward(1.0),
        one_forward_one_backward(2.0),
    ] {
        let mut plan = shape(&case, &[&[1, 3, 2], &[3, 3]], &[4, 4], 1);
        plan.schedule = schedule;
        assert_close(
            &unsplit,
            &run(&case, &plan, STEPS),
            1e-5,
            &format!("{schedule:?}"),
        );
    }
}

/// Assigns the stages of each pipeline to its first workers, in rounds.
fn interleave(mut shape: Shape, chunks: u32, recompute: Recompute) -> Shape {
    shape.schedule = ScheduleSpec {
        kind: ScheduleKind::Interleaved { chunks },
        recompute,
    };
    for pipeline in &mut shape.pipelines {
        let round = pipeline.stages.len() / chunks as usize;
        for s in round..pipeline.stages.len() {
            pipeline.stages[s].worker = pipeline.stages[s - round].worker;
        }
    }
    shape
}

#[test]
fn workers_with_several_stages_draw_the_same_curve() {
    for tied in [false, true] {
        let case = Case {
            tied,
            evaluate: true,
            ..Case::default()
        };
        let unsplit = run(&case, &single(&case), STEPS);
        let plans = [
            ("two chunks", 2, shape(&case, &[&[2, 1, 1, 2]], &[8], 1)),
            (
                "one group of short micro-batches",
                2,
                shape(&case, &[&[1, 2, 2, 1]], &[8], 5),
            ),
            ("three chunks", 3, shape(&case, &[&[1, 1, 1, 1, 1, 1]], &[8], 2)),
            (
                "two pipelines",
                2,
                shape(&case, &[&[1, 2, 1, 2], &[2, 1, 2, 1]], &[4, 4], 1),
            ),
            (
                "unequal shares and depths",
                2,
                shape(&case, &[&[1, 1, 1, 1, 1, 1], &[2, 1, 2, 1]], &[6, 2], 1),
            ),
        ];
        for (name, chunks, plan) in plans {
            let plan = interleave(plan, chunks, Recompute::None);
            let split = run(&case, &plan, STEPS);
            assert_close(&unsplit, &split, 1e-5, &format!("{name}, tied {tied}"));
            for ((step, a), b) in unsplit.evaluations.iter().zip(&split.evaluations) {
                assert!(
                    (a - b.1).abs() <= 1e-5 * a && *step == b.0,
                    "{name}: {a} and {b:?}"
                );
            }
            assert_eq!(split.evaluations.len(), 6, "{name}");
            for policy in [Recompute::Full, Recompute::Selective] {
                let mut recomputes = plan.clone();
                recomputes.schedule.recompute = policy;
                let recomputes = run(&case, &recomputes, STEPS);
                assert_eq!(split.losses, recomputes.losses, "{name} {policy:?}");
                assert_eq!(split.parameters, recomputes.parameters, "{name} {policy:?}");
            }
        }
    }
}

#[test]
fn recompute_gives_the_very_bits_of_keeping_everything() {
    let case = Case::default();
    for kind in [
        ScheduleKind::Gpipe,
        ScheduleKind::OneForwardOneBackward { warmup_factor: 2.0 },
    ] {
        let mut plan = shape(&case, &[&[2, 2, 2]], &[8], 1);
        plan.schedule = ScheduleSpec {
            kind,
            recompute: Recompute::None,
        };
        let keeps = run(&case, &plan, STEPS);
        // Cut inside a block: the first stage ends with an attention, and the second begins with an MLP.
        for policy in [Recompute::Full, Recompute::Selective] {
            plan.schedule.recompute = policy;
            let recomputes = run(&case, &plan, STEPS);
            assert_eq!(keeps.losses, recomputes.losses, "{kind:?} {policy:?}");
            assert_eq!(keeps.parameters, recomputes.parameters, "{kind:?} {policy:?}");
        }
        plan.pipelines[0].stages[0].recompute = Some(Recompute::Full);
        plan.pipelines[0].stages[1].recompute = Some(Recompute::None);
        let mixed = run(&case, &plan, STEPS);
        assert_eq!(keeps.losses, mixed.losses, "{kind:?} mixed");
        assert_eq!(keeps.parameters, mixed.parameters, "{kind:?} mixed");
    }
}

#[test]
fn evaluation_under_every_plan_sees_the_same_held_out_loss() {
    let case = Case {
        evaluate: true,
        ..Case::default()
    };
    let unsplit = run(&case, &single(&case), 9);
    let split = run(&case, &shape(&case, &[&[2, 4], &[6]], &[5, 3], 2), 9);
    let steps: Vec<usize> = unsplit.evaluations.iter().map(|(s, _)| *s).collect();
    assert_eq!(steps, [0, 4, 8]);
    for ((_, a), (_, b)) in unsplit.evaluations.iter().zip(&split.evaluations) {
        assert!((a - b).abs() <= 1e-5 * a, "{a} and {b}");
    }
}

#[test]
fn a_model_learns() {
    let case = Case::default();
    let losses = run(&case, &shape(&case, &[&[3, 3], &[3, 3]], &[4, 4], 2), 60).losses;
    assert!(losses[59] < 0.7 * losses[0], "{} to {}", losses[0], losses[59]);
}

/// Positions that are only a rotation.
const ROTARY: Positions = Positions::Rotary(Rotary {
    theta: Real::new(100.0),
    scaling: None,
});

type Change = fn(&mut Features);

/// Each feature alone, in a model that is otherwise a GPT-2.
const FEATURES: [(&str, Change); 21] = [
    ("RMS norm", |f| f.norm = Norm::RmsNorm),
    ("another epsilon", |f| f.epsilon = Real::new(0.1)),
    ("rotary positions", |f| f.positions = ROTARY),
    ("Llama 3's angles", |f| f.positions = LLAMA_LIKE.positions),
    ("groups of heads", |f| f.kv_heads = Some(2)),
    ("one key for all heads, rotary", |f| {
        (f.kv_heads, f.positions) = (Some(1), ROTARY);
    }),
    ("wider heads", |f| f.head_size = Some(12)),
    ("query and key norms", |f| f.qk_norm = true),
    ("a window", |f| f.sliding_window = Some(5)),
    ("a window of all", |f| f.sliding_window = Some(16)),
    ("SwiGLU", |f| f.mlp = Mlp::SwiGlu),
    ("squared ReLU", |f| {
        (f.mlp, f.inner_size) = (Mlp::Relu2, Some(72));
    }),
    ("biases of queries, keys and values alone", |f| {
        f.bias = Biases {
            qkv: true,
            ..Biases::NONE
        };
    }),
    ("biases of the MLP alone", |f| {
        f.bias = Biases {
            mlp: true,
            ..Biases::NONE
        };
    }),
    ("capped logits", |f| f.logit_softcap = Some(Real::new(0.5))),
    ("both sides", |f| f.bidirectional = true),
    ("kinds of tokens", |f| f.token_types = Some(2)),
    ("a norm after the embedding", |f| f.embedding_norm = true),
    ("norms that come last", |f| f.post_norm = true),
    ("exact GELU", |f| f.mlp = Mlp::GeluErf),
    ("a layer and a bias in the head", |f| f.masked_head = true),
];

/// Relative tolerance of losses in bfloat16 over few steps: several times the difference that models of this size have.
const BF16_OFF: f64 = 3e-3;

#[test]
fn each_feature_matches_its_formula_in_every_plan_and_in_bf16() {
    let steps = 6;
    let of = |features, precision| Case {
        dropout: 0.0,
        features,
        precision,
        ..Case::default()
    };
    let gpt2 = common::plain::train(&of(Features::GPT2, Precision::Fp32), steps);
    for (name, change) in FEATURES {
        let mut features = Features::GPT2;
        change(&mut features);
        let case = of(features, Precision::Fp32);
        let formulas = common::plain::train(&case, steps);
        let is_gpt2 = name == "a window of all";
        assert_eq!(
            formulas.losses == gpt2.losses,
            is_gpt2,
            "{name} changes something"
        );
        let unsplit = run(&case, &single(&case), steps);
        assert_close(&formulas, &unsplit, 1e-5, name);
        let cut_inside_a_block = shape(&case, &[&[2, 4], &[6]], &[5, 3], 2);
        let interleaved = interleave(shape(&case, &[&[1, 2, 2, 1]], &[8], 1), 2, Recompute::None);
        for plan in [&cut_inside_a_block, &interleaved] {
            let runs = runs_by_recompute(&case, plan, steps);
            assert_close(&unsplit, &runs[0], 1e-5, name);
            assert_eq!(runs[0].parameters, runs[1].parameters, "{name}");
            assert_eq!(runs[0].parameters, runs[2].parameters, "{name}");
        }
        let narrow = run(&of(features, Precision::Bf16), &cut_inside_a_block, steps);
        assert_losses_close(&unsplit, &narrow, BF16_OFF, name);
        assert_ne!(narrow.losses, unsplit.losses, "{name}");
    }
}

/// The same plan with three kinds of recompute: nothing, attention, and everything.
fn runs_by_recompute(case: &Case, plan: &Shape, steps: u64) -> [Trained; 3] {
    [Recompute::None, Recompute::Selective, Recompute::Full].map(|recompute| {
        let mut plan = plan.clone();
        plan.schedule.recompute = recompute;
        run(case, &plan, steps)
    })
}

#[test]
fn llama_and_qwen_train_under_every_plan_like_their_formulas() {
    for (features, tied) in [(LLAMA_LIKE, true), (LLAMA_LIKE, false), (QWEN_LIKE, true)] {
        let case = Case {
            tied,
            dropout: 0.0,
            features,
            ..Case::default()
        };
        let name = format!("query norms {}, tied {tied}", features.qk_norm);
        let unsplit = trained_like_its_formulas(&case, STEPS, &name);
        let (first, last) = (unsplit.losses[0], unsplit.losses[STEPS as usize - 1]);
        assert!(last < 0.9 * first && last.is_finite(), "{:?}", unsplit.losses);
    }
}

/// The unsplit model, after it was compared with its formulas, and with itself under other plans and kinds of recompute.
fn trained_like_its_formulas(case: &Case, steps: u64, name: &str) -> Trained {
    let unsplit = run(case, &single(case), steps);
    let formulas = common::plain::train(case, steps);
    assert_close(&formulas, &unsplit, 1e-5, &format!("formulas, {name}"));
    for plan in [
        shape(case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2),
        interleave(shape(case, &[&[1, 2, 2, 1]], &[8], 1), 2, Recompute::None),
    ] {
        let runs = runs_by_recompute(case, &plan, steps);
        assert_close(&unsplit, &runs[0], 1e-5, name);
        assert_eq!(runs[0].parameters, runs[1].parameters, "{name}");
        assert_eq!(runs[0].parameters, runs[2].parameters, "{name}");
    }
    unsplit
}

/// The features of a job's model with the sizes of these tests, without a preset.
fn of_a_job(fields: &str) -> Features {
    let sizes = "layers: 2, hiddenSize: 32, heads: 4, sequenceLength: 16, vocabularySize: 40";
    let text = format!(
        "{{apiVersion: varuna.dev/v1alpha1, kind: VarunaJob, metadata: {{name: j}}, spec: {{model: {{{sizes}, {fields}}}, data: {{path: d}}, \
         training: {{globalBatchSize: 8, steps: 1, optimizer: {{learningRate: 0.1}}}}}}}}"
    );
    let job = varuna_api::parse_job(&text).unwrap_or_else(|e| panic!("{fields}: {e}"));
    job.model.transformer().expect("a transformer").features
}

#[test]
fn mixes_of_a_job_file_train_like_their_formulas() {
    let steps = 10;
    let gpt2 = of_a_job("tiedHead: true");
    assert_eq!(gpt2, Features::GPT2);
    for fields in [
        "norm: rms, positions: rotary, qkNorm: true",
        "norm: rms, mlp: swiglu, kvHeads: 2, attentionBias: false",
        "positions: rotary, ropeTheta: 100, ropeScaling: {factor: 8, originalSequenceLength: 10}, mlp: relu2, logitSoftcap: 0.5",
        "qkNorm: true, kvHeads: 1, headSize: 12, slidingWindow: 5",
    ] {
        let of = |features, precision| Case {
            dropout: 0.0,
            features,
            precision,
            ..Case::default()
        };
        let features = of_a_job(fields);
        let case = of(features, Precision::Fp32);
        let unsplit = trained_like_its_formulas(&case, steps, fields);
        let plain = run(&of(gpt2, Precision::Fp32), &single(&case), steps);
        assert_ne!(unsplit.losses, plain.losses, "{fields} change something");
        let cut_inside_a_block = shape(&case, &[&[2, 4], &[6]], &[5, 3], 2);
        let narrow = run(&of(features, Precision::Bf16), &cut_inside_a_block, steps);
        assert_losses_close(&unsplit, &narrow, BF16_OFF, fields);
        assert_ne!(narrow.losses, unsplit.losses, "{fields}");
    }
}

/// The settings for documents: each alone, and all together.
const PACKINGS: [(&str, Packing); 4] = [
    (
        "block mask",
        Packing {
            block_mask: true,
            reset_positions: false,
            mask_loss: false,
        },
    ),
    (
        "positions",
        Packing {
            block_mask: false,
            reset_positions: true,
            mask_loss: false,
        },
    ),
    (
        "masked loss",
        Packing {
            block_mask: false,
            reset_positions: false,
            mask_loss: true,
        },
    ),
    ("all", PACKED),
];

const PACKED_STEPS: u64 = 8;

#[test]
fn packed_documents_train_like_their_formulas_under_every_plan() {
    let windowed = Features {
        sliding_window: Some(5),
        ..Features::GPT2
    };
    for (family, features) in [
        ("GPT-2", Features::GPT2),
        ("Llama", LLAMA_LIKE),
        ("a window", windowed),
    ] {
        let of = |packing| Case {
            dropout: 0.0,
            features,
            packing,
            ..Case::default()
        };
        let plain = common::plain::train(&of(Packing::default()), PACKED_STEPS);
        for (name, packing) in PACKINGS {
            let (case, name) = (of(packing), format!("{family}, {name}"));
            let formulas = common::plain::train(&case, PACKED_STEPS);
            assert_ne!(formulas.losses, plain.losses, "{name} changes something");
            let unsplit = run(&case, &single(&case), PACKED_STEPS);
            assert_close(&formulas, &unsplit, 1e-5, &name);
            let split = shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2);
            assert_close(&unsplit, &run(&case, &split, PACKED_STEPS), 1e-5, &name);
        }
    }
}

#[test]
fn recomputed_packed_documents_have_equal_bits() {
    let case = Case {
        features: LLAMA_LIKE,
        packing: PACKED,
        ..Case::default()
    };
    for plan in [
        shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2),
        interleave(shape(&case, &[&[1, 2, 2, 1]], &[8], 1), 2, Recompute::None),
    ] {
        let runs = runs_by_recompute(&case, &plan, PACKED_STEPS);
        assert_eq!(runs[0].parameters, runs[1].parameters);
        assert_eq!(runs[0].parameters, runs[2].parameters);
    }
}

#[test]
fn packed_documents_are_evaluated_alike_under_every_plan() {
    let case = Case {
        evaluate: true,
        packing: PACKED,
        ..Case::default()
    };
    let unsplit = run(&case, &single(&case), 5);
    let split = run(&case, &shape(&case, &[&[2, 4], &[6]], &[5, 3], 2), 5);
    let plain = run(&Case::default(), &single(&case), 1);
    assert!(plain.evaluations.is_empty() && unsplit.evaluations.len() == 2);
    for ((_, a), (_, b)) in unsplit.evaluations.iter().zip(&split.evaluations) {
        assert!((a - b).abs() <= 1e-5 * a, "{a} and {b}");
    }
    let as_one_text = Case {
        packing: Packing::default(),
        ..case
    };
    let other = run(&as_one_text, &single(&as_one_text), 1);
    let difference = (other.evaluations[0].1 - unsplit.evaluations[0].1).abs();
    assert!(difference > 1e-6, "documents are taken apart in evaluations too");
}

#[test]
fn masked_training_matches_the_formulas() {
    let of_documents = Packing {
        mask_loss: false,
        ..PACKED
    };
    let mixed = Features {
        norm: Norm::RmsNorm,
        positions: ROTARY,
        qk_norm: true,
        ..BERT_LIKE
    };
    for (name, features, packing) in [
        ("GPT-2's features", Features::GPT2, Packing::default()),
        ("Qwen's features", QWEN_LIKE, Packing::default()),
        ("BERT", BERT_LIKE, Packing::default()),
        ("BERT, RMS norm and rotary positions", mixed, Packing::default()),
        ("BERT and documents", BERT_LIKE, of_documents),
        ("documents", LLAMA_LIKE, of_documents),
    ] {
        let case = Case {
            packing,
            ..masked(features)
        };
        let plain = common::plain::train(&case, PACKED_STEPS);
        let one_sided = Case {
            features: Features {
                bidirectional: false,
                ..features
            },
            packing,
            ..masked(features)
        };
        let other = run(&one_sided, &single(&case), PACKED_STEPS);
        assert_ne!(other.losses, plain.losses, "{name}: the other side is seen");
        let unsplit = run(&case, &single(&case), PACKED_STEPS);
        assert_close(&plain, &unsplit, 1e-5, name);
        for split in [
            shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2),
            shape(&case, &[&[6], &[6]], &[5, 3], 1),
        ] {
            assert_close(&unsplit, &run(&case, &split, PACKED_STEPS), 1e-5, name);
        }
    }
}

#[test]
fn recomputed_masked_samples_have_equal_bits() {
    for features in [QWEN_LIKE, BERT_LIKE] {
        let case = masked(features);
        let plan = shape(&case, &[&[1, 3, 2], &[4, 2]], &[3, 5], 2);
        let runs = runs_by_recompute(&case, &plan, PACKED_STEPS);
        assert_eq!(runs[0].parameters, runs[1].parameters);
        assert_eq!(runs[0].parameters, runs[2].parameters);
    }
}

#[test]
fn masked_samples_are_evaluated_alike_under_every_plan() {
    let case = Case {
        evaluate: true,
        ..masked(Features::GPT2)
    };
    let unsplit = run(&case, &single(&case), 5);
    let split = run(&case, &shape(&case, &[&[2, 4], &[6]], &[5, 3], 2), 5);
    assert_eq!(unsplit.evaluations.len(), 2);
    for ((_, a), (_, b)) in unsplit.evaluations.iter().zip(&split.evaluations) {
        assert!((a - b).abs() <= 1e-5 * a, "{a} and {b}");
    }
}
