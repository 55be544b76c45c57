//! The GPT-2 family (Radford et al. 2019): its sizes and its format at Hugging Face.

use crate::config::{ConfigError, Fields, Published};
use crate::features::{Features, Mlp};
use crate::head;
use crate::layout::Unit;
use crate::limits;
use crate::parameter::Parameter;
use crate::spec::SegmentKind;
use crate::transformer::Transformer;
use serde_json::{Value, json};

/// The smallest published GPT-2: 124 M parameters. Its BPE has 50,257 tokens.
pub const SMALL: Transformer = Transformer {
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
const TINY: Transformer = Transformer {
    sequence_length: 256,
    vocabulary_size: 320,
    ..SMALL
};

/// The published sizes, each with its names, the usual one first; the last two are Megatron's (Shoeybi et al. 2019).
pub(crate) const PRESETS: [(&[&str], Transformer); 7] = [
    (&["gpt2-tiny"], sized(6, 384, 6, TINY)),
    (&["gpt2-small"], SMALL),
    (&["gpt2-medium"], sized(24, 1024, 16, SMALL)),
    (&["gpt2-large"], sized(36, 1280, 20, SMALL)),
    (&["gpt2-1.5b", "gpt2-xl"], sized(48, 1600, 25, SMALL)),
    (&["gpt2-2.5b"], sized(54, 1920, 20, SMALL)),
    (&["gpt2-8.3b"], sized(72, 3072, 24, SMALL)),
];

const fn sized(layers: u32, hidden_size: u32, heads: u32, rest: Transformer) -> Transformer {
    Transformer {
        layers,
        hidden_size,
        heads,
        ..rest
    }
}

/// Whether models with these features are in the family's format.
pub(crate) fn has(features: &Features) -> bool {
    let like = Features {
        epsilon: features.epsilon,
        mlp: features.mlp,
        inner_size: features.inner_size,
        ..Features::GPT2
    };
    *features == like && features.mlp.activation().is_some()
}

/// What a unit's parameter is called in a `GPT2LMHeadModel`. It keeps the weights of the linear layers of its blocks as (inputs,
/// outputs).
pub(crate) fn tensor(model: &Transformer, unit: Unit, parameter: &Parameter) -> Published {
    let name = &*parameter.name;
    let published = match model.kind(unit.0) {
        _ if name == head::TABLE => name.to_owned(),
        SegmentKind::Attention | SegmentKind::Mlp | SegmentKind::Block => {
            format!("transformer.h.{}.{name}", model.block(unit.0) - 1)
        }
        SegmentKind::Embedding | SegmentKind::Head => format!("transformer.{name}"),
    };
    Published {
        name: published,
        rows: parameter.shape.first().copied().unwrap_or(0),
        transposed: name.starts_with("attn.c_") || name.starts_with("mlp.c_"),
    }
}

/// Whether a tensor is none of the model's and may be there: the masks of attention, and a head that is tied.
pub(crate) fn leaves_out(tensor: &str) -> bool {
    let name = tensor.strip_prefix("transformer.").unwrap_or(tensor);
    let in_block = || {
        let (layer, rest) = name.strip_prefix("h.")?.split_once('.')?;
        layer.parse::<u32>().ok().map(|_| rest)
    };
    name == head::TABLE || matches!(in_block(), Some("attn.bias" | "attn.masked_bias"))
}

/// `config.json` of a model; `end` is the token that ends a document.
pub(crate) fn config(model: &Transformer, end: u32) -> Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": model.features.mlp.activation(),
        "n_layer": model.layers,
        "n_embd": model.hidden_size,
        "n_head": model.heads,
        "n_inner": model.features_beside_sizes().inner_size,
        "n_positions": model.sequence_length,
        "n_ctx": model.sequence_length,
        "vocab_size": model.vocabulary_size,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": model.tied_head,
        "layer_norm_epsilon": model.features.epsilon,
        "initializer_range": 0.02,
        "embd_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
        "attn_pdrop": 0.0,
        "scale_attn_weights": true,
        "torch_dtype": "float32",
    })
}

/// The model that a `config.json` describes.
///
/// # Errors
/// The model cannot be trained here.
pub(crate) fn from_config(config: &Value) -> Result<Transformer, ConfigError> {
    let fields = Fields(config);
    let (hidden_size, heads) = (fields.width("n_embd")?, fields.width("n_head")?);
    if !hidden_size.is_multiple_of(heads) {
        return Err(fields.wrong("n_embd", "a multiple of n_head"));
    }
    let inner = match fields.is_absent("n_inner") {
        true => None,
        false => Some(fields.size("n_inner", limits::INNER, "a number from 1 to 4194304, or null")?),
    };
    let epsilon = match fields.is_absent("layer_norm_epsilon") {
        true => Features::GPT2.epsilon,
        false => fields.above_zero(
            "layer_norm_epsilon",
            limits::NORM_EPSILON_MAX,
            "a number above 0, at most 1",
        )?,
    };
    let scaled = "true: logits of attention are divided by the root of a head's width";
    fields.only("scale_attn_weights", &json!(true), scaled)?;
    let alike = "false: attention is the same in every block";
    fields.only("scale_attn_by_inverse_layer_idx", &json!(false), alike)?;
    Ok(Transformer {
        layers: fields.layers("n_layer")?,
        hidden_size,
        heads,
        sequence_length: fields.width("n_positions")?,
        vocabulary_size: fields.vocabulary()?,
        // The default of the `transformers` library.
        tied_head: fields.switch("tie_word_embeddings", true)?,
        dropout: 0.0,
        features: Features {
            epsilon,
            mlp: fields.mlp("activation_function", Mlp::Gelu)?,
            // Left out where it is the usual one, as the presets have it.
            inner_size: inner.filter(|inner| u64::from(*inner) != 4 * u64::from(hidden_size)),
            ..Features::GPT2
        },
    })
}
