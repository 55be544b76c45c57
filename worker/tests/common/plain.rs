//! The reference: the same training in plain libtorch.

use super::formulas::{self, Documents, Leaf};
use super::{BATCH, Case, Counting, Trained, engine};
use std::collections::BTreeMap;
use tch::Tensor;
use varuna_api::UpdateRule;
use varuna_api::masking::Masking;
use varuna_model::{ParameterKind, Transformer, Unit};
use varuna_plan::WorkerId;

/// Trains with one graph over the whole batch, and with an optimizer in hand-written formulas.
pub(crate) fn train(case: &Case, steps: u64) -> Trained {
    assert!(case.dropout == 0.0, "plain libtorch draws other masks");
    let (model, training) = (case.model(), case.training());
    let mut engine = engine(case, WorkerId(1));
    let mut leaves: Vec<Leaf> = Vec::new();
    for unit in model.layout().all_units() {
        engine.initialise(unit).unwrap();
        for (name, tensor) in engine.parameters(unit).unwrap() {
            if tensor.numel() > 0 {
                leaves.push((unit, name, tensor.set_requires_grad(true)));
            }
        }
    }
    let zeros: Vec<Tensor> = leaves.iter().map(|(_, _, p)| p.zeros_like().detach()).collect();
    let (mut first, mut second) = (zeros.iter().map(Tensor::copy).collect::<Vec<_>>(), zeros);
    let mut losses = Vec::new();
    for step in 0..steps {
        let loss = batch_loss(case, &leaves, step);
        losses.push(loss.double_value(&[]));
        loss.backward();
        let norm2: f64 = leaves
            .iter()
            .map(|(_, _, p)| p.grad().square().sum(tch::Kind::Double).double_value(&[]))
            .sum();
        let clip = (0.5 / (norm2.sqrt() + 1e-6)).min(1.0);
        let rate = training.learning_rate.at(step);
        let t = i32::try_from(step).unwrap() + 1;
        let _guard = tch::no_grad_guard();
        for (i, (unit, name, p)) in leaves.iter_mut().enumerate() {
            let g = p.grad() * clip;
            let described = model.parameters(*unit);
            let kind = described.iter().find(|d| d.name == *name).unwrap().kind;
            let decays = training.optimizer.weight_decay_on.contains(&kind);
            let now = Now {
                t,
                rate,
                decays,
                parts: (kind == ParameterKind::Matrix)
                    .then(|| parts(&model, *unit, name, p))
                    .flatten(),
            };
            update(
                training.optimizer.rule,
                now,
                p,
                &g,
                [&mut first[i], &mut second[i]],
            );
            p.zero_grad();
        }
    }
    let mut parameters: BTreeMap<Unit, Vec<f32>> = BTreeMap::new();
    for (unit, _, p) in &leaves {
        let values = Vec::<f32>::try_from(p.detach().reshape([-1])).unwrap();
        parameters.entry(*unit).or_default().extend(values);
    }
    // `assert_close` compares the weights, which come first, and not the moments.
    for values in parameters.values_mut() {
        values.resize(
            values.len() * (1 + training.optimizer.rule.moments().of_parameter()),
            0.0,
        );
    }
    Trained {
        losses,
        moments: training.optimizer.rule.moments(),
        evaluations: vec![],
        parameters,
        ..Trained::default()
    }
}

/// If the parameter is a matrix of a block, the numbers of rows of the matrices of which it consists; otherwise none.
fn parts(model: &Transformer, unit: Unit, name: &str, p: &Tensor) -> Option<Vec<i64>> {
    let rows = p.size()[0];
    let queries = i64::from(model.heads * model.head_size());
    model.is_in_block(unit).then(|| match name {
        "attn.c_attn.weight" => vec![queries, (rows - queries) / 2, (rows - queries) / 2],
        _ => vec![rows],
    })
}

/// The mean loss over the targets of a step's batch.
fn batch_loss(case: &Case, leaves: &[Leaf], step: u64) -> Tensor {
    let rows = |fill: fn(u64, &mut [i64])| {
        let mut numbers = vec![0i64; 8 * 17];
        for (i, row) in numbers.chunks_exact_mut(17).enumerate() {
            fill(step * BATCH + i as u64, row);
        }
        Tensor::from_slice(&numbers).view([8, 17])
    };
    let (tokens, positions) = (rows(Counting::fill), rows(Counting::positions));
    let documents = Documents {
        positions: &positions.narrow(1, 0, 16),
        packing: case.packing,
    };
    let (inputs, mut targets) = match case.masking {
        Some(masking) => masked(case, masking, step, &tokens),
        None => (tokens.narrow(1, 0, 16), tokens.narrow(1, 1, 16)),
    };
    let logits = formulas::logits(&case.model(), leaves, &inputs, Some(&documents));
    if case.packing.mask_loss {
        targets = targets.masked_fill(&positions.narrow(1, 1, 16).eq(0), -100);
    }
    logits
        .view([-1, 40])
        .cross_entropy_for_logits(&targets.reshape([-1]))
}

/// From the tokens (b, t + 1) of a step's samples: the masked tokens and the targets, (b, t) each.
fn masked(case: &Case, masking: Masking, step: u64, tokens: &Tensor) -> (Tensor, Tensor) {
    let numbers = Vec::<i64>::try_from(tokens.reshape([-1])).unwrap();
    let (mut seen, mut targets) = (vec![], vec![]);
    for (sample, row) in (step * BATCH..).zip(numbers.chunks_exact(17)) {
        let mask = masking.of_trained(case.model().vocabulary_size, case.training().seed, sample);
        for (place, token) in (0..16u64).zip(row) {
            seen.push(mask.seen(place, *token));
            targets.push(if mask.is_chosen(place) { *token } else { -100 });
        }
    }
    let rows = |numbers: &[i64]| Tensor::from_slice(numbers).view([-1, 16]);
    (rows(&seen), rows(&targets))
}

struct Now {
    /// Number of the step, from 1 on.
    t: i32,
    rate: f64,
    decays: bool,
    /// For a matrix of a block: the numbers of rows of the matrices of which it consists.
    parts: Option<Vec<i64>>,
}

/// One step for one parameter, by the published formulas.
fn update(rule: UpdateRule, now: Now, p: &mut Tensor, g: &Tensor, [first, second]: [&mut Tensor; 2]) {
    let Now {
        t,
        rate,
        decays,
        parts,
    } = now;
    match rule {
        UpdateRule::Muon { momentum, .. } if parts.is_some() => {
            *first = &*first * momentum + g * (1.0 - momentum);
            let update = g * (1.0 - momentum) + &*first * momentum;
            if decays {
                *p *= 1.0 - rate * 0.1;
            }
            let matrices = update.split_with_sizes(parts.unwrap(), 0);
            let steps = matrices.iter().map(|m| {
                let longest = m.size().into_iter().max().unwrap() as f64;
                orthogonal(m) * (rate * 0.2 * longest.sqrt())
            });
            *p -= Tensor::cat(&steps.collect::<Vec<_>>(), 0);
        }
        UpdateRule::Sgd { momentum } => {
            let decayed = if decays { g + &*p * 0.1 } else { g.shallow_clone() };
            *first = &*first * momentum + decayed;
            *p -= &*first * rate;
        }
        UpdateRule::Adamw { .. } | UpdateRule::Muon { .. } => {
            *first = &*first * 0.9 + g * 0.1;
            *second = &*second * 0.95 + g * g * 0.05;
            let (m, v) = (
                &*first / (1.0 - 0.9f64.powi(t)),
                &*second / (1.0 - 0.95f64.powi(t)),
            );
            if decays {
                *p *= 1.0 - rate * 0.1;
            }
            *p -= m / (v.sqrt() + 1e-8) * rate;
        }
    }
}

/// The Newton-Schulz iteration with Muon's coefficients, in double precision.
fn orthogonal(of: &Tensor) -> Tensor {
    let of = of.to_kind(tch::Kind::Double);
    let mut x = &of / of.norm();
    for _ in 0..5 {
        let a = x.mm(&x.tr());
        let b = &a * -4.775 + a.mm(&a) * 2.0315;
        x = &x * 3.4445 + b.mm(&x);
    }
    x.to_kind(tch::Kind::Float)
}
