//! `spec.model`: a preset, explicit sizes, or a preset with some sizes and features replaced; or a model of the user's own.

use super::check::{Check, quoted};
use super::rotary;
use crate::choices::{MLPS, NORMS};
use crate::conditions::listed;
use crate::limits;
use crate::manifest::ModelSpec;
use std::ops::RangeInclusive;
use varuna_model::{Features, Model, Positions, Real, Transformer, presets};

fn at(field: &str) -> String {
    format!("spec.model.{field}")
}

pub(super) fn model(check: &mut Check, written: Option<ModelSpec>) -> Model {
    let written = check.required("spec.model", written, "a preset or explicit sizes");
    let ModelSpec { exported, .. } = &written;
    let Some(exported) = exported.clone() else {
        return transformer(check, written).into();
    };
    let others = ModelSpec {
        exported: None,
        ..written
    };
    if others != ModelSpec::default() {
        let allowed = "exported alone: it is a whole model";
        check.0.push("spec.model", "exported and other fields", allowed);
    }
    super::exported::exported(check, exported).into()
}

fn transformer(check: &mut Check, written: ModelSpec) -> Transformer {
    let base = written.preset.as_deref().and_then(presets::preset);
    if let (Some(name), None) = (&written.preset, &base) {
        let usual = presets::usual_names();
        check.0.push(&at("preset"), quoted(name), listed(&usual));
    }
    // If the preset is unknown, missing sizes are not reported as further errors.
    let complete = written.preset.is_some();
    let mut size =
        |field: &str, value: Option<u32>, of: fn(&Transformer) -> u32, limit: RangeInclusive<u32>| {
            let value = value.or(base.as_ref().map(of)).or(complete.then_some(1));
            let value = check.required(&at(field), value, &format!("1 to {}, or a preset", limit.end()));
            check.within(&at(field), value, limit)
        };
    let layers = size("layers", written.layers, |m| m.layers, limits::LAYERS);
    let width = written.hidden_size;
    let hidden_size = size("hiddenSize", width, |m| m.hidden_size, limits::WIDTH);
    let heads = size("heads", written.heads, |m| m.heads, limits::WIDTH);
    let length = written.sequence_length;
    let sequence_length = size("sequenceLength", length, |m| m.sequence_length, limits::WIDTH);
    let rows = written.vocabulary_size;
    let vocabulary_size = size("vocabularySize", rows, |m| m.vocabulary_size, limits::VOCABULARY);
    let dropout = written.dropout.or(base.as_ref().map(|m| m.dropout));
    let is_unknown = complete && base.is_none();
    let tied_head = written.tied_head.or(base.as_ref().map(|m| m.tied_head));
    let mut model = Transformer {
        layers,
        hidden_size,
        heads,
        sequence_length,
        vocabulary_size,
        tied_head: tied_head.unwrap_or(true),
        dropout: check.fraction(&at("dropout"), dropout.unwrap_or(0.0), "p"),
        features: base.map(|m| m.features).unwrap_or_default(),
    };
    // It is also not known what positions an unknown preset has.
    let preset = (!is_unknown).then_some(model.features.positions);
    let positions = rotary::positions(check, &written, preset);
    // Nor is the size of its heads, which would have to be even with rotary positions.
    if !is_unknown {
        model.features.positions = positions;
    }
    model.features = features(check, written, model.features);
    if !heads_fit(check, &model) {
        model.features.head_size = None;
    }
    model
}

/// The preset's features, with the job's changes.
fn features(check: &mut Check, written: ModelSpec, mut features: Features) -> Features {
    let mut replace = |field: &str, value: Option<u32>, of: &mut Option<u32>, limit| {
        if let Some(value) = value {
            *of = Some(check.within(&at(field), value, limit));
        }
    };
    replace("kvHeads", written.kv_heads, &mut features.kv_heads, limits::WIDTH);
    replace(
        "headSize",
        written.head_size,
        &mut features.head_size,
        limits::HEAD,
    );
    let inner = written.inner_size;
    replace("innerSize", inner, &mut features.inner_size, limits::INNER);
    let window = written.sliding_window;
    replace(
        "slidingWindow",
        window,
        &mut features.sliding_window,
        limits::WIDTH,
    );
    features.bidirectional = written.bidirectional.unwrap_or(features.bidirectional);
    if let Some(window) = features.sliding_window.filter(|_| features.bidirectional) {
        let allowed = "nothing, as spec.model.bidirectional is true: tokens see their whole sample";
        check.0.push(&at("slidingWindow"), window, allowed);
    }
    if let Some(name) = written.mlp {
        features.mlp = check.choice(&at("mlp"), Some(name), &MLPS);
    }
    if let Some(name) = written.norm {
        features.norm = check.choice(&at("norm"), Some(name), &NORMS);
    }
    features.qk_norm = written.qk_norm.unwrap_or(features.qk_norm);
    if let Some(epsilon) = written.norm_epsilon {
        let epsilon = check.above_zero(&at("normEpsilon"), Some(epsilon), limits::NORM_EPSILON_MAX);
        features.epsilon = Real::new(epsilon);
    }
    // One option for both, as in published models.
    if let Some(bias) = written.attention_bias {
        (features.bias.qkv, features.bias.out) = (bias, bias);
    }
    features.bias.mlp = written.mlp_bias.unwrap_or(features.bias.mlp);
    if let Some(cap) = written.logit_softcap {
        let cap = check.above_zero(&at("logitSoftcap"), Some(cap), limits::SOFTCAP_MAX);
        features.logit_softcap = Some(Real::new(cap));
    }
    features
}

/// Whether the sizes of the heads are consistent with each other and with the model.
fn heads_fit(check: &mut Check, model: &Transformer) -> bool {
    let Transformer {
        hidden_size, heads, ..
    } = *model;
    let (own, size, kv_heads) = (model.features.head_size, model.head_size(), model.kv_heads());
    let mut fit = true;
    let mut refuse = |field: &str, found: u32, allowed: String| {
        check.0.push(&at(field), found, allowed);
        fit = false;
    };
    if kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
        refuse("kvHeads", kv_heads, format!("a divisor of heads ({heads})"));
    }
    if own.is_none() && !hidden_size.is_multiple_of(heads) {
        let allowed = format!("a multiple of heads ({heads}), or give headSize");
        refuse("hiddenSize", hidden_size, allowed);
        return false;
    }
    let (all, most) = (u64::from(heads) * u64::from(size), *limits::WIDTH.end());
    if all > u64::from(most) {
        let allowed = format!("with all heads ({heads}) together at most {most}");
        refuse("headSize", size, allowed);
    }
    if matches!(model.features.positions, Positions::Rotary(_)) && size % 2 != 0 {
        let allowed = "an even number (hiddenSize by heads where it is left out): rotary positions turn pairs of a head's elements";
        refuse("headSize", size, allowed.to_owned());
    }
    fit
}
