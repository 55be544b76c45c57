//! A model of other features than GPT-2's: what its description says.

use varuna_model::{Features, Initial, Mlp, Model, Norm, Unit, gpt2};

/// `RMSNorm`, `SwiGLU` and no biases.
const OTHER: Model = Model {
    layers: 3,
    hidden_size: 24,
    heads: 4,
    sequence_length: 16,
    vocabulary_size: 50,
    features: Features {
        norm: Norm::RmsNorm,
        mlp: Mlp::SwiGlu,
        bias: false,
        ..Features::GPT2
    },
    ..gpt2::SMALL
};

fn shapes(unit: u32) -> Vec<(&'static str, Vec<usize>)> {
    let all = OTHER.parameters(Unit(unit)).into_iter();
    all.map(|p| (p.name, p.shape)).collect()
}

#[test]
fn its_segments_have_other_tensors_and_costs() {
    assert_eq!(
        shapes(1),
        [
            ("attn.c_attn.weight", vec![72, 24]),
            ("attn.c_proj.weight", vec![24, 24]),
            ("ln_1.weight", vec![24]),
        ]
    );
    assert_eq!(
        shapes(2),
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
fn each_of_its_matrices_draws_its_own_initial_values() {
    let units = OTHER.layout().all_units();
    let all = units.flat_map(|u| OTHER.parameters(u));
    let drawn = all.filter(|p| matches!(p.initial, Initial::Normal(_)));
    let mut streams: Vec<[u64; 2]> = drawn.map(|p| p.stream).collect();
    let count = streams.len();
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), count);
}

#[test]
fn its_features_are_written_and_it_has_no_published_format() {
    let text = serde_json::to_string(&OTHER).unwrap();
    assert!(
        text.ends_with(r#""features":{"positions":"learned","norm":"rmsNorm","mlp":"swiGlu","bias":false}}"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Model>(&text).unwrap(), OTHER);
    assert_eq!(gpt2::config(&OTHER), Err(gpt2::ConfigError::Features));
}
