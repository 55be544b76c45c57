//! The reference: the same training in plain libtorch.

use super::{BATCH, Case, Counting, Trained, engine};
use std::collections::BTreeMap;
use tch::Tensor;
use varuna_model::{Mlp, Model, Norm, Unit};
use varuna_plan::WorkerId;

/// A unit's parameter by name.
type Leaf = (Unit, &'static str, Tensor);

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
            .map(|(_, _, p)| p.grad().square().sum(tch::Kind::Double).double_value(&[]))
            .sum();
        let clip = (0.5 / (norm2.sqrt() + 1e-6)).min(1.0);
        let rate = training.learning_rate.at(step);
        let t = i32::try_from(step).unwrap() + 1;
        let _guard = tch::no_grad_guard();
        for (i, (_, _, p)) in leaves.iter_mut().enumerate() {
            let g = p.grad() * clip;
            first[i] = &first[i] * 0.9 + &g * 0.1;
            second[i] = &second[i] * 0.95 + &g * &g * 0.05;
            let (m, v) = (
                &first[i] / (1.0 - 0.9f64.powi(t)),
                &second[i] / (1.0 - 0.95f64.powi(t)),
            );
            if p.dim() > 1 {
                *p *= 1.0 - rate * 0.1;
            }
            *p -= m / (v.sqrt() + 1e-8) * rate;
            p.zero_grad();
        }
    }
    let mut parameters: BTreeMap<Unit, Vec<f32>> = BTreeMap::new();
    for (unit, _, p) in &leaves {
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
        ..Trained::default()
    }
}

fn plain_forward(model: &Model, leaves: &[Leaf], tokens: &Tensor) -> Tensor {
    let d = i64::from(model.hidden_size);
    let heads = i64::from(model.heads);
    let optional = |unit: u32, name: &str| {
        let found = leaves.iter().find(|(u, n, _)| u.0 == unit && *n == name);
        found.map(|(_, _, tensor)| tensor)
    };
    let of = |unit, name: &str| optional(unit, name).unwrap();
    let norm = |x: &Tensor, unit, name: &str| {
        let weight = of(unit, &format!("{name}.weight"));
        match model.features.norm {
            Norm::LayerNorm => x.layer_norm(
                [d],
                Some(weight),
                optional(unit, &format!("{name}.bias")),
                1e-5,
                true,
            ),
            Norm::RmsNorm => {
                let mean_square = (x * x).mean_dim(-1, true, tch::Kind::Float);
                x / (mean_square + 1e-5).sqrt() * weight
            }
        }
    };
    let linear = |x: &Tensor, unit, name: &str| {
        let product = x.matmul(&of(unit, &format!("{name}.weight")).transpose(0, 1));
        match optional(unit, &format!("{name}.bias")) {
            Some(bias) => product + bias,
            None => product,
        }
    };
    let (head, tied) = (2 * model.layers + 1, 2 * model.layers + 2);
    let (table, projection) = if model.tied_head {
        (of(tied, "wte.weight"), of(tied, "wte.weight"))
    } else {
        (of(0, "wte.weight"), of(head, "lm_head.weight"))
    };
    let mut x = Tensor::embedding(table, tokens, -1, false, false) + of(0, "wpe.weight");
    let (b, t) = (x.size()[0], x.size()[1]);
    let mask = Tensor::ones([t, t], (tch::Kind::Float, tch::Device::Cpu))
        .tril(0)
        .eq(0.0);
    for layer in 1..=model.layers {
        let (p, q) = (2 * layer - 1, 2 * layer);
        let qkv = linear(&norm(&x, p, "ln_1"), p, "attn.c_attn");
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
        x = &x + linear(&a, p, "attn.c_proj");
        let normed = norm(&x, q, "ln_2");
        let up = linear(&normed, q, "mlp.c_fc");
        let inner = match model.features.mlp {
            Mlp::Gelu => up.gelu("tanh"),
            Mlp::Relu2 => up.relu().square(),
            Mlp::SwiGlu => {
                let gate = linear(&normed, q, "mlp.c_gate");
                &gate * gate.sigmoid() * up
            }
        };
        x = &x + linear(&inner, q, "mlp.c_proj");
    }
    norm(&x, head, "ln_f").matmul(&projection.transpose(0, 1))
}
