//! The Llama 3 family (Grattafiori et al. 2024): its sizes and its format at Hugging Face.

use crate::config::{ConfigError, Fields, Published};
use crate::features::{Biases, Features, Mlp, Norm, Positions};
use crate::layout::Unit;
use crate::limits;
use crate::parameter::Parameter;
use crate::real::Real;
use crate::rotary::{Rotary, Scaling};
use crate::transformer::Transformer;
use serde_json::{Map, Value, json};

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
pub const LARGE: Transformer = Transformer {
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
pub const SMALL: Transformer = Transformer {
    layers: 16,
    hidden_size: 2048,
    tied_head: true,
    features: LONGER,
    ..LARGE
};

/// Features of Llama 3.2, which reads longer samples after a second training.
const LONGER: Features = Features {
    positions: Positions::Rotary(Rotary {
        scaling: Some(Scaling::llama3(32.0)),
        ..ROTARY
    }),
    inner_size: Some(8192),
    ..FEATURES
};

/// Llama 3.2 3B.
const MEDIUM: Transformer = Transformer {
    layers: 28,
    hidden_size: 3072,
    heads: 24,
    ..SMALL
};

/// 9.7 M parameters with the byte tokenizer, for CPUs; the vocabulary as that of the tiny GPT-2.
const TINY: Transformer = Transformer {
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
pub(crate) const PRESETS: [(&[&str], Transformer); 4] = [
    (&["llama-tiny"], TINY),
    (&["llama3.2-1b"], SMALL),
    (&["llama3.2-3b"], MEDIUM),
    (&["llama3-8b"], LARGE),
];

/// Whether models with these features are in the family's format.
pub(crate) fn has(features: &Features) -> bool {
    is_like(features) && !features.qk_norm
}

/// What Llama and Qwen 3 have in common.
pub(crate) fn is_like(features: &Features) -> bool {
    let Features {
        epsilon,
        kv_heads,
        head_size,
        qk_norm,
        inner_size,
        bias,
        ..
    } = *features;
    let Positions::Rotary(rotary) = features.positions else {
        return false;
    };
    let like = Features {
        positions: Positions::Rotary(rotary),
        norm: Norm::RmsNorm,
        epsilon,
        kv_heads,
        head_size,
        qk_norm,
        mlp: Mlp::SwiGlu,
        inner_size,
        bias,
        ..Features::GPT2
    };
    // One switch for all four projections of attention.
    *features == like && bias.qkv == bias.out
}

/// `config.json` of a model; `end` is the token that ends a document.
pub(crate) fn config(model: &Transformer, end: u32) -> Value {
    let mut config = common_config(model, end);
    config["architectures"] = json!(["LlamaForCausalLM"]);
    config["model_type"] = json!("llama");
    config["mlp_bias"] = json!(model.features.bias.mlp);
    config
}

/// The fields that Llama and Qwen 3 have in common.
pub(crate) fn common_config(model: &Transformer, end: u32) -> Value {
    let features = &model.features;
    let (theta, scaling) = match features.positions {
        Positions::Rotary(rotary) => (rotary.theta.get(), rotary.scaling),
        Positions::Learned => (0.0, None),
    };
    let scaling = scaling.map(|scaling| {
        json!({
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_turns,
            "high_freq_factor": scaling.high_turns,
            "original_max_position_embeddings": scaling.original_length,
        })
    });
    json!({
        "hidden_act": "silu",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.inner_size(),
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads(),
        "head_dim": model.head_size(),
        "max_position_embeddings": model.sequence_length,
        "vocab_size": model.vocabulary_size,
        "bos_token_id": end,
        "eos_token_id": end,
        "tie_word_embeddings": model.tied_head,
        "rms_norm_eps": features.epsilon,
        "rope_theta": theta,
        "rope_scaling": scaling,
        "attention_bias": features.bias.qkv,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
    })
}

/// The model that a `config.json` describes.
///
/// # Errors
/// The model cannot be trained here.
pub(crate) fn from_config(config: &Value) -> Result<Transformer, ConfigError> {
    let mut model = common_from_config(config, None)?;
    model.features.bias.mlp = Fields(config).switch("mlp_bias", false)?;
    // Left out where it follows from the width, as the presets have it.
    if model.features.head_size == Some(model.hidden_size / model.heads)
        && model.hidden_size.is_multiple_of(model.heads)
    {
        model.features.head_size = None;
    }
    Ok(model)
}

/// What Llama and Qwen 3 have in common; heads have a width of their own. `usual_head`: their width if the configuration says none; none = it follows
/// from the model's.
pub(crate) fn common_from_config(
    config: &Value,
    usual_head: Option<u32>,
) -> Result<Transformer, ConfigError> {
    let fields = Fields(config);
    fields.only("hidden_act", &json!("silu"), "silu")?;
    let (hidden_size, heads) = (fields.width("hidden_size")?, fields.width("num_attention_heads")?);
    let kv_heads = match fields.is_absent("num_key_value_heads") {
        true => heads,
        false => fields.width("num_key_value_heads")?,
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.wrong("num_key_value_heads", "a divisor of num_attention_heads"));
    }
    let head_size = match usual_head.filter(|_| fields.is_absent("head_dim")) {
        Some(usual) => usual,
        None if !fields.is_absent("head_dim") => {
            fields.size("head_dim", limits::HEAD, "an even number from 2 to 16384")?
        }
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => return Err(fields.wrong("hidden_size", "a multiple of num_attention_heads, or head_dim")),
    };
    let all = u64::from(heads) * u64::from(head_size);
    if !head_size.is_multiple_of(2) || all > u64::from(*limits::WIDTH.end()) {
        return Err(fields.wrong(
            "head_dim",
            "an even number; of all heads together at most 1048576",
        ));
    }
    let attention_bias = fields.switch("attention_bias", false)?;
    Ok(Transformer {
        layers: fields.layers("num_hidden_layers")?,
        hidden_size,
        heads,
        sequence_length: fields.width("max_position_embeddings")?,
        vocabulary_size: fields.vocabulary()?,
        // The default of the `transformers` library.
        tied_head: fields.switch("tie_word_embeddings", false)?,
        dropout: 0.0,
        features: Features {
            positions: Positions::Rotary(rotary(config)?),
            epsilon: fields.above_zero(
                "rms_norm_eps",
                limits::NORM_EPSILON_MAX,
                "a number above 0, at most 1",
            )?,
            kv_heads: Some(kv_heads),
            head_size: Some(head_size),
            inner_size: Some(fields.size(
                "intermediate_size",
                limits::INNER,
                "a number from 1 to 4194304",
            )?),
            bias: Biases {
                qkv: attention_bias,
                out: attention_bias,
                mlp: false,
            },
            ..FEATURES
        },
    })
}

/// The angles: `rope_theta` and `rope_scaling`, or, as newer releases of the library write it, all of it in `rope_parameters`.
fn rotary(config: &Value) -> Result<Rotary, ConfigError> {
    let newer = &config["rope_parameters"];
    let scaling = match newer.is_object() {
        true => newer,
        false => &config["rope_scaling"],
    };
    // Some kinds of models have a mapping for each kind of block there.
    let are_several = |of: &Map<String, Value>| of.values().any(Value::is_object);
    if newer.as_object().is_some_and(are_several) {
        let allowed = "one mapping for all blocks, with rope_theta and rope_type";
        return Err(Fields(config).wrong("rope_parameters", allowed));
    }
    // Like the library, which takes the older place where the newer one lacks it.
    let mut places = [newer, config].into_iter().map(Fields);
    let theta = match places.find(|place| !place.is_absent("rope_theta")) {
        // The default of the library.
        None => Rotary::ORIGINAL.theta,
        Some(place) => place.above_zero(
            "rope_theta",
            limits::ROPE_THETA_MAX,
            "a number above 0, at most 1e12",
        )?,
    };
    let fields = Fields(scaling);
    let kind = if fields.is_absent("rope_type") {
        "type"
    } else {
        "rope_type"
    };
    // Without a kind there is no scaling, but a factor that nothing says how to use.
    let is_plain = fields.is_absent(kind) && fields.is_absent("factor");
    if is_plain || scaling[kind] == "default" {
        return Ok(Rotary { theta, scaling: None });
    }
    if scaling[kind] != "llama3" {
        return Err(fields.wrong(kind, "llama3 or default"));
    }
    let allowed = "a number above 0, at most 1e9";
    let number = |field| fields.above_zero(field, limits::ROPE_FACTOR_MAX, allowed);
    let scaling = Scaling {
        factor: number("factor")?,
        low_turns: number("low_freq_factor")?,
        high_turns: number("high_freq_factor")?,
        original_length: fields.width("original_max_position_embeddings")?,
    };
    if scaling.low_turns.get() >= scaling.high_turns.get() {
        return Err(fields.wrong("high_freq_factor", "more than low_freq_factor"));
    }
    Ok(Rotary {
        theta,
        scaling: Some(scaling),
    })
}

/// Whether a tensor is none of the model's and may be there: the frequencies of rotary positions, and a head that is tied.
pub(crate) fn leaves_out(tensor: &str) -> bool {
    tensor == "lm_head.weight" || tensor.ends_with("rotary_emb.inv_freq")
}

/// The tensors that a unit's parameter is published as, in a Llama or a Qwen 3.
pub(crate) fn tensors(model: &Transformer, unit: Unit, parameter: &Parameter) -> Vec<Published> {
    let rows = parameter.shape.first().copied().unwrap_or(0);
    let name = &*parameter.name;
    let inside = |name: &str| format!("model.layers.{}.{name}", model.block(unit.0) - 1);
    let one = |name: String| {
        vec![Published {
            name,
            rows,
            transposed: false,
        }]
    };
    let (layer, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let of = |layer: &str| one(inside(&format!("{layer}.{kind}")));
    match layer {
        "wte" => one("model.embed_tokens.weight".into()),
        "ln_f" => one("model.norm.weight".into()),
        "ln_1" => of("input_layernorm"),
        "ln_2" => of("post_attention_layernorm"),
        "attn.q_norm" => of("self_attn.q_norm"),
        "attn.k_norm" => of("self_attn.k_norm"),
        "attn.c_proj" => of("self_attn.o_proj"),
        "mlp.c_gate" => of("mlp.gate_proj"),
        "mlp.c_fc" => of("mlp.up_proj"),
        "mlp.c_proj" => of("mlp.down_proj"),
        "attn.c_attn" => {
            let head = model.head_size() as usize;
            let [queries, keys] = [model.heads, model.kv_heads()].map(|heads| heads as usize * head);
            let part = |name: &str, rows| Published {
                name: inside(&format!("self_attn.{name}_proj.{kind}")),
                rows,
                transposed: false,
            };
            vec![part("q", queries), part("k", keys), part("v", keys)]
        }
        // The head's.
        _ => one(name.to_owned()),
    }
}
