//! `spec.training`: what fixes the numbers of a run besides its model and its data.

use super::check::{Check, quoted};
use super::learning_rate::learning_rate;
use crate::choices::{OPTIMIZERS, PARAMETER_KINDS, PRECISIONS, SHARDINGS};
use crate::job::{Data, Precision};
use crate::limits;
use crate::manifest::{EvaluationSpec, LossScaleSpec, MaskingSpec, OptimizerSpec, TrainingSpec};
use crate::masking::{DEFAULT_PROBABILITY, Masking};
use crate::packing::Packing;
use crate::training::{
    DEFAULT_SKIP_LIMIT, Evaluation, Optimizer, Sharding, Training, UpdateRule, default_decaying,
};
use std::collections::BTreeSet;
use varuna_model::{Model, ParameterKind};
use varuna_plan::{LossScaling, Moments, ScaleFactor};

pub(super) fn precision(check: &mut Check, written: Option<String>) -> Precision {
    check.choice("spec.training.precision", written, &PRECISIONS)
}

pub(super) fn training(
    check: &mut Check,
    written: TrainingSpec,
    precision: Precision,
    (data, packing, model): (&Data, Packing, &Model),
) -> Training {
    let steps = check.count("spec.training.steps", written.steps);
    let global_batch_size = check.count("spec.training.globalBatchSize", written.global_batch_size);
    let allowed = "a mapping with learningRate";
    let optimizer = check.required("spec.training.optimizer", written.optimizer, allowed);
    let skip_limit = written.skip_limit.unwrap_or(DEFAULT_SKIP_LIMIT);
    if let Model::Exported(_) = model {
        suits_exported(check, precision, packing);
    }
    Training {
        global_batch_size,
        steps,
        seed: check.within("spec.training.seed", written.seed.unwrap_or(0), limits::SEED),
        learning_rate: learning_rate(check, &optimizer, steps),
        optimizer: self::optimizer(check, &optimizer),
        evaluation: written
            .evaluation
            .map(|e| evaluation(check, &e, global_batch_size, data)),
        loss_scaling: loss_scaling(check, written.loss_scale, precision),
        skip_limit: check.within("spec.training.skipLimit", skip_limit, limits::SKIP_LIMIT),
        masking: masking(check, written.masking, packing, model),
        packing,
    }
}

/// A user's own model computes in the number format with which it was exported, and knows nothing about documents.
fn suits_exported(check: &mut Check, precision: Precision, packing: Packing) {
    if precision != Precision::Fp32 {
        let allowed = "fp32, as spec.model.exported was exported in it";
        check.0.push("spec.training.precision", "16 bits", allowed);
    }
    if !packing.is_off() {
        let allowed = "nothing, as spec.model.exported is not told where documents begin";
        check.0.push("spec.data.packing", "given", allowed);
    }
}

/// Masking requires a bidirectional model, and the reverse. A model that sees the next token learns nothing by predicting it, and one that
/// sees only the tokens before a masked one lacks half of the useful context.
fn masking(
    check: &mut Check,
    written: Option<MaskingSpec>,
    packing: Packing,
    model: &Model,
) -> Option<Masking> {
    let at = "spec.training.masking";
    match (&written, model.is_bidirectional()) {
        (None, true) => {
            let allowed = "maskToken, as spec.model.bidirectional is true: a model that sees the next token cannot learn to predict it";
            check.0.push(at, "missing", allowed);
        }
        (Some(_), false) => {
            let allowed =
                "nothing, or make spec.model.bidirectional true: masked tokens are filled in from both sides";
            check.0.push(at, "given", allowed);
        }
        _ => {}
    }
    let written = written?;
    if packing.mask_loss {
        let allowed =
            "false or nothing: with spec.training.masking no token is predicted from the one before";
        check.0.push("spec.data.packing.maskLoss", true, allowed);
    }
    let last = model.vocabulary_size().saturating_sub(1);
    let allowed = format!("0 to {last}, a token of the model's vocabulary that no text has");
    let mask_token = check.required(&format!("{at}.maskToken"), written.mask_token, &allowed);
    let probability = written.probability.unwrap_or(DEFAULT_PROBABILITY);
    Some(Masking {
        mask_token: check.within(&format!("{at}.maskToken"), mask_token, 0..=last),
        probability: check.within(
            &format!("{at}.probability"),
            probability,
            limits::MASK_PROBABILITY,
        ),
    })
}

/// The defaults are `DeepSpeed`'s: the scale falls within a few steps where it is too large, and doubles every thousand.
fn loss_scaling(check: &mut Check, written: Option<LossScaleSpec>, precision: Precision) -> LossScaling {
    let at = "spec.training.lossScale";
    if precision != Precision::Fp16 {
        if written.is_some() {
            let allowed = "nothing, as spec.training.precision is not fp16: wider numbers need no loss scale";
            check.0.push(at, "given", allowed);
        }
        return LossScaling::OFF;
    }
    let written = written.unwrap_or_default();
    if let Some(fixed) = written.fixed {
        if written.initial.is_some() || written.minimum.is_some() || written.window.is_some() {
            let allowed = "static alone, or initial, minimum and window: a static scale never changes";
            check.0.push(at, "static and others", allowed);
        }
        return LossScaling::Static(scale_factor(check, "static", fixed));
    }
    let initial = written.initial.unwrap_or(1 << 16);
    let minimum = scale_factor(check, "minimum", written.minimum.unwrap_or(1));
    let window = written.window.unwrap_or(1000);
    let scaling = LossScaling::Dynamic {
        initial: scale_factor(check, "initial", initial),
        minimum,
        window: check.within(&format!("{at}.window"), window, limits::WINDOW),
    };
    if minimum.value() > initial {
        let allowed = format!("at most initial ({initial})");
        check.0.push(&format!("{at}.minimum"), minimum.value(), allowed);
    }
    scaling
}

fn scale_factor(check: &mut Check, field: &str, value: u64) -> ScaleFactor {
    ScaleFactor::try_from(value).unwrap_or_else(|_| {
        let allowed = format!("a power of two from 1 to {}", ScaleFactor::GREATEST.value());
        check
            .0
            .push(&format!("spec.training.lossScale.{field}"), value, allowed);
        ScaleFactor::ONE
    })
}

fn optimizer(check: &mut Check, written: &OptimizerSpec) -> Optimizer {
    let at = |field: &str| format!("spec.training.optimizer.{field}");
    let rule = match check.choice(&at("kind"), written.kind.clone(), &OPTIMIZERS) {
        Moments::Adam => adamw(check, written),
        Moments::Momentum => sgd(check, written),
        Moments::Muon => muon(check, written),
    };
    // PyTorch's own defaults differ likewise; what decays with SGD is part of the gradient.
    let weight_decay = written.weight_decay.unwrap_or(match rule {
        UpdateRule::Adamw { .. } | UpdateRule::Muon { .. } => 0.1,
        UpdateRule::Sgd { .. } => 0.0,
    });
    let weight_decay = check.within(&at("weightDecay"), weight_decay, limits::WEIGHT_DECAY);
    let weight_decay_on = decaying(check, &at("weightDecayOn"), written.weight_decay_on.as_deref());
    let clip = written.clip_norm.unwrap_or(1.0);
    let clip = check.within(&at("clipNorm"), clip, limits::CLIP_NORM);
    Optimizer {
        rule,
        weight_decay,
        weight_decay_on,
        clip_norm: (clip > 0.0).then_some(clip),
        sharding: sharding(check, written, rule),
    }
}

fn sharding(check: &mut Check, written: &OptimizerSpec, rule: UpdateRule) -> Sharding {
    let at = "spec.training.optimizer.sharding";
    let sharding = check.choice(at, written.sharding.clone(), &SHARDINGS);
    if sharding != Sharding::Off && rule.moments() == Moments::Muon {
        let allowed = "none with kind muon, which needs whole matrices";
        check.0.push(at, "zero1", allowed);
    }
    sharding
}

fn adamw(check: &mut Check, written: &OptimizerSpec) -> UpdateRule {
    let at = |field: &str| format!("spec.training.optimizer.{field}");
    if let Some(momentum) = written.momentum {
        let allowed = "nothing but with kind sgd or muon: adamw has beta1";
        check.0.push(&at("momentum"), momentum, allowed);
    }
    let [beta1, beta2, epsilon] = of_adam(check, written);
    UpdateRule::Adamw {
        beta1,
        beta2,
        epsilon,
    }
}

fn muon(check: &mut Check, written: &OptimizerSpec) -> UpdateRule {
    let momentum = written.momentum.unwrap_or(0.95);
    let [beta1, beta2, epsilon] = of_adam(check, written);
    UpdateRule::Muon {
        momentum: check.fraction("spec.training.optimizer.momentum", momentum, "momentum"),
        beta1,
        beta2,
        epsilon,
    }
}

/// The two betas and epsilon.
fn of_adam(check: &mut Check, written: &OptimizerSpec) -> [f64; 3] {
    let at = |field: &str| format!("spec.training.optimizer.{field}");
    let epsilon = Some(written.epsilon.unwrap_or(1e-8));
    [
        check.fraction(&at("beta1"), written.beta1.unwrap_or(0.9), "beta"),
        check.fraction(&at("beta2"), written.beta2.unwrap_or(0.95), "beta"),
        check.above_zero(&at("epsilon"), epsilon, limits::EPSILON_MAX),
    ]
}

fn sgd(check: &mut Check, written: &OptimizerSpec) -> UpdateRule {
    let at = |field: &str| format!("spec.training.optimizer.{field}");
    let of_adam = [
        ("beta1", written.beta1),
        ("beta2", written.beta2),
        ("epsilon", written.epsilon),
    ];
    for (field, value) in of_adam {
        if let Some(value) = value {
            let allowed = "nothing with kind sgd, which has momentum";
            check.0.push(&at(field), value, allowed);
        }
    }
    UpdateRule::Sgd {
        momentum: check.fraction(&at("momentum"), written.momentum.unwrap_or(0.9), "momentum"),
    }
}

fn decaying(check: &mut Check, path: &str, written: Option<&[String]>) -> BTreeSet<ParameterKind> {
    let Some(names) = written else {
        return default_decaying();
    };
    let most = PARAMETER_KINDS.len();
    if names.len() > most {
        let found = format!("{} kinds", names.len());
        check.0.push(path, found, format!("at most {most}"));
        return default_decaying();
    }
    let mut kinds = BTreeSet::new();
    for (i, name) in names.iter().enumerate() {
        let path = format!("{path}.{i}");
        let kind = check.one_of(&path, Some(name.clone()), &PARAMETER_KINDS);
        if kind.is_some_and(|kind| !kinds.insert(kind)) {
            check.0.push(&path, quoted(name), "each kind once");
        }
    }
    kinds
}

fn evaluation(check: &mut Check, written: &EvaluationSpec, batch: u64, data: &Data) -> Evaluation {
    let at = "spec.training.evaluation";
    if data.held_out.is_nothing() {
        let allowed = "nothing, as spec.data.validationFraction is 0: no samples are held out";
        check.0.push(at, "asked for", allowed);
    }
    let samples = Some(written.samples.unwrap_or(batch.max(1)));
    Evaluation {
        interval_steps: check.count(&format!("{at}.intervalSteps"), written.interval_steps),
        samples: check.count(&format!("{at}.samples"), samples),
    }
}
