//! The GPT-2 family (Radford et al. 2019): its sizes and its format at Hugging Face.

use crate::features::Features;
use crate::head;
use crate::layout::Unit;
use crate::limits;
use crate::model::Model;
use crate::spec::SegmentKind;
use serde_json::{Value, json};
use std::ops::RangeInclusive;

/// The smallest published GPT-2: 124 M parameters. Its BPE has 50,257 tokens.
pub const SMALL: Model = Model {
    layers: 12,
    hidden_size: 768,
    heads: 12,
    sequence_length: 1024,
    vocabulary_size: 50_257,
    tied_head: true,
    // One pass over much data needs none, and attention with dropout leaves the fused kernel (2.3x slower).
    dropout: 0.0,
    features: Features::GPT2,
};

/// 10.8 M parameters with the byte tokenizer, for CPUs. Its 257 tokens are rounded up to a multiple of 64, so that the head's
/// matrix product has no ragged edge; the extra rows are never looked up and their logits are learnt away.
const TINY: Model = Model {
    sequence_length: 256,
    vocabulary_size: 320,
    ..SMALL
};

/// The published sizes, each with its names, the usual one first; the last two are Megatron's (Shoeybi et al. 2019).
pub(crate) const PRESETS: [(&[&str], Model); 7] = [
    (&["gpt2-tiny"], sized(6, 384, 6, TINY)),
    (&["gpt2-small"], SMALL),
    (&["gpt2-medium"], sized(24, 1024, 16, SMALL)),
    (&["gpt2-large"], sized(36, 1280, 20, SMALL)),
    (&["gpt2-1.5b", "gpt2-xl"], sized(48, 1600, 25, SMALL)),
    (&["gpt2-2.5b"], sized(54, 1920, 20, SMALL)),
    (&["gpt2-8.3b"], sized(72, 3072, 24, SMALL)),
];

const fn sized(layers: u32, hidden_size: u32, heads: u32, rest: Model) -> Model {
    Model {
        layers,
        hidden_size,
        heads,
        ..rest
    }
}

/// The name of a unit's parameter in a `GPT2LMHeadModel`.
#[must_use]
pub fn published_name(model: &Model, unit: Unit, name: &str) -> String {
    if name == head::TABLE {
        return name.to_owned();
    }
    match model.kind(unit.0) {
        SegmentKind::Attention | SegmentKind::Mlp | SegmentKind::Block => {
            format!("transformer.h.{}.{name}", model.block(unit.0) - 1)
        }
        SegmentKind::Embedding | SegmentKind::Head => format!("transformer.{name}"),
    }
}

/// Whether the published parameter is the transpose of ours: GPT-2 keeps the weights of the linear layers of its blocks as
/// (inputs, outputs).
#[must_use]
pub fn is_published_transposed(name: &str) -> bool {
    name.starts_with("attn.c_") || name.starts_with("mlp.c_")
}

/// A model or a `config.json` that is not a GPT-2's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field of `config.json` has a value that cannot be trained here.
    #[error("config.json: {field}: {found} — {allowed}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The model has features that no published GPT-2 has.
    #[error("the model's features are not GPT-2's: it has no published format")]
    Features,
}

/// `config.json` of a model.
///
/// # Errors
/// Its features are not GPT-2's.
pub fn config(model: &Model) -> Result<Value, ConfigError> {
    if model.features != Features::GPT2 {
        return Err(ConfigError::Features);
    }
    let last = model.vocabulary_size.saturating_sub(1);
    Ok(json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": model.layers,
        "n_embd": model.hidden_size,
        "n_head": model.heads,
        "n_positions": model.sequence_length,
        "n_ctx": model.sequence_length,
        "vocab_size": model.vocabulary_size,
        "bos_token_id": last.min(50256),
        "eos_token_id": last.min(50256),
        "tie_word_embeddings": model.tied_head,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "embd_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
        "attn_pdrop": 0.0,
        "scale_attn_weights": true,
        "torch_dtype": "float32",
    }))
}

/// The model that a `config.json` describes.
///
/// # Errors
/// It is not a GPT-2 that can be trained here.
pub fn from_config(config: &Value) -> Result<Model, ConfigError> {
    let wrong = |field, found: &Value, allowed| ConfigError::Field {
        field,
        found: found.to_string(),
        allowed,
    };
    let family = &config["model_type"];
    if family != "gpt2" {
        return Err(wrong("model_type", family, "gpt2"));
    }
    let activation = &config["activation_function"];
    if !activation.is_null() && activation != "gelu_new" {
        return Err(wrong("activation_function", activation, "gelu_new"));
    }
    let size = |field: &'static str, limit: RangeInclusive<u32>, allowed| {
        let value = &config[field];
        let size = value.as_u64().and_then(|v| u32::try_from(v).ok());
        let size = size.filter(|v| limit.contains(v));
        size.ok_or_else(|| wrong(field, value, allowed))
    };
    let width = |field| size(field, limits::WIDTH, "a number from 1 to 1048576");
    let (hidden_size, heads) = (width("n_embd")?, width("n_head")?);
    if !hidden_size.is_multiple_of(heads) {
        return Err(wrong("n_embd", &config["n_embd"], "a multiple of n_head"));
    }
    Ok(Model {
        layers: size("n_layer", limits::LAYERS, "a number from 1 to 10000")?,
        hidden_size,
        heads,
        sequence_length: width("n_positions")?,
        vocabulary_size: size("vocab_size", limits::VOCABULARY, "a number from 1 to 16777216")?,
        // The default of the `transformers` library.
        tied_head: config["tie_word_embeddings"].as_bool().unwrap_or(true),
        dropout: 0.0,
        features: Features::GPT2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_describes_its_model_and_no_other_family() {
        for tied_head in [true, false] {
            let model = Model {
                layers: 2,
                tied_head,
                ..SMALL
            };
            assert_eq!(from_config(&config(&model).unwrap()), Ok(model));
        }
        let refused = |config: Value| from_config(&config).unwrap_err().to_string();
        assert_eq!(
            refused(json!({"model_type": "llama"})),
            "config.json: model_type: \"llama\" — gpt2"
        );
        assert_eq!(
            refused({
                let mut config = config(&SMALL).unwrap();
                config["n_layer"] = 0.into();
                config
            }),
            "config.json: n_layer: 0 — a number from 1 to 10000"
        );
        let changed = |field: &str, value: u64| {
            let mut config = config(&SMALL).unwrap();
            config[field] = value.into();
            refused(config)
        };
        for (field, value, expected) in [
            ("n_layer", 1 << 31, "2147483648 — a number from 1 to 10000"),
            ("n_embd", 1 << 32, "4294967296 — a number from 1 to 1048576"),
            ("n_head", 0, "0 — a number from 1 to 1048576"),
            ("n_head", 7, "n_embd: 768 — a multiple of n_head"),
            ("vocab_size", u64::MAX, "a number from 1 to 16777216"),
        ] {
            let error = changed(field, value);
            assert!(error.contains(expected), "{error}");
        }
        let mut other = SMALL;
        other.features.bias.mlp = false;
        assert_eq!(config(&other), Err(ConfigError::Features));
    }
}
