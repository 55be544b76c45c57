//! A trained model computes what it computed in training: compared with the published formulas, with the engine's own forward, and token by
//! token with a cache.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use common::formulas::{self, Leaf};
use common::{BERT_LIKE, Case, Counting, LLAMA_LIKE, QWEN_LIKE, engine};
use tch::{Kind, Tensor};
use varuna_api::{Packing, Precision};
use varuna_model::{Features, Norm, Real, Transformer, Unit};
use varuna_plan::WorkerId;
use varuna_torch::{NO_TARGET, vec_from_tensor};
use varuna_worker::backend::Backend;
use varuna_worker::engine::{Engine, Samples};
use varuna_worker::inference::{Sampling, TrainedModel, Windows};

/// Every family, with features in which its models differ, and a mix that no family has.
fn cases() -> Vec<(&'static str, Case)> {
    let of = |features, tied| Case {
        features,
        tied,
        ..Case::default()
    };
    let more = Features {
        sliding_window: Some(5),
        logit_softcap: Some(Real::new(2.0)),
        ..LLAMA_LIKE
    };
    let mixed = Features {
        norm: Norm::RmsNorm,
        positions: LLAMA_LIKE.positions,
        qk_norm: true,
        ..Features::GPT2
    };
    vec![
        ("gpt2", of(Features::GPT2, true)),
        ("gpt2, untied", of(Features::GPT2, false)),
        ("llama", of(LLAMA_LIKE, true)),
        ("qwen3", of(QWEN_LIKE, false)),
        ("a window and a cap", of(more, false)),
        ("a mix of features", of(mixed, true)),
    ]
}

/// Makes matrices larger than the initial ones, so that logits differ by about one, and vectors that are not all ones or zeros.
fn perturb(model: &Transformer, unit: Unit, weights: &mut [f32]) {
    let mut rest = weights;
    for parameter in model.parameters(unit) {
        let (own, others) = rest.split_at_mut(parameter.elements());
        rest = others;
        for (i, w) in own.iter_mut().enumerate() {
            match parameter.shape.len() {
                1 => *w += [-0.1, 0.0, 0.2][i % 3],
                _ => *w *= 5.0,
            }
        }
    }
}

/// The model of a case, both in its engine and for inference.
fn models(case: &Case) -> (Engine, TrainedModel) {
    let mut engine = engine(case, WorkerId(1));
    let mut trained = TrainedModel::new(case.model(), Backend::of_processor(case.precision.into()));
    for unit in case.model().layout().all_units() {
        engine.initialise(unit).unwrap();
        let mut state = engine.export(unit).unwrap();
        let weights = state.data.len() / 3;
        perturb(&case.model(), unit, &mut state.data[..weights]);
        engine.import(unit, &state).unwrap();
        trained.add(unit, state.data[..weights].to_vec()).unwrap();
    }
    (engine, trained)
}

fn leaves(engine: &Engine, model: &Transformer) -> Vec<Leaf> {
    let units = model.layout().all_units();
    let all = units.flat_map(|unit| {
        engine
            .parameters(unit)
            .unwrap()
            .into_iter()
            .map(move |(n, t)| (unit, n, t))
    });
    all.filter(|(_, _, tensor)| tensor.numel() > 0).collect()
}

fn windows(tokens: Tensor, targets: Option<Tensor>, positions: Option<Tensor>) -> Windows {
    Windows {
        tokens,
        targets,
        positions,
    }
}

/// Three samples (b, t + 1).
fn rows(model: &Transformer) -> Tensor {
    let width = model.sequence_length as usize + 1;
    let mut tokens = vec![0i64; 3 * width];
    for (index, row) in (0..).zip(tokens.chunks_exact_mut(width)) {
        Counting.train(index, row).unwrap();
    }
    Tensor::from_slice(&tokens).view([3, -1])
}

fn off(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a - b).abs().max().double_value(&[])
}

#[test]
fn logits_are_those_of_the_published_formulas() {
    for (name, case) in cases() {
        let (engine, trained) = models(&case);
        let model = case.model();
        let tokens = rows(&model).narrow(1, 0, i64::from(model.sequence_length));
        let expected = formulas::logits(&model, &leaves(&engine, &model), &tokens, None);
        let found = trained.logits(&tokens).unwrap();
        let spread = expected.std(true).double_value(&[]);
        assert!(spread > 0.3, "{name}: all logits are alike ({spread})");
        let off = off(&found, &expected);
        assert!(off < 1e-5, "{name}: {off}");
    }
}

#[test]
fn the_loss_of_the_trainings_forward_is_that_of_the_logits() {
    for (name, case) in cases() {
        let (_, trained) = models(&case);
        let model = case.model();
        let (rows, length) = (rows(&model), i64::from(model.sequence_length));
        let logits = trained.logits(&rows.narrow(1, 0, length)).unwrap();
        let targets = rows.narrow(1, 1, length).reshape([-1]);
        let expected = logits
            .view([-1, 40])
            .cross_entropy_for_logits(&targets)
            .double_value(&[]);
        let sum = trained.loss_sum().unwrap();
        // The samples in two batches of different sizes.
        let mut taken = 0;
        for (first, count) in [(0, 2), (2, 1)] {
            let windows = windows(rows.narrow(0, first, count), None, None);
            taken += trained.add_loss(&windows, Packing::default(), &sum).unwrap();
        }
        assert_eq!(taken, 3 * length.unsigned_abs());
        let found = sum.double_value(&[]) / taken as f64;
        assert!((found - expected).abs() < 1e-5, "{name}: {found} and {expected}");
    }
}

#[test]
fn packed_loss_equals_the_loss_of_each_document() {
    let packing = Packing {
        block_mask: true,
        reset_positions: true,
        mask_loss: true,
    };
    for (name, case) in cases() {
        let (_, trained) = models(&case);
        let model = case.model();
        let rows = rows(&model);
        let mut positions = vec![0i64; rows.numel()];
        let width = model.sequence_length as usize + 1;
        for (index, row) in (0..).zip(positions.chunks_exact_mut(width)) {
            Counting.train_positions(index, row).unwrap();
        }
        let (mut expected, mut count) = (0.0, 0);
        for (sample, positions) in positions.chunks_exact(width).enumerate() {
            let tokens = vec_from_tensor::<i64>(&rows.get(sample as i64)).unwrap();
            let begins: Vec<usize> = (0..width).filter(|i| positions[*i] == 0).collect();
            for (i, begin) in begins.iter().enumerate() {
                let document = &tokens[*begin..*begins.get(i + 1).unwrap_or(&width)];
                let Some((inputs, targets)) = document.split_last().map(|(_, rest)| (rest, &document[1..]))
                else {
                    continue;
                };
                if inputs.is_empty() {
                    continue;
                }
                let logits = trained.logits(&Tensor::from_slice(inputs).unsqueeze(0)).unwrap();
                let mean = logits
                    .get(0)
                    .cross_entropy_for_logits(&Tensor::from_slice(targets));
                expected += mean.double_value(&[]) * targets.len() as f64;
                count += targets.len() as u64;
            }
        }
        assert!(
            count < 3 * u64::from(model.sequence_length),
            "documents end in the samples"
        );
        let sum = trained.loss_sum().unwrap();
        let positions = Tensor::from_slice(&positions).view([3, -1]);
        let taken = trained
            .add_loss(&windows(rows, None, Some(positions)), packing, &sum)
            .unwrap();
        assert_eq!(taken, count, "{name}");
        let (found, expected) = (sum.double_value(&[]) / count as f64, expected / count as f64);
        assert!((found - expected).abs() < 1e-5, "{name}: {found} and {expected}");
    }
}

#[test]
fn cached_logits_equal_those_of_the_whole_sequence() {
    for (name, case) in cases() {
        let (_, trained) = models(&case);
        let model = case.model();
        let length = model.sequence_length as usize;
        let tokens = vec_from_tensor::<i64>(&rows(&model).get(1)).unwrap();
        let whole = Tensor::from_slice(&tokens[..length]).unsqueeze(0);
        let whole = trained.logits(&whole).unwrap().get(0);
        // Prompts of any length, and the rest in pieces of one or several tokens.
        for pieces in [vec![1; length], vec![7, 1, 1, 3, 4], vec![length], vec![15, 1]] {
            let mut session = trained.session(model.sequence_length).unwrap();
            let mut at = 0;
            for count in pieces {
                let logits = session.feed(&tokens[at..at + count]).unwrap();
                at += count;
                assert_eq!(session.len() as usize, at);
                let expected = whole.get(i64::try_from(at).unwrap() - 1);
                let off = off(&Tensor::from_slice(&logits), &expected);
                assert!(off < 1e-5, "{name}, after {at} tokens: {off}");
            }
            assert!(
                session.feed(&[1]).is_err(),
                "{name}: there is place for {length} tokens"
            );
        }
    }
}

#[test]
fn greedy_text_is_reproducible_with_and_without_cache() {
    for (name, case) in cases() {
        let (_, trained) = models(&case);
        let greedy = Sampling::new(0.0, 1.0, 0).unwrap();
        let cached = || {
            let mut session = trained.session(16).unwrap();
            let (mut next, mut made): (Vec<i64>, Vec<i64>) = (vec![3, 1, 4], Vec::new());
            for number in 0..12 {
                let token = greedy.draw(&session.feed(&next).unwrap(), number).unwrap();
                next = vec![i64::try_from(token).unwrap()];
                made.extend_from_slice(&next);
            }
            made
        };
        let mut all = vec![3i64, 1, 4];
        for _ in 0..12 {
            let logits = trained.logits(&Tensor::from_slice(&all).unsqueeze(0)).unwrap();
            all.push(logits.get(0).get(-1).argmax(0, false).int64_value(&[]));
        }
        assert_eq!(cached(), all[3..], "{name}");
        assert_eq!(cached(), cached(), "{name}");
    }
}

#[test]
fn a_model_in_sixteen_bits_is_near_the_one_in_single_precision() {
    for (name, case) in cases() {
        let (_, single) = models(&case);
        let (_, narrow) = models(&Case {
            precision: Precision::Bf16,
            ..case
        });
        let tokens = rows(single.model()).narrow(1, 0, 16);
        let (a, b) = (single.logits(&tokens).unwrap(), narrow.logits(&tokens).unwrap());
        assert_eq!(b.kind(), Kind::Float, "logits are in single precision");
        let (off, spread) = (off(&a, &b), a.std(true).double_value(&[]));
        assert!(off > 0.0 && off < 0.2 * spread, "{name}: {off} of {spread}");
    }
}

#[test]
fn what_is_not_there_or_not_allowed_is_refused() {
    let case = Case::default();
    let (engine, trained) = models(&case);
    let empty = TrainedModel::new(case.model(), Backend::of_processor(case.precision.into()));
    let why = empty.session(4).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("unit 0 of the model has no parameters"), "{why}");
    let unit = case.model().layout().all_units().next().unwrap();
    let state = engine.export(unit).unwrap();
    let mut other = TrainedModel::new(case.model(), Backend::of_processor(case.precision.into()));
    assert!(
        other.add(unit, state.data).is_err(),
        "three times as many values as parameters"
    );
    let mut session = trained.session(4).unwrap();
    assert!(session.feed(&[40]).is_err(), "a token outside the vocabulary");
    assert!(session.is_empty());
    assert!(
        session.feed(&[1, 2, 3, 4, 5]).is_err(),
        "more tokens than there is place for"
    );
    assert_eq!(session.feed(&[1, 2, 3, 4]).unwrap().len(), 40);
}

#[test]
fn bidirectional_model_matches_its_formulas() {
    for features in [Features::GPT2, QWEN_LIKE, BERT_LIKE] {
        let case = Case {
            features: Features {
                bidirectional: true,
                ..features
            },
            ..Case::default()
        };
        let (engine, trained) = models(&case);
        let model = case.model();
        let length = i64::from(model.sequence_length);
        let rows = rows(&model);
        // The last token changes the logits of the first token.
        for count in [length, 7] {
            let tokens = rows.narrow(1, 0, count);
            let expected = formulas::logits(&model, &leaves(&engine, &model), &tokens, None);
            let found = trained.logits(&tokens).unwrap();
            assert!(off(&found, &expected) < 1e-5);
        }
        let targets = rows.copy();
        let _ = targets.narrow(1, 0, 12).fill_(NO_TARGET);
        let sum = trained.loss_sum().unwrap();
        let of_some = windows(rows.copy(), Some(targets.copy()), None);
        let taken = trained.add_loss(&of_some, Packing::default(), &sum).unwrap();
        assert_eq!(taken, 3 * (17 - 12));
        let expected = trained
            .logits(&rows.narrow(1, 0, length))
            .unwrap()
            .view([-1, 40])
            .cross_entropy_for_logits(&targets.narrow(1, 1, length).reshape([-1]));
        let found = sum.double_value(&[]) / taken as f64;
        assert!((found - expected.double_value(&[])).abs() < 1e-5);
        let why = trained.session(8).map(|_| ()).unwrap_err().to_string();
        assert!(why.contains("the model is bidirectional"), "{why}");
    }
}
