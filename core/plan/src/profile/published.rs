//! The compact profiles of published tables: one embedding, one block that repeats, one head (`bench/data/measured`).

use super::read::{At, MOST};
use super::{LinkRow, Profile, ProfileError, ProfileRow, SegmentProfile, Source, VERSION};
use crate::cost::{Runtime, SegmentKind};

/// Such tables do not say what stands on the wire; half precision is the rule there (calibration tries 4 bytes too).
const ELEMENT_BYTES: u64 = 2;
/// Latency of a message between two virtual machines where only the bandwidth is named, milliseconds.
const LATENCY_MS: f64 = 0.14;

fn check_units(root: &At) -> Result<(), ProfileError> {
    for (field, unit) in [
        ("forward", "ms"),
        ("backward", "ms"),
        ("optimizer", "ms"),
        ("activations", "bytes"),
    ] {
        let at = root.at("units").at(field);
        if at.text()? != unit {
            return at.refuse(unit);
        }
    }
    Ok(())
}

pub(super) fn read(root: &At, links: Option<Vec<LinkRow>>) -> Result<Profile, ProfileError> {
    let model = root.at("model");
    let layers = model.at("layers").count(1, 10_000)?;
    let hidden = model.at("hidden").count(1, 1 << 24)?;
    let sequence = model.at("sequence_length").count(1, 1 << 24)?;
    check_units(root)?;
    let micro = u32::try_from(root.at("micro_batch_size").count(1, 1 << 20)?).unwrap_or(1);
    let boundary = hidden * sequence * ELEMENT_BYTES;
    let segment =
        |kind: SegmentKind, name: String, input_bytes: u64| -> Result<SegmentProfile, ProfileError> {
            let at = root.at("segments").at(match kind {
                SegmentKind::Embedding => "embedding",
                SegmentKind::Head => "head",
                _ => "block",
            });
            Ok(SegmentProfile {
                name,
                kind,
                parameters: at.at("parameters").count(0, MOST)?,
                input_bytes,
                saved_bytes: at.at("activations").count(0, MOST)? / u64::from(micro),
                optimizer_ms: at.at("optimizer").ms()?,
                state_bytes: None,
                working_bytes: None,
                rows: vec![ProfileRow {
                    micro_batch_size: micro,
                    forward_ms: at.at("forward").ms()?,
                    backward_ms: at.at("backward").ms()?,
                    recompute_ms: None,
                    forward_spread_ms: None,
                    backward_spread_ms: None,
                }],
            })
        };
    let mut segments = vec![segment(SegmentKind::Embedding, "embedding".into(), sequence * 8)?];
    for layer in 1..=layers {
        segments.push(segment(SegmentKind::Block, format!("block {layer}"), boundary)?);
    }
    segments.push(segment(SegmentKind::Head, "head".into(), boundary)?);
    // Both ends count the table as theirs where the head is the embedding's transpose.
    let (embedding, head) = (segments[0].parameters, segments[segments.len() - 1].parameters);
    let tied_parameters = if head >= embedding { embedding } else { 0 };
    let last = segments.len() - 1;
    segments[0].parameters -= tied_parameters;
    segments[last].parameters -= tied_parameters;
    Ok(Profile {
        version: VERSION,
        model: model
            .optional("family", At::text)?
            .unwrap_or_else(|| "gpt".into()),
        device: root.at("device").text()?,
        source: Source::Measured,
        runtime: Runtime::Rendezvous,
        runtime_is_known: false,
        element_bytes: ELEMENT_BYTES,
        global_batch_size: root.optional("global_batch_size", |at| at.count(1, MOST))?,
        tied_parameters,
        segments,
        links: links.map_or_else(|| named_bandwidth(&root.at("network")), Ok)?,
        rings: Vec::new(),
        host: None,
        measured: None,
        calibration: None,
    })
}

/// `10 Gb/s ...` as links.
fn named_bandwidth(at: &At) -> Result<Vec<LinkRow>, ProfileError> {
    let text = at.text()?;
    let number = text
        .split_once("Gb/s")
        .and_then(|(number, _)| number.trim().parse::<f64>().ok());
    match number.filter(|gigabits| gigabits.is_finite() && *gigabits > 0.0) {
        Some(gigabits) => {
            let row = |bytes: u32| LinkRow {
                bytes: u64::from(bytes),
                ms: LATENCY_MS + f64::from(bytes) * 8.0 / (gigabits * 1e9) * 1e3,
            };
            Ok(vec![row(1), row(1 << 30)])
        }
        None => at.refuse("a bandwidth first, such as \"10 Gb/s\", or a table of links beside the profile"),
    }
}
