//! Models in the format of Hugging Face folders: what is written can be read again, and models that cannot be trained are refused.

use serde_json::{Value, json};
use varuna_model::presets::{names, preset};
use varuna_model::{ConfigError, Family, Mlp, Real, Transformer, Unit};

fn config(model: &Transformer) -> Value {
    let family = Family::of(model).expect("a family");
    family.config(model, 7)
}

#[test]
fn every_preset_has_a_family_whose_config_describes_it() {
    for name in names() {
        for tied_head in [true, false] {
            let model = Transformer {
                tied_head,
                ..preset(name).unwrap()
            };
            let config = config(&model);
            let (family, read) = Family::read(&config).unwrap();
            assert_eq!(read, model, "{name}");
            assert!(name.starts_with(family.name()), "{name}");
            assert_eq!(
                (&config["eos_token_id"], &config["bos_token_id"]),
                (&json!(7), &json!(7))
            );
        }
    }
}

#[test]
fn tensors_of_a_parameter_cover_its_rows_with_unique_names() {
    for name in names() {
        let model = preset(name).unwrap();
        let family = Family::of(&model).unwrap();
        let mut found = Vec::new();
        for unit in model.layout().all_units() {
            for parameter in model.parameters(unit) {
                let tensors = family.tensors(&model, unit, &parameter);
                let rows: usize = tensors.iter().map(|t| t.rows).sum();
                assert_eq!(rows, parameter.shape[0], "{name}: {}", parameter.name);
                found.extend(tensors.into_iter().map(|t| t.name));
            }
        }
        let count = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), count, "{name}");
    }
}

#[test]
fn a_qwens_tensors_have_their_published_names() {
    let model = preset("qwen3-0.6b").unwrap();
    let names = |unit: u32| -> Vec<(String, usize)> {
        let parameters = model.parameters(Unit(unit)).into_iter();
        let tensors = parameters.flat_map(|p| Family::Qwen3.tensors(&model, Unit(unit), &p));
        tensors.map(|t| (t.name, t.rows)).collect()
    };
    let layer = |name: &str, rows| (format!("model.layers.27.{name}.weight"), rows);
    assert_eq!(
        [names(2 * 28 - 1), names(2 * 28)].concat(),
        [
            layer("self_attn.q_proj", 2048),
            layer("self_attn.k_proj", 1024),
            layer("self_attn.v_proj", 1024),
            layer("self_attn.o_proj", 1024),
            layer("input_layernorm", 1024),
            layer("self_attn.q_norm", 128),
            layer("self_attn.k_norm", 128),
            layer("mlp.gate_proj", 3072),
            layer("mlp.up_proj", 3072),
            layer("mlp.down_proj", 1024),
            layer("post_attention_layernorm", 1024),
        ]
    );
    assert_eq!(
        [names(2 * 28 + 1), names(2 * 28 + 2)].concat(),
        [
            ("lm_head.weight".to_owned(), 0),
            ("model.norm.weight".to_owned(), 1024),
            ("model.embed_tokens.weight".to_owned(), 151_936),
        ]
    );
}

#[test]
fn a_berts_tensors_have_their_published_names() {
    let model = preset("bert-base").unwrap();
    let names = |unit: u32| -> Vec<(String, usize)> {
        let parameters = model.parameters(Unit(unit)).into_iter();
        let tensors = parameters.flat_map(|p| Family::Bert.tensors(&model, Unit(unit), &p));
        tensors.map(|t| (t.name, t.rows)).collect()
    };
    let named = |prefix: &str, all: &[(&str, usize)]| -> Vec<(String, usize)> {
        let one = |(name, rows): &(&str, usize)| (format!("{prefix}.{name}"), *rows);
        all.iter().map(one).collect()
    };
    assert_eq!(
        names(0),
        named(
            "bert.embeddings",
            &[
                ("position_embeddings.weight", 512),
                ("token_type_embeddings.weight", 2),
                ("LayerNorm.weight", 768),
                ("LayerNorm.bias", 768),
            ]
        )
    );
    assert_eq!(
        [names(2 * 12 - 1), names(2 * 12)].concat(),
        named(
            "bert.encoder.layer.11",
            &[
                ("attention.self.query.weight", 768),
                ("attention.self.key.weight", 768),
                ("attention.self.value.weight", 768),
                ("attention.output.dense.weight", 768),
                ("attention.output.LayerNorm.weight", 768),
                ("attention.output.LayerNorm.bias", 768),
                ("attention.self.query.bias", 768),
                ("attention.self.key.bias", 768),
                ("attention.self.value.bias", 768),
                ("attention.output.dense.bias", 768),
                ("intermediate.dense.weight", 3072),
                ("output.dense.weight", 768),
                ("output.LayerNorm.weight", 768),
                ("output.LayerNorm.bias", 768),
                ("intermediate.dense.bias", 3072),
                ("output.dense.bias", 768),
            ]
        )
    );
    assert_eq!(
        names(2 * 12 + 1),
        named(
            "cls.predictions",
            &[
                ("transform.dense.weight", 768),
                ("decoder.weight", 0),
                ("transform.dense.bias", 768),
                ("transform.LayerNorm.weight", 768),
                ("transform.LayerNorm.bias", 768),
                ("bias", 30_522),
            ]
        )
    );
    let mut config = config(&model);
    config["hidden_act"] = json!("gelu_new");
    config["intermediate_size"] = json!(100);
    let (_, read) = Family::read(&config).unwrap();
    assert_eq!(read.features.inner_size, Some(100));
    assert_eq!(Family::of(&read), Ok(Family::Bert));
    let mut causal = model;
    causal.features.bidirectional = false;
    assert_eq!(Family::of(&causal), Err(ConfigError::Features));
}

#[test]
fn rotary_settings_of_old_and_new_libraries_are_read() {
    let model = preset("llama3.2-1b").unwrap();
    let mut newer = config(&model);
    let mut rope = newer["rope_scaling"].take();
    rope["rope_theta"] = newer["rope_theta"].take();
    newer["rope_parameters"] = rope;
    assert_eq!(Family::read(&newer).unwrap().1, model);
    let plain = preset("llama3-8b").unwrap();
    let mut newer = config(&plain);
    let theta = newer["rope_theta"].take();
    newer["rope_parameters"] = json!({"rope_type": "default", "rope_theta": theta});
    assert_eq!(Family::read(&newer).unwrap().1, plain);
}

#[test]
fn the_base_of_angles_is_read_from_either_place() {
    let model = preset("llama3-8b").unwrap();
    let mut mixed = config(&model);
    mixed["rope_parameters"] = json!({"rope_type": "default"});
    assert_eq!(Family::read(&mixed).unwrap().1, model);
    // If both are there, the newer one counts.
    mixed["rope_theta"] = json!(7.0);
    mixed["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 500_000.0});
    assert_eq!(Family::read(&mixed).unwrap().1, model);
}

#[test]
fn a_gpt2_may_have_another_mlp_and_epsilon() {
    let mut written = config(&preset("gpt2-small").unwrap());
    written["n_inner"] = json!(100);
    written["activation_function"] = json!("gelu");
    written["layer_norm_epsilon"] = json!(1e-6);
    let (family, model) = Family::read(&written).unwrap();
    let features = model.features;
    assert_eq!(family, Family::Gpt2);
    assert_eq!(
        (features.inner_size, features.mlp, features.epsilon),
        (Some(100), Mlp::GeluErf, Real::new(1e-6))
    );
    assert_eq!(config(&model), written);
    // The usual width, which some published ones name.
    written["n_inner"] = json!(3072);
    assert_eq!(Family::read(&written).unwrap().1.features.inner_size, None);
}

#[test]
fn heads_of_a_qwen_have_their_usual_width() {
    // 1024 wide, with 16 heads: together they are wider than the model.
    let model = preset("qwen3-0.6b").unwrap();
    let mut config = config(&model);
    config["head_dim"] = Value::Null;
    assert_eq!(Family::read(&config).unwrap().1, model);
}

#[test]
fn numbers_that_follow_from_the_sizes_hide_no_family() {
    for (name, family) in [("gpt2-tiny", Family::Gpt2), ("bert-tiny", Family::Bert)] {
        let plain = preset(name).unwrap();
        let mut written = plain.clone();
        written.features.kv_heads = Some(plain.heads);
        written.features.head_size = Some(plain.head_size());
        written.features.inner_size = u32::try_from(plain.inner_size()).ok();
        written.features.sliding_window = Some(plain.sequence_length);
        assert_eq!(Family::of(&written), Ok(family), "{name}");
        assert_eq!(config(&written), config(&plain), "{name}");
        let parameters = |model: &Transformer| model.parameters(Unit(1));
        assert_eq!(parameters(&written), parameters(&plain), "{name}");
        let changes: [fn(&mut Transformer); 3] = [
            |model| model.features.kv_heads = Some(2),
            |model| model.features.head_size = Some(32),
            |model| model.features.sliding_window = Some(8),
        ];
        for change in changes {
            let mut other = plain.clone();
            change(&mut other);
            assert_eq!(Family::of(&other), Err(ConfigError::Features), "{other:?}");
        }
    }
}

/// (preset, field of its `config.json`, another value, the error).
const REFUSED: &[(&str, &str, &str, &str)] = &[
    (
        "gpt2-small",
        "model_type",
        "\"t5\"",
        "model_type: \"t5\" — gpt2, llama, qwen3 or bert",
    ),
    (
        "gpt2-small",
        "n_layer",
        "0",
        "n_layer: 0 — a number from 1 to 10000",
    ),
    (
        "gpt2-small",
        "n_layer",
        "2147483648",
        "2147483648 — a number from 1 to 10000",
    ),
    (
        "gpt2-small",
        "n_embd",
        "4294967296",
        "4294967296 — a number from 1 to 1048576",
    ),
    ("gpt2-small", "n_head", "7", "n_embd: 768 — a multiple of n_head"),
    (
        "gpt2-small",
        "vocab_size",
        "18446744073709551615",
        "a number from 1 to 16777216",
    ),
    (
        "gpt2-small",
        "n_inner",
        "0",
        "n_inner: 0 — a number from 1 to 4194304, or null",
    ),
    (
        "gpt2-small",
        "layer_norm_epsilon",
        "0",
        "layer_norm_epsilon: 0 — a number above 0, at most 1",
    ),
    (
        "gpt2-small",
        "activation_function",
        "\"relu\"",
        "activation_function: \"relu\" — gelu or gelu_new",
    ),
    (
        "gpt2-small",
        "scale_attn_weights",
        "false",
        "scale_attn_weights: false — true: logits of attention are divided by the root of a head's width",
    ),
    (
        "gpt2-small",
        "scale_attn_by_inverse_layer_idx",
        "true",
        "scale_attn_by_inverse_layer_idx: true — false: attention is the same in every block",
    ),
    (
        "llama3-8b",
        "hidden_act",
        "\"gelu\"",
        "hidden_act: \"gelu\" — silu",
    ),
    (
        "llama3-8b",
        "num_key_value_heads",
        "5",
        "num_key_value_heads: 5 — a divisor of num_attention_heads",
    ),
    (
        "llama3-8b",
        "head_dim",
        "33",
        "head_dim: 33 — an even number; of all heads together at most 1048576",
    ),
    (
        "llama3-8b",
        "rms_norm_eps",
        "0",
        "rms_norm_eps: 0 — a number above 0, at most 1",
    ),
    (
        "llama3-8b",
        "rope_theta",
        "-1.0",
        "rope_theta: -1.0 — a number above 0, at most 1e12",
    ),
    (
        "llama3-8b",
        "rope_scaling",
        "{\"type\":\"linear\",\"factor\":2}",
        "type: \"linear\" — llama3 or default",
    ),
    (
        "llama3-8b",
        "rope_scaling",
        "{\"factor\":2}",
        "type: null — llama3 or default",
    ),
    (
        "qwen3-8b",
        "rope_parameters",
        "{\"full_attention\":{\"rope_theta\":5.0}}",
        "rope_parameters: {\"full_attention\":{\"rope_theta\":5.0}} — one mapping for all blocks",
    ),
    (
        "llama3-8b",
        "attention_bias",
        "\"no\"",
        "attention_bias: \"no\" — true or false",
    ),
    (
        "bert-base",
        "hidden_act",
        "\"relu\"",
        "hidden_act: \"relu\" — gelu or gelu_new",
    ),
    (
        "bert-base",
        "position_embedding_type",
        "\"relative_key\"",
        "position_embedding_type: \"relative_key\" — absolute",
    ),
    (
        "bert-base",
        "is_decoder",
        "true",
        "is_decoder: true — false: a decoder sees one side alone",
    ),
    (
        "bert-base",
        "num_attention_heads",
        "7",
        "hidden_size: 768 — a multiple of num_attention_heads",
    ),
    (
        "bert-base",
        "type_vocab_size",
        "0",
        "type_vocab_size: 0 — a number from 1 to 1024",
    ),
    (
        "qwen3-8b",
        "use_sliding_window",
        "true",
        "use_sliding_window: true — false: no window is known for some of the blocks",
    ),
];

#[test]
fn what_cannot_be_trained_is_refused_with_its_field() {
    for (name, field, value, expected) in REFUSED {
        let mut config = config(&preset(name).unwrap());
        config[*field] = serde_json::from_str(value).unwrap();
        let error = Family::read(&config).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut other = preset("llama3-8b").unwrap();
    other.features.sliding_window = Some(4);
    assert_eq!(Family::of(&other), Err(ConfigError::Features));
}
