//! Fields of `spec.model` other than sizes.

use super::{FULL, MINIMAL, errors, with};
use crate::resolve::parse_job;
use serde_json::{Value, json};
use varuna_model::{
    Biases, ConfigError, Family, Features, Mlp, Norm, Positions, Real, Rotary, Scaling, Transformer, presets,
};

/// The minimal job with this model.
fn job(model: &str) -> String {
    with(MINIMAL, "preset: gpt2-tiny", model)
}

fn model(text: &str) -> Transformer {
    let job = parse_job(&job(text)).unwrap_or_else(|e| panic!("{text}: {e}"));
    job.model.transformer().unwrap().clone()
}

#[test]
fn every_field_about_a_models_features_that_is_written_is_taken() {
    let rotary = Rotary {
        theta: Real::new(20_000.0),
        scaling: Some(Scaling {
            factor: Real::new(8.0),
            low_turns: Real::new(1.5),
            high_turns: Real::new(5.0),
            original_length: 32,
        }),
    };
    let features = Features {
        positions: Positions::Rotary(rotary),
        norm: Norm::RmsNorm,
        epsilon: Real::new(1e-6),
        kv_heads: Some(4),
        head_size: Some(32),
        qk_norm: true,
        inner_size: Some(320),
        mlp: Mlp::Relu2,
        bidirectional: true,
        bias: Biases {
            mlp: true,
            ..Biases::NONE
        },
        logit_softcap: Some(Real::new(30.0)),
        ..Features::GPT2
    };
    let job = parse_job(FULL).unwrap();
    assert_eq!(job.model.transformer().unwrap().features, features);
}

/// The model of a `config.json`: a preset with some other fields.
fn published(preset: &str, fields: &Value) -> Transformer {
    let model = presets::preset(preset).unwrap();
    let mut config = Family::of(&model).unwrap().config(&model, 7);
    for (field, value) in fields.as_object().unwrap() {
        config[field] = value.clone();
    }
    Family::read(&config).unwrap().1
}

#[test]
fn a_job_can_say_what_published_models_have_that_are_no_presets() {
    let llama_3_1_8b = json!({
        "max_position_embeddings": 131_072,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    });
    let llama_7b = json!({
        "intermediate_size": 11_008, "max_position_embeddings": 2048, "num_key_value_heads": null, "vocab_size": 32_000,
        "rms_norm_eps": 1e-6, "rope_theta": null,
    });
    let tiny_llama = json!({
        "hidden_size": 2048, "num_hidden_layers": 22, "num_key_value_heads": 4, "head_dim": null, "intermediate_size": 5632,
        "max_position_embeddings": 2048, "vocab_size": 32_000, "rope_theta": 10_000,
    });
    let with_biases = json!({ "attention_bias": true, "mlp_bias": true });
    for (preset, fields, written) in [
        (
            "llama3-8b",
            llama_3_1_8b,
            "sequenceLength: 131072, ropeScaling: {factor: 8}",
        ),
        (
            "llama3-8b",
            llama_7b,
            "innerSize: 11008, sequenceLength: 2048, kvHeads: 32, vocabularySize: 32000, normEpsilon: 1.0e-6, ropeTheta: 1e4",
        ),
        (
            "llama3-8b",
            tiny_llama,
            "hiddenSize: 2048, layers: 22, kvHeads: 4, innerSize: 5632, sequenceLength: 2048, vocabularySize: 32000, ropeTheta: 10000",
        ),
        ("llama-tiny", with_biases, "attentionBias: true, mlpBias: true"),
        (
            "llama3.2-1b",
            json!({ "rope_scaling": null }),
            "ropeScaling: {kind: none}",
        ),
        (
            "qwen3-0.6b",
            json!({ "rope_theta": 5e6, "attention_bias": true, "rms_norm_eps": 1e-5 }),
            "ropeTheta: 5e6, attentionBias: true, normEpsilon: 1e-5",
        ),
        (
            "gpt2-tiny",
            json!({}),
            "normEpsilon: 1e-5, attentionBias: true, mlpBias: true",
        ),
    ] {
        let said = model(&format!("preset: {preset}, {written}"));
        assert_eq!(said, published(preset, &fields), "{preset}, {written}");
    }
    let epsilon = "preset: bert-tiny, normEpsilon: 1e-6";
    let text = with(
        &job(epsilon),
        "steps: 200",
        "steps: 200\n    masking: {maskToken: 1}",
    );
    let found = parse_job(&text).unwrap().model.transformer().unwrap().clone();
    assert_eq!(found, published("bert-tiny", &json!({ "layer_norm_eps": 1e-6 })));
}

#[test]
fn a_feature_makes_another_run_where_it_is_not_the_models_own() {
    let hash = |text: &str| {
        let job = parse_job(&job(text)).unwrap();
        crate::model_hash(&job.model, &job.training, "data")
    };
    let plain = hash("preset: llama-tiny");
    let own = "ropeTheta: 500000, ropeScaling: {kind: none}, normEpsilon: 0.00001, attentionBias: false, mlpBias: false, norm: rms, positions: rotary, qkNorm: false";
    assert_eq!(hash(&format!("preset: llama-tiny, {own}")), plain);
    let mut hashes = std::collections::BTreeSet::from([plain]);
    let others = [
        "ropeTheta: 10000",
        "ropeScaling: {factor: 8}",
        "ropeScaling: {factor: 8, lowFrequencyFactor: 2}",
        "ropeScaling: {factor: 8, highFrequencyFactor: 2}",
        "ropeScaling: {factor: 8, originalSequenceLength: 64}",
        "normEpsilon: 1e-6",
        "attentionBias: true",
        "mlpBias: true",
        "norm: layer",
        "positions: learned",
        "qkNorm: true",
    ];
    hashes.extend(others.map(|fields| hash(&format!("preset: llama-tiny, {fields}"))));
    assert_eq!(hashes.len(), 1 + others.len());
}

/// Sizes of a small model. The fields of a mix are added to them.
const SIZES: &str = "layers: 2, hiddenSize: 32, heads: 4, sequenceLength: 16, vocabularySize: 40";

#[test]
fn a_model_of_sizes_alone_has_gpt2s_features() {
    let with = |fields: &str| model(&format!("{SIZES}, {fields}")).features;
    assert_eq!(model(SIZES).features, Features::GPT2);
    assert_eq!(
        with("norm: layer, positions: learned, qkNorm: false"),
        Features::GPT2
    );
    // The angles where no preset has any: those of the paper.
    let plain = Rotary {
        theta: Real::new(10_000.0),
        scaling: None,
    };
    let rotary = |rotary| Features {
        positions: Positions::Rotary(rotary),
        ..Features::GPT2
    };
    assert_eq!(with("positions: rotary"), rotary(plain));
    let turned = Rotary {
        theta: Real::new(5e5),
        scaling: Some(Scaling::llama3(8.0)),
    };
    let fields = "positions: rotary, ropeTheta: 5e5, ropeScaling: {factor: 8}";
    assert_eq!(with(fields), rotary(turned));
}

type Change = fn(&mut Features);

#[test]
fn norm_and_positions_of_a_preset_can_be_replaced() {
    const CASES: [(&str, &str, Change); 9] = [
        ("gpt2-tiny", "norm: rms", |f| f.norm = Norm::RmsNorm),
        ("gpt2-tiny", "qkNorm: true", |f| f.qk_norm = true),
        ("gpt2-tiny", "positions: rotary", |f| {
            f.positions = Positions::Rotary(Rotary::ORIGINAL);
        }),
        ("llama-tiny", "norm: layer", |f| f.norm = Norm::LayerNorm),
        ("llama-tiny", "qkNorm: true", |f| f.qk_norm = true),
        ("qwen3-tiny", "qkNorm: false", |f| f.qk_norm = false),
        ("llama3.2-1b", "positions: learned", |f| {
            f.positions = Positions::Learned;
        }),
        // Written, but as the preset has it: its angles stay.
        ("llama3.2-1b", "positions: rotary, norm: rms", |_| {}),
        (
            "llama3.2-1b",
            "positions: rotary, ropeScaling: {kind: none}",
            |f| {
                f.positions = Positions::Rotary(Rotary {
                    theta: Real::new(5e5),
                    scaling: None,
                });
            },
        ),
    ];
    for (name, fields, change) in CASES {
        let mut expected = presets::preset(name).unwrap();
        change(&mut expected.features);
        assert_eq!(
            model(&format!("preset: {name}, {fields}")),
            expected,
            "{name}, {fields}"
        );
    }
}

#[test]
fn norms_and_positions_of_a_bert_can_be_replaced() {
    let text = job("preset: bert-tiny, positions: rotary, norm: rms, qkNorm: true");
    let text = with(&text, "steps: 200", "steps: 200\n    masking: {maskToken: 1}");
    let mut expected = presets::preset("bert-tiny").unwrap();
    expected.features.positions = Positions::Rotary(Rotary::ORIGINAL);
    expected.features.norm = Norm::RmsNorm;
    expected.features.qk_norm = true;
    assert_eq!(parse_job(&text).unwrap().model.transformer(), Some(&expected));
}

#[test]
fn a_mix_has_the_family_that_its_features_fit() {
    let family = |fields: &str| Family::of(&model(&format!("{SIZES}, {fields}")));
    let llama = "norm: rms, positions: rotary, mlp: swiglu, attentionBias: false, mlpBias: false";
    assert_eq!(family(llama), Ok(Family::Llama));
    assert_eq!(family(&format!("{llama}, qkNorm: true")), Ok(Family::Qwen3));
    assert_eq!(family("norm: layer, positions: learned"), Ok(Family::Gpt2));
    for mix in [
        "norm: rms",
        "positions: rotary",
        "qkNorm: true",
        "norm: rms, positions: rotary, qkNorm: true",
    ] {
        assert_eq!(family(mix), Err(ConfigError::Features), "{mix}");
    }
    // What a published folder says is the same model, with each number written out.
    let llama = model(&format!("{SIZES}, {llama}, tiedHead: false"));
    let mut written = llama.clone();
    written.features.kv_heads = Some(4);
    written.features.inner_size = Some(128);
    let config = Family::Llama.config(&llama, 7);
    assert_eq!(Family::read(&config), Ok((Family::Llama, written)));
}

#[test]
fn a_switch_of_biases_is_that_of_its_own_layers_alone() {
    let bias = |text: &str| model(text).features.bias;
    let (attention, mlp) = (
        bias("preset: gpt2-tiny, attentionBias: false"),
        bias("preset: gpt2-tiny, mlpBias: false"),
    );
    let without_mlp = Biases {
        mlp: false,
        ..Biases::ALL
    };
    let mlp_alone = Biases {
        mlp: true,
        ..Biases::NONE
    };
    assert_eq!((attention, mlp), (mlp_alone, without_mlp));
}

/// (model, the error).
const MISTAKES: &[(&str, &str)] = &[
    (
        "gpt2-tiny, ropeTheta: 1e4",
        "spec.model.ropeTheta: 10000 — nothing, or rotary as spec.model.positions: learned positions have no angles",
    ),
    (
        "bert-tiny, ropeScaling: {factor: 8}",
        "spec.model.ropeScaling: given — nothing, or rotary as spec.model.positions: learned positions have no angles",
    ),
    (
        "llama-tiny, positions: learned, ropeTheta: 1e4",
        "spec.model.ropeTheta: 10000 — nothing, or rotary as spec.model.positions: learned positions have no angles",
    ),
    (
        "qwen3-tiny, positions: learned, ropeScaling: {factor: 8}",
        "spec.model.ropeScaling: given — nothing, or rotary as spec.model.positions: learned positions have no angles",
    ),
    (
        "gpt2-tiny, positions: alibi, ropeTheta: 1e4",
        "spec.model.positions: \"alibi\" — learned or rotary",
    ),
    (
        "gpt2-tiny, positions: rotary, headSize: 33",
        "spec.model.headSize: 33 — an even number (hiddenSize by heads where it is left out): rotary positions turn pairs of a head's elements",
    ),
    (
        "gpt2-tiny, positions: rotary, hiddenSize: 30, heads: 6",
        "spec.model.headSize: 5 — an even number (hiddenSize by heads where it is left out): rotary positions turn pairs of a head's elements",
    ),
    (
        "gpt2-tiny, norm: batch",
        "spec.model.norm: \"batch\" — layer or rms",
    ),
    ("gpt2-tiny, qkNorm: 1", "spec.model.qkNorm: 1 — true or false"),
    (
        "llama-tiny, ropeTheta: 0",
        "spec.model.ropeTheta: 0 — a number above 0, at most 1000000000000",
    ),
    (
        "llama-tiny, ropeTheta: large",
        "spec.model.ropeTheta: \"large\" — a number",
    ),
    (
        "llama-tiny, ropeScaling: none",
        "spec.model.ropeScaling: \"none\" — a mapping",
    ),
    (
        "llama-tiny, ropeScaling: [8]",
        "spec.model.ropeScaling: a list — a single value or a mapping",
    ),
    (
        "llama-tiny, ropeScaling: {}",
        "spec.model.ropeScaling.factor: missing — a number above 0, at most 1000000000",
    ),
    (
        "llama-tiny, ropeScaling: {factor: -8}",
        "spec.model.ropeScaling.factor: -8 — a number above 0, at most 1000000000",
    ),
    (
        "llama-tiny, ropeScaling: {kind: yarn, factor: 8}",
        "spec.model.ropeScaling.kind: \"yarn\" — llama3 or none",
    ),
    (
        "llama-tiny, ropeScaling: {kind: none, factor: 8}",
        "spec.model.ropeScaling: kind none and others — kind none alone: angles stay as spec.model.ropeTheta has them",
    ),
    (
        "llama-tiny, ropeScaling: {factor: 8, lowFrequencyFactor: 4}",
        "spec.model.ropeScaling.highFrequencyFactor: 4 — more than lowFrequencyFactor (4)",
    ),
    (
        "llama-tiny, ropeScaling: {factor: 8, originalSequenceLength: 0}",
        "spec.model.ropeScaling.originalSequenceLength: 0 — 1 to 1048576",
    ),
    (
        "llama-tiny, ropeScaling: {factor: 8, original: 9}",
        "spec.model.ropeScaling.original: unknown field — one of `kind`, `factor`, `lowFrequencyFactor`, `highFrequencyFactor`, `originalSequenceLength`",
    ),
    (
        "gpt2-tiny, normEpsilon: 0",
        "spec.model.normEpsilon: 0 — a number above 0, at most 1",
    ),
    (
        "gpt2-tiny, normEpsilon: 1.5",
        "spec.model.normEpsilon: 1.5 — a number above 0, at most 1",
    ),
    (
        "gpt2-tiny, attentionBias: 1",
        "spec.model.attentionBias: 1 — true or false",
    ),
    (
        "gpt2-tiny, mlpBias: some",
        "spec.model.mlpBias: \"some\" — true or false",
    ),
];

#[test]
fn every_mistake_in_features_is_reported() {
    for (fields, want) in MISTAKES {
        let text = job(&format!("preset: {fields}"));
        let text = match fields.starts_with("bert-") {
            true => with(&text, "steps: 200", "steps: 200\n    masking: {maskToken: 1}"),
            false => text,
        };
        assert_eq!(errors(&text), [*want]);
    }
    // The kind of positions of an unknown preset is not known.
    for fields in [
        "ropeTheta: 1e4, ropeScaling: {factor: 8}",
        "positions: rotary, ropeTheta: 1e4",
        "positions: learned",
    ] {
        let unknown = errors(&job(&format!("preset: llama4, {fields}")));
        assert!(
            unknown.len() == 1 && unknown[0].starts_with("spec.model.preset: \"llama4\""),
            "{unknown:?}"
        );
    }
}
