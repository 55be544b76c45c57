//! `spec.model`: a preset, explicit sizes, or a preset with some sizes replaced.

use super::check::{Check, quoted};
use crate::conditions::listed;
use crate::limits;
use crate::manifest::ModelSpec;
use std::ops::RangeInclusive;
use varuna_model::{Model, gpt2};

pub(super) fn model(check: &mut Check, written: Option<ModelSpec>) -> Model {
    let at = |field: &str| format!("spec.model.{field}");
    let written = check.required("spec.model", written, "a preset or explicit sizes");
    let base = written.preset.as_deref().and_then(gpt2::preset);
    if let (Some(name), None) = (&written.preset, &base) {
        let usual = gpt2::PRESETS.map(|(names, _)| names[0]);
        check.0.push(&at("preset"), quoted(name), listed(&usual));
    }
    // With a preset of an unknown name the sizes left out are not errors of their own.
    let complete = written.preset.is_some();
    let mut size = |field: &str, value: Option<u32>, of: fn(&Model) -> u32, limit: RangeInclusive<u32>| {
        let value = value.or(base.as_ref().map(of)).or(complete.then_some(1));
        let value = check.required(&at(field), value, &format!("1 to {}, or a preset", limit.end()));
        check.within(&at(field), value, limit)
    };
    let layers = size("layers", written.layers, |m| m.layers, limits::LAYERS);
    let hidden_size = size(
        "hiddenSize",
        written.hidden_size,
        |m| m.hidden_size,
        limits::WIDTH,
    );
    let heads = size("heads", written.heads, |m| m.heads, limits::WIDTH);
    let length = written.sequence_length;
    let sequence_length = size("sequenceLength", length, |m| m.sequence_length, limits::WIDTH);
    let rows = written.vocabulary_size;
    let vocabulary_size = size("vocabularySize", rows, |m| m.vocabulary_size, limits::VOCABULARY);
    if hidden_size > 0 && heads > 0 && hidden_size % heads != 0 {
        let allowed = format!("a multiple of heads ({heads})");
        check.0.push(&at("hiddenSize"), hidden_size, allowed);
    }
    let dropout = written.dropout.or(base.as_ref().map(|m| m.dropout));
    Model {
        layers,
        hidden_size,
        heads,
        sequence_length,
        vocabulary_size,
        tied_head: written.tied_head.unwrap_or(true),
        dropout: check.fraction(&at("dropout"), dropout.unwrap_or(0.0), "p"),
        features: base.map(|m| m.features).unwrap_or_default(),
    }
}
