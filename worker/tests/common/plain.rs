//! The reference: the same training in plain libtorch.

use super::{BATCH, Case, Counting, Trained, engine};
use std::collections::BTreeMap;
use tch::Tensor;
use varuna_api::Model;
use varuna_plan::{Unit, WorkerId};

/// One graph over the whole batch, torch's own AdamW by hand-written formulas.
pub(crate) fn train(case: &Case, steps: u64) -> Trained {
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
    let (embedding, head) = (of(0), of(2 * model.layers + 1));
    let (table, positions) = if model.tied_head {
        (of(2 * model.layers + 2)[0], embedding[0])
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
        let (p, q) = (of(2 * layer - 1), of(2 * layer));
        let qkv = x
            .layer_norm([d], Some(p[2]), Some(p[3]), 1e-5, true)
            .linear(p[0], Some(p[4]));
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
        x = &x + a.linear(p[1], Some(p[5]));
        let up = x
            .layer_norm([d], Some(q[2]), Some(q[3]), 1e-5, true)
            .linear(q[0], Some(q[4]));
        x = &x + up.gelu("tanh").linear(q[1], Some(q[5]));
    }
    let norm = &head[head.len() - 2..];
    let y = x.layer_norm([d], Some(norm[0]), Some(norm[1]), 1e-5, true);
    y.linear(if model.tied_head { table } else { head[0] }, None::<&Tensor>)
}
