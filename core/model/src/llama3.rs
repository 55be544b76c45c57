//! The Llama 3 family (Grattafiori et al. 2024): its sizes.

use crate::embedding::Positions;
use crate::features::{Biases, Features};
use crate::mlp::Mlp;
use crate::model::Model;
use crate::norm::Norm;
use crate::real::Real;
use crate::rotary::{Rotary, Scaling};

/// What all of them are made of.
const FEATURES: Features = Features {
    positions: Positions::Rotary(ROTARY),
    norm: Norm::RmsNorm,
    kv_heads: Some(8),
    mlp: Mlp::SwiGlu,
    inner_size: Some(14_336),
    bias: Biases::NONE,
    ..Features::GPT2
};

const ROTARY: Rotary = Rotary {
    theta: Real::new(500_000.0),
    scaling: None,
};

/// Llama 3 8B. It was trained on samples of this length.
pub const LARGE: Model = Model {
    layers: 32,
    hidden_size: 4096,
    heads: 32,
    sequence_length: 8192,
    vocabulary_size: 128_256,
    tied_head: false,
    dropout: 0.0,
    features: FEATURES,
};

/// Llama 3.2 1B.
pub const SMALL: Model = Model {
    layers: 16,
    hidden_size: 2048,
    tied_head: true,
    features: LONGER,
    ..LARGE
};

/// Those of Llama 3.2, which read longer samples after a second training.
const LONGER: Features = Features {
    positions: Positions::Rotary(Rotary {
        scaling: Some(Scaling {
            factor: Real::new(32.0),
            low_turns: Real::new(1.0),
            high_turns: Real::new(4.0),
            original_length: 8192,
        }),
        ..ROTARY
    }),
    inner_size: Some(8192),
    ..FEATURES
};

/// Llama 3.2 3B.
const MEDIUM: Model = Model {
    layers: 28,
    hidden_size: 3072,
    heads: 24,
    ..SMALL
};

/// 9.7 M parameters with the byte tokenizer, for CPUs; the vocabulary as that of the tiny GPT-2.
const TINY: Model = Model {
    layers: 6,
    hidden_size: 384,
    heads: 6,
    sequence_length: 256,
    vocabulary_size: 320,
    features: Features {
        kv_heads: Some(2),
        inner_size: Some(1024),
        ..FEATURES
    },
    ..LARGE
};

/// The sizes that a job can name.
pub(crate) const PRESETS: [(&[&str], Model); 4] = [
    (&["llama-tiny"], TINY),
    (&["llama3.2-1b"], SMALL),
    (&["llama3.2-3b"], MEDIUM),
    (&["llama3-8b"], LARGE),
];
