//! The Qwen 3 family (Yang et al. 2025): its sizes and its format at Hugging Face.

use crate::config::{ConfigError, Fields};
use crate::features::{Biases, Features, Mlp, Norm, Positions};
use crate::llama3;
use crate::real::Real;
use crate::rotary::Rotary;
use crate::transformer::Transformer;
use serde_json::{Value, json};

/// Width of a head of all published ones, and where a `config.json` says none, as in the library.
const USUAL_HEAD: u32 = 128;

/// What all of them are made of.
const FEATURES: Features = Features {
    positions: Positions::Rotary(Rotary {
        theta: Real::new(1e6),
        scaling: None,
    }),
    norm: Norm::RmsNorm,
    epsilon: Real::new(1e-6),
    kv_heads: Some(8),
    head_size: Some(USUAL_HEAD),
    qk_norm: true,
    mlp: Mlp::SwiGlu,
    inner_size: Some(3072),
    bias: Biases::NONE,
    ..Features::GPT2
};

/// Qwen 3 0.6B. Most of its training was on samples of this length.
pub const SMALL: Transformer = sized(28, 1024, 16, 3072, true);

/// 7.7 M parameters with the byte tokenizer, for CPUs; the vocabulary as that of the tiny GPT-2. Its heads are wider together than the
/// model, as those of the smallest published one.
const TINY: Transformer = Transformer {
    sequence_length: 256,
    vocabulary_size: 320,
    features: Features {
        kv_heads: Some(2),
        head_size: Some(64),
        inner_size: Some(896),
        ..FEATURES
    },
    ..sized(6, 320, 8, 896, true)
};

/// The sizes that a job can name.
pub(crate) const PRESETS: [(&[&str], Transformer); 4] = [
    (&["qwen3-tiny"], TINY),
    (&["qwen3-0.6b"], SMALL),
    (&["qwen3-1.7b"], sized(28, 2048, 16, 6144, true)),
    (&["qwen3-8b"], sized(36, 4096, 32, 12_288, false)),
];

const fn sized(layers: u32, hidden_size: u32, heads: u32, inner_size: u32, tied_head: bool) -> Transformer {
    Transformer {
        layers,
        hidden_size,
        heads,
        sequence_length: 4096,
        vocabulary_size: 151_936,
        tied_head,
        dropout: 0.0,
        features: Features {
            inner_size: Some(inner_size),
            ..FEATURES
        },
    }
}

/// Whether models with these features are in the family's format.
pub(crate) fn has(features: &Features) -> bool {
    llama3::is_like(features) && features.qk_norm && !features.bias.mlp
}

/// `config.json` of a model; `end` is the token that ends a document.
pub(crate) fn config(model: &Transformer, end: u32) -> Value {
    let mut config = llama3::common_config(model, end);
    config["architectures"] = json!(["Qwen3ForCausalLM"]);
    config["model_type"] = json!("qwen3");
    config["use_sliding_window"] = json!(false);
    config
}

/// The model that a `config.json` describes.
///
/// # Errors
/// The model cannot be trained here.
pub(crate) fn from_config(config: &Value) -> Result<Transformer, ConfigError> {
    let only = "false: no window is known for some of the blocks";
    Fields(config).only("use_sliding_window", &json!(false), only)?;
    let mut model = llama3::common_from_config(config, Some(USUAL_HEAD))?;
    model.features.qk_norm = true;
    Ok(model)
}
