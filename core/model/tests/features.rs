//! Descriptions of models with other features than GPT-2's.

use std::borrow::Cow;
use varuna_model::presets::preset;
use varuna_model::{
    Biases, ConfigError, Family, Features, Initial, Mlp, Norm, Parameter, Transformer, Unit, gpt2,
};

/// `RMSNorm`, `SwiGLU` and no biases.
const OTHER: Transformer = Transformer {
    layers: 3,
    hidden_size: 24,
    heads: 4,
    sequence_length: 16,
    vocabulary_size: 50,
    features: Features {
        norm: Norm::RmsNorm,
        mlp: Mlp::SwiGlu,
        bias: Biases::NONE,
        ..Features::GPT2
    },
    ..gpt2::SMALL
};

fn shapes(model: &Transformer, unit: u32) -> Vec<(&'static str, Vec<usize>)> {
    let all = model.parameters(Unit(unit)).into_iter();
    let shape = |p: Parameter| match p.name {
        Cow::Borrowed(name) => (name, p.shape),
        Cow::Owned(name) => panic!("{name} is of no feature"),
    };
    all.map(shape).collect()
}

#[test]
fn its_segments_have_other_tensors_and_costs() {
    assert_eq!(
        shapes(&OTHER, 1),
        [
            ("attn.c_attn.weight", vec![72, 24]),
            ("attn.c_proj.weight", vec![24, 24]),
            ("ln_1.weight", vec![24]),
        ]
    );
    assert_eq!(
        shapes(&OTHER, 2),
        [
            ("mlp.c_gate.weight", vec![64, 24]),
            ("mlp.c_fc.weight", vec![64, 24]),
            ("mlp.c_proj.weight", vec![24, 64]),
            ("ln_2.weight", vec![24]),
        ]
    );
    let mlp = OTHER.spec().segments[2];
    assert_eq!(mlp.parameters, 3 * 64 * 24 + 24);
    assert!((mlp.forward_flops - f64::from(16 * 2 * 3 * 64 * 24)).abs() < 0.5);
    assert_eq!(mlp.saved_elements, 2 * 16 * 24 + 4 * 16 * 64);
}

#[test]
fn qwen_has_head_width_groups_and_head_norms() {
    let qwen = preset("qwen3-tiny").unwrap();
    assert_eq!((qwen.heads, qwen.kv_heads(), qwen.head_size()), (8, 2, 64));
    assert_eq!(
        shapes(&qwen, 0),
        [],
        "no positions, and the table is the tied unit's"
    );
    assert_eq!(
        shapes(&qwen, 1),
        [
            ("attn.c_attn.weight", vec![(8 + 2 * 2) * 64, 320]),
            ("attn.c_proj.weight", vec![320, 512]),
            ("ln_1.weight", vec![320]),
            ("attn.q_norm.weight", vec![64]),
            ("attn.k_norm.weight", vec![64]),
        ]
    );
    assert_eq!(
        shapes(&qwen, 2)[..2],
        [
            ("mlp.c_gate.weight", vec![896, 320]),
            ("mlp.c_fc.weight", vec![896, 320]),
        ]
    );
    let attention = qwen.spec().segments[1];
    let (tokens, queries) = (256, 512);
    let products = 2 * tokens * (768 * 320 + 320 * queries);
    let scores = 4 * tokens * tokens * queries;
    assert!((attention.forward_flops - f64::from(products + scores)).abs() < 0.5);
    // The norm's output, the three products (which the norms of queries and keys need), the queries, keys and values of each head, the
    // output of attention, and the sum.
    assert_eq!(attention.saved_elements, 256 * (320 + 768 + 3 * 512 + 512 + 320));
}

#[test]
fn a_llama_keeps_no_product_that_nothing_looks_into() {
    let llama = preset("llama-tiny").unwrap();
    assert_eq!(
        shapes(&llama, 0),
        [("wte.weight", vec![320, 384])],
        "its head is not tied"
    );
    let attention = llama.spec().segments[1];
    assert_eq!(attention.saved_elements, 256 * (384 + 3 * 384 + 384 + 384));
}

#[test]
fn all_heads_look_at_one_key_without_copies_of_it() {
    let mut llama = preset("llama-tiny").unwrap();
    llama.features.kv_heads = Some(1);
    let attention = llama.spec().segments[1];
    // The norm's output, the product (whose values attention needs), the rotated queries and keys, the output of attention, and the sum.
    assert_eq!(
        attention.saved_elements,
        256 * (384 + (384 + 2 * 64) + 384 + 64 + 384 + 384)
    );
}

#[test]
fn biases_stand_where_the_description_says() {
    for (bias, expected) in [
        (
            Biases {
                qkv: true,
                ..Biases::NONE
            },
            &["attn.c_attn.bias"][..],
        ),
        (
            Biases {
                out: true,
                ..Biases::NONE
            },
            &["attn.c_proj.bias"],
        ),
        (
            Biases {
                mlp: true,
                ..Biases::NONE
            },
            &["mlp.c_gate.bias", "mlp.c_fc.bias", "mlp.c_proj.bias"],
        ),
    ] {
        let model = Transformer {
            features: Features {
                bias,
                ..OTHER.features
            },
            ..OTHER
        };
        let block = [1, 2].into_iter().flat_map(|unit| shapes(&model, unit));
        let names: Vec<&str> = block
            .map(|(name, _)| name)
            .filter(|n| n.ends_with(".bias"))
            .collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn logits_under_a_soft_cap_take_more_memory() {
    let capped = Transformer {
        features: Features {
            logit_softcap: Some(varuna_model::Real::new(30.0)),
            ..OTHER.features
        },
        ..OTHER
    };
    let working = |model: &Transformer| model.spec().segments[7].working_elements;
    assert_eq!(working(&capped) - working(&OTHER), 16 * 50);
}

#[test]
fn each_of_its_matrices_draws_its_own_initial_values() {
    for model in [OTHER, preset("qwen3-tiny").unwrap()] {
        let units = model.layout().all_units();
        let all = units.flat_map(|u| model.parameters(u));
        let drawn = all.filter(|p| matches!(p.initial, Initial::Normal(_)));
        let mut streams: Vec<[u64; 2]> = drawn.map(|p| p.stream).collect();
        let count = streams.len();
        streams.sort_unstable();
        streams.dedup();
        assert_eq!(streams.len(), count);
    }
}

#[test]
fn its_features_are_written_and_it_has_no_published_format() {
    let text = serde_json::to_string(&OTHER).unwrap();
    assert!(
        text.ends_with(
            r#""features":{"norm":"rmsNorm","mlp":"swiGlu","bias":{"qkv":false,"out":false,"mlp":false}}}"#
        ),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Transformer>(&text).unwrap(), OTHER);
    assert_eq!(Family::of(&OTHER), Err(ConfigError::Features));
}
