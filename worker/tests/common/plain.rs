//! The reference: the same training in plain libtorch.

use super::formulas::{self, Documents, Leaf};
use super::{BATCH, Case, Counting, Trained, engine};
use std::collections::BTreeMap;
use tch::Tensor;
use varuna_api::UpdateRule;
use varuna_model::Unit;
use varuna_plan::WorkerId;

/// One graph over the whole batch, torch's own AdamW by hand-written formulas.
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
            let now = Now { t, rate, decays };
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
    // assert_close compares the weights, which come first; the moments are not looked at.
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

/// The mean loss of the targets of a step's batch.
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
    let inputs = tokens.narrow(1, 0, 16);
    let logits = formulas::logits(&case.model(), leaves, &inputs, Some(&documents));
    let mut targets = tokens.narrow(1, 1, 16);
    if case.packing.mask_loss {
        targets = targets.masked_fill(&positions.narrow(1, 1, 16).eq(0), -100);
    }
    logits
        .view([-1, 40])
        .cross_entropy_for_logits(&targets.reshape([-1]))
}

struct Now {
    /// From 1 on.
    t: i32,
    rate: f64,
    decays: bool,
}

/// One parameter's step by the published formulas.
fn update(rule: UpdateRule, now: Now, p: &mut Tensor, g: &Tensor, [first, second]: [&mut Tensor; 2]) {
    let Now { t, rate, decays } = now;
    match rule {
        UpdateRule::Sgd { momentum } => {
            let decayed = if decays { g + &*p * 0.1 } else { g.shallow_clone() };
            *first = &*first * momentum + decayed;
            *p -= &*first * rate;
        }
        UpdateRule::Adamw { .. } => {
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
