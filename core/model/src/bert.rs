//! The BERT family (Devlin et al. 2019): its sizes and its format at Hugging Face, as a masked language model.

use crate::config::{ConfigError, Fields, Published};
use crate::features::{Features, Mlp};
use crate::layout::Unit;
use crate::limits;
use crate::parameter::Parameter;
use crate::real::Real;
use crate::transformer::Transformer;
use serde_json::{Value, json};

/// What all of them are made of.
const FEATURES: Features = Features {
    epsilon: Real::new(1e-12),
    bidirectional: true,
    token_types: Some(2),
    embedding_norm: true,
    post_norm: true,
    masked_head: true,
    mlp: Mlp::GeluErf,
    ..Features::GPT2
};

/// BERT base.
pub const BASE: Transformer = Transformer {
    layers: 12,
    hidden_size: 768,
    heads: 12,
    sequence_length: 512,
    vocabulary_size: 30_522,
    tied_head: true,
    // The published ones were trained with 0.1; a job that wants it says so.
    dropout: 0.0,
    features: FEATURES,
};

/// BERT large.
const LARGE: Transformer = Transformer {
    layers: 24,
    hidden_size: 1024,
    heads: 16,
    ..BASE
};

/// 11.0 M parameters with the byte tokenizer, for CPUs; the vocabulary as that of the tiny GPT-2.
const TINY: Transformer = Transformer {
    layers: 6,
    hidden_size: 384,
    heads: 6,
    sequence_length: 256,
    vocabulary_size: 320,
    ..BASE
};

/// The sizes that a job can name.
pub(crate) const PRESETS: [(&[&str], Transformer); 3] = [
    (&["bert-tiny"], TINY),
    (&["bert-base"], BASE),
    (&["bert-large"], LARGE),
];

/// Whether models with these features are in the family's format.
pub(crate) fn has(features: &Features) -> bool {
    let like = Features {
        epsilon: features.epsilon,
        token_types: features.token_types,
        inner_size: features.inner_size,
        mlp: features.mlp,
        ..FEATURES
    };
    *features == like && features.token_types.is_some() && features.mlp.activation().is_some()
}

/// `config.json` of a model; `end` is the token that ends a document.
pub(crate) fn config(model: &Transformer, end: u32) -> Value {
    json!({
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "hidden_act": model.features.mlp.activation(),
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.heads,
        "intermediate_size": model.inner_size(),
        "max_position_embeddings": model.sequence_length,
        "type_vocab_size": model.features.token_types,
        "vocab_size": model.vocabulary_size,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": model.tied_head,
        "layer_norm_eps": model.features.epsilon,
        "initializer_range": 0.02,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": 0.0,
        "position_embedding_type": "absolute",
        "torch_dtype": "float32",
    })
}

/// The model that a `config.json` describes.
///
/// # Errors
/// The model cannot be trained here.
pub(crate) fn from_config(config: &Value) -> Result<Transformer, ConfigError> {
    let fields = Fields(config);
    fields.only("position_embedding_type", &json!("absolute"), "absolute")?;
    fields.only(
        "is_decoder",
        &json!(false),
        "false: a decoder sees one side alone",
    )?;
    let (hidden_size, heads) = (fields.width("hidden_size")?, fields.width("num_attention_heads")?);
    if !hidden_size.is_multiple_of(heads) {
        return Err(fields.wrong("hidden_size", "a multiple of num_attention_heads"));
    }
    let inner = fields.size("intermediate_size", limits::INNER, "a number from 1 to 4194304")?;
    Ok(Transformer {
        layers: fields.layers("num_hidden_layers")?,
        hidden_size,
        heads,
        sequence_length: fields.width("max_position_embeddings")?,
        vocabulary_size: fields.vocabulary()?,
        // The default of the `transformers` library.
        tied_head: fields.switch("tie_word_embeddings", true)?,
        dropout: 0.0,
        features: Features {
            epsilon: fields.above_zero(
                "layer_norm_eps",
                limits::NORM_EPSILON_MAX,
                "a number above 0, at most 1",
            )?,
            token_types: Some(fields.size("type_vocab_size", TYPES, "a number from 1 to 1024")?),
            // Left out where it is the usual one, as the presets have it.
            inner_size: (u64::from(inner) != 4 * u64::from(hidden_size)).then_some(inner),
            mlp: fields.mlp("hidden_act", Mlp::GeluErf)?,
            ..FEATURES
        },
    })
}

/// Kinds of tokens.
const TYPES: std::ops::RangeInclusive<u32> = 1..=1024;

/// Whether a tensor is none of the model's and may be there: numbers of positions and types, the parts of other tasks, and the names of a tied head
/// and its bias beside those that are read.
pub(crate) fn leaves_out(tensor: &str) -> bool {
    let buffers = ["bert.embeddings.position_ids", "bert.embeddings.token_type_ids"];
    let head = [
        "cls.predictions.bias",
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    ];
    buffers.contains(&tensor)
        || head.contains(&tensor)
        || tensor.starts_with("bert.pooler.")
        || tensor.starts_with("cls.seq_relationship.")
}

/// The tensors that a unit's parameter is published as, in a `BertForMaskedLM`.
pub(crate) fn tensors(model: &Transformer, unit: Unit, parameter: &Parameter) -> Vec<Published> {
    let rows = parameter.shape.first().copied().unwrap_or(0);
    let part = |name: String, rows| Published {
        name,
        rows,
        transposed: false,
    };
    let name = &*parameter.name;
    let (layer, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let one = |layer: &str| vec![part(format!("{layer}.{kind}"), rows)];
    let inside = |layer: &str| format!("bert.encoder.layer.{}.{layer}", model.block(unit.0) - 1);
    match layer {
        "wte" => one("bert.embeddings.word_embeddings"),
        "wpe" => one("bert.embeddings.position_embeddings"),
        "wtt" => one("bert.embeddings.token_type_embeddings"),
        "ln_e" => one("bert.embeddings.LayerNorm"),
        "attn.c_attn" => ["query", "key", "value"]
            .map(|name| part(inside(&format!("attention.self.{name}.{kind}")), rows / 3))
            .into(),
        "attn.c_proj" => one(&inside("attention.output.dense")),
        "ln_1" => one(&inside("attention.output.LayerNorm")),
        "mlp.c_fc" => one(&inside("intermediate.dense")),
        "mlp.c_proj" => one(&inside("output.dense")),
        "ln_2" => one(&inside("output.LayerNorm")),
        "head.dense" => one("cls.predictions.transform.dense"),
        "ln_f" => one("cls.predictions.transform.LayerNorm"),
        // Of a tied head the library reads this name, of an untied one that beside the table.
        "lm_head" if kind == "bias" && model.tied_head => one("cls.predictions"),
        _ => one("cls.predictions.decoder"),
    }
}
