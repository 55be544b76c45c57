//! The forward of the reference: each feature by its published formula, in plain operations of libtorch.

use tch::{Device, Kind, Tensor};
use varuna_api::Packing;
use varuna_model::{Mlp, Norm, Positions, Rotary, Transformer, Unit};

/// A parameter, with its unit and name.
pub(crate) type Leaf = (Unit, String, Tensor);

/// Where documents begin in samples, and how they are treated.
pub(crate) struct Documents<'a> {
    pub(crate) positions: &'a Tensor,
    pub(crate) packing: Packing,
}

struct Formulas<'a> {
    model: &'a Transformer,
    leaves: &'a [Leaf],
    /// (b, t): positions of the tokens within their documents, 0 at the first token.
    positions: Tensor,
    /// (b, t): tokens with different numbers do not attend to each other.
    documents: Tensor,
}

/// Logits (b, t, v) for tokens (b, t).
pub(crate) fn logits(
    model: &Transformer,
    leaves: &[Leaf],
    tokens: &Tensor,
    documents: Option<&Documents<'_>>,
) -> Tensor {
    let t = tokens.size()[1];
    let in_order = Tensor::arange(t, (Kind::Int64, Device::Cpu)).expand_as(tokens);
    let reset = documents.filter(|d| d.packing.reset_positions);
    let apart = documents.filter(|d| d.packing.block_mask);
    let formulas = Formulas {
        model,
        leaves,
        positions: reset.map_or(in_order, |d| d.positions.shallow_clone()),
        documents: apart.map_or(tokens.zeros_like(), |d| d.positions.eq(0).cumsum(1, Kind::Int64)),
    };
    let (head, tied) = (2 * model.layers + 1, 2 * model.layers + 2);
    let (table, projection) = if model.tied_head {
        (formulas.of(tied, "wte.weight"), formulas.of(tied, "wte.weight"))
    } else {
        (formulas.of(0, "wte.weight"), formulas.of(head, "lm_head.weight"))
    };
    let mut x = Tensor::embedding(table, tokens, -1, false, false);
    if model.features.positions == Positions::Learned {
        let positions = &formulas.positions;
        x = &x + Tensor::embedding(formulas.of(0, "wpe.weight"), positions, -1, false, false);
    }
    if model.features.token_types.is_some() {
        x = &x + formulas.of(0, "wtt.weight").get(0);
    }
    if model.features.embedding_norm {
        x = formulas.norm(&x, 0, "ln_e");
    }
    for layer in 1..=model.layers {
        let (p, q) = (2 * layer - 1, 2 * layer);
        if model.features.post_norm {
            x = formulas.norm(&(&x + formulas.attention(&x, p)), p, "ln_1");
            x = formulas.norm(&(&x + formulas.mlp(&x, q)), q, "ln_2");
        } else {
            x = &x + formulas.attention(&formulas.norm(&x, p, "ln_1"), p);
            x = &x + formulas.mlp(&formulas.norm(&x, q, "ln_2"), q);
        }
    }
    if model.features.masked_head {
        let dense = formulas.linear(&x, head, "head.dense");
        x = match model.features.mlp {
            Mlp::Gelu => dense.gelu("tanh"),
            _ => exact_gelu(&dense),
        };
    }
    let mut logits = formulas
        .norm(&x, head, "ln_f")
        .matmul(&projection.transpose(0, 1));
    if let Some(bias) = formulas.optional(head, "lm_head.bias") {
        logits += bias;
    }
    match model.features.logit_softcap {
        Some(cap) => (logits / cap.get()).tanh() * cap.get(),
        None => logits,
    }
}

impl Formulas<'_> {
    fn optional(&self, unit: u32, name: &str) -> Option<&Tensor> {
        let found = self.leaves.iter().find(|(u, n, _)| u.0 == unit && *n == name);
        found.map(|(_, _, tensor)| tensor)
    }

    fn of(&self, unit: u32, name: &str) -> &Tensor {
        self.optional(unit, name).unwrap()
    }

    fn linear(&self, x: &Tensor, unit: u32, name: &str) -> Tensor {
        let product = x.matmul(&self.of(unit, &format!("{name}.weight")).transpose(0, 1));
        match self.optional(unit, &format!("{name}.bias")) {
            Some(bias) => product + bias,
            None => product,
        }
    }

    fn norm(&self, x: &Tensor, unit: u32, name: &str) -> Tensor {
        let weight = self.of(unit, &format!("{name}.weight"));
        match self.model.features.norm {
            Norm::LayerNorm => {
                let bias = self.of(unit, &format!("{name}.bias"));
                let centred = x - x.mean_dim(-1, true, Kind::Float);
                self.by_root_mean_square(&centred) * weight + bias
            }
            Norm::RmsNorm => self.by_root_mean_square(x) * weight,
        }
    }

    fn by_root_mean_square(&self, x: &Tensor) -> Tensor {
        let mean_square = (x * x).mean_dim(-1, true, Kind::Float);
        x / (mean_square + self.model.features.epsilon.get()).sqrt()
    }

    fn mlp(&self, normed: &Tensor, unit: u32) -> Tensor {
        let up = self.linear(normed, unit, "mlp.c_fc");
        let inner = match self.model.features.mlp {
            Mlp::Gelu => up.gelu("tanh"),
            Mlp::GeluErf => exact_gelu(&up),
            Mlp::Relu2 => up.clamp_min(0.0).pow_tensor_scalar(2),
            Mlp::SwiGlu => {
                let gate = self.linear(normed, unit, "mlp.c_gate");
                &gate * gate.sigmoid() * up
            }
        };
        self.linear(&inner, unit, "mlp.c_proj")
    }

    fn attention(&self, normed: &Tensor, unit: u32) -> Tensor {
        let features = self.model.features;
        let heads = i64::from(self.model.heads);
        let groups = i64::from(features.kv_heads.unwrap_or(self.model.heads));
        let own = features
            .head_size
            .unwrap_or(self.model.hidden_size / self.model.heads);
        let width = i64::from(own);
        let (b, t) = (normed.size()[0], normed.size()[1]);
        let product = self.linear(normed, unit, "attn.c_attn");
        let part = |first: i64, count: i64| {
            let part = product.narrow(2, first * width, count * width);
            part.view([b, t, count, width]).transpose(1, 2)
        };
        let placed = |x: Tensor, norm: &str| {
            let x = match features.qk_norm {
                true => self.by_root_mean_square(&x) * self.of(unit, norm),
                false => x,
            };
            match features.positions {
                Positions::Learned => x,
                Positions::Rotary(rotary) => turned(&x, &rotary, &self.positions),
            }
        };
        let q = placed(part(0, heads), "attn.q_norm.weight");
        let k = placed(part(heads, groups), "attn.k_norm.weight");
        let each = |x: &Tensor| x.repeat_interleave_self_int(heads / groups, 1, None);
        let (k, v) = (each(&k), each(&part(heads + groups, groups)));
        let scores = q.matmul(&k.transpose(2, 3)) / (width as f64).sqrt();
        let place = Tensor::arange(t, (Kind::Int64, Device::Cpu));
        let back = place.unsqueeze(1) - place;
        let unseen = match features.bidirectional {
            true => back.zeros_like().to_kind(Kind::Bool),
            false => back
                .lt(0)
                .logical_or(&back.ge(features.sliding_window.map_or(t, i64::from))),
        };
        let other = self
            .documents
            .unsqueeze(2)
            .ne_tensor(&self.documents.unsqueeze(1));
        let unseen = unseen.logical_or(&other).unsqueeze(1);
        let weights = scores
            .masked_fill(&unseen, f64::NEG_INFINITY)
            .softmax(-1, Kind::Float);
        let attended = weights.matmul(&v).transpose(1, 2);
        self.linear(&attended.reshape([b, t, heads * width]), unit, "attn.c_proj")
    }
}

/// x times the probability that a normally distributed number is less than x (Hendrycks and Gimpel 2016).
fn exact_gelu(x: &Tensor) -> Tensor {
    x * ((x / 2f64.sqrt()).erf() + 1.0) / 2.0
}

/// x (b, h, t, e) with rotary positions, as in the code of Llama 3's authors: by wavelengths.
fn turned(x: &Tensor, rotary: &Rotary, positions_bt: &Tensor) -> Tensor {
    let width = x.size()[3];
    let half = width / 2;
    let angle = |pair: i64| {
        let plain = rotary.theta.get().powf(-((2 * pair) as f64) / width as f64);
        let Some(scaling) = rotary.scaling else {
            return plain;
        };
        let length = f64::from(scaling.original_length);
        let (low, high) = (scaling.low_turns.get(), scaling.high_turns.get());
        let wavelength = 2.0 * std::f64::consts::PI / plain;
        if wavelength < length / high {
            plain
        } else if wavelength > length / low {
            plain / scaling.factor.get()
        } else {
            let smooth = (length / wavelength - low) / (high - low);
            (1.0 - smooth) * plain / scaling.factor.get() + smooth * plain
        }
    };
    let angles: Vec<f64> = (0..half).map(angle).collect();
    let places = positions_bt.to_kind(Kind::Double).unsqueeze(1).unsqueeze(3);
    let angles = places * Tensor::from_slice(&angles);
    let angles = Tensor::cat(&[&angles, &angles], 3);
    let (cos, sin) = (
        angles.cos().to_kind(Kind::Float),
        angles.sin().to_kind(Kind::Float),
    );
    let other = Tensor::cat(&[&(-x.narrow(3, half, half)), &x.narrow(3, 0, half)], 3);
    x * cos + other * sin
}
