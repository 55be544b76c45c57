//! The compact profiles of published tables: one embedding, one block that repeats, one head (`bench/data/measured`).

use super::error::{Checker, ProfileError};
use super::read::MOST;
use super::{LinkRow, Profile, ProfileRow, SegmentProfile, Source, VERSION};
use crate::cost::{Runtime, SegmentKind};
use serde::Deserialize;

/// Such tables do not say how wide a number is on the wire; half precision is the rule there (calibration tries 4 bytes too).
const ELEMENT_BYTES: u64 = 2;
/// Latency of a message between two virtual machines where only the bandwidth is named, milliseconds.
const LATENCY_MS: f64 = 0.14;

/// The file. What is not read may stand in it.
#[derive(Deserialize)]
pub(super) struct Table {
    model: Model,
    device: String,
    micro_batch_size: u64,
    global_batch_size: Option<u64>,
    units: Units,
    segments: Segments,
    network: Option<String>,
}

#[derive(Deserialize)]
struct Model {
    family: Option<String>,
    layers: u64,
    hidden: u64,
    sequence_length: u64,
}

#[derive(Deserialize)]
struct Units {
    forward: String,
    backward: String,
    optimizer: String,
    activations: String,
}

#[derive(Deserialize)]
struct Segments {
    embedding: Segment,
    block: Segment,
    head: Segment,
}

/// Times in milliseconds and bytes of one micro-batch.
#[derive(Deserialize)]
struct Segment {
    forward: f64,
    backward: f64,
    optimizer: f64,
    activations: u64,
    parameters: u64,
}

impl Table {
    fn validate(&self, check: &Checker) -> Result<(), ProfileError> {
        check.count("model.layers", self.model.layers, 1, 10_000)?;
        check.count("model.hidden", self.model.hidden, 1, 1 << 24)?;
        check.count("model.sequence_length", self.model.sequence_length, 1, 1 << 24)?;
        let units = &self.units;
        for (field, unit, allowed) in [
            ("forward", &units.forward, "ms"),
            ("backward", &units.backward, "ms"),
            ("optimizer", &units.optimizer, "ms"),
            ("activations", &units.activations, "bytes"),
        ] {
            check.require(unit == allowed, &format!("units.{field}"), unit, allowed)?;
        }
        check.count("micro_batch_size", self.micro_batch_size, 1, 1 << 20)?;
        let segments = &self.segments;
        for (name, segment) in [
            ("embedding", &segments.embedding),
            ("block", &segments.block),
            ("head", &segments.head),
        ] {
            let field = |of: &str| format!("segments.{name}.{of}");
            check.count(&field("parameters"), segment.parameters, 0, MOST)?;
            check.count(&field("activations"), segment.activations, 0, MOST)?;
            check.time(&field("optimizer"), segment.optimizer)?;
            check.time(&field("forward"), segment.forward)?;
            check.time(&field("backward"), segment.backward)?;
        }
        match self.global_batch_size {
            Some(batch) => check.count("global_batch_size", batch, 1, MOST),
            None => Ok(()),
        }
    }

    /// The profile that the table amounts to; `links` take the place of the bandwidth that it names.
    ///
    /// # Errors
    /// The first value that is not allowed.
    pub(super) fn profile(
        self,
        links: Option<Vec<LinkRow>>,
        check: &Checker,
    ) -> Result<Profile, ProfileError> {
        self.validate(check)?;
        let micro_batch_size = u32::try_from(self.micro_batch_size).unwrap_or(1);
        let segment = |kind, name: String, input_bytes, of: &Segment| SegmentProfile {
            name,
            kind,
            parameters: of.parameters,
            input_bytes,
            saved_bytes: of.activations / u64::from(micro_batch_size),
            optimizer_ms: of.optimizer,
            state_bytes: None,
            working_bytes: None,
            rows: vec![ProfileRow {
                micro_batch_size,
                forward_ms: of.forward,
                backward_ms: of.backward,
                recompute_ms: None,
                forward_spread_ms: None,
                backward_spread_ms: None,
            }],
        };
        let tokens = self.model.sequence_length;
        let boundary = self.model.hidden * tokens * ELEMENT_BYTES;
        let Segments {
            embedding,
            block,
            head,
        } = &self.segments;
        let first = segment(SegmentKind::Embedding, "embedding".into(), tokens * 8, embedding);
        let blocks = (1..=self.model.layers)
            .map(|layer| segment(SegmentKind::Block, format!("block {layer}"), boundary, block));
        let last = segment(SegmentKind::Head, "head".into(), boundary, head);
        let mut segments: Vec<SegmentProfile> = [first].into_iter().chain(blocks).chain([last]).collect();
        // Both ends count the table as theirs where the head is the embedding's transpose.
        let is_tied = head.parameters >= embedding.parameters;
        let tied_parameters = if is_tied { embedding.parameters } else { 0 };
        for end in [0, segments.len() - 1] {
            segments[end].parameters -= tied_parameters;
        }
        Ok(Profile {
            version: VERSION,
            model: self.model.family.unwrap_or_else(|| "gpt".into()),
            device: self.device,
            source: Source::Measured,
            runtime: Runtime::Rendezvous,
            runtime_is_known: false,
            element_bytes: ELEMENT_BYTES,
            global_batch_size: self.global_batch_size,
            tied_parameters,
            segments,
            links: links.map_or_else(|| named_bandwidth(self.network.as_deref(), check), Ok)?,
            rings: Vec::new(),
            host: None,
            measured: None,
            calibration: None,
        })
    }
}

/// `10 Gb/s ...` as links.
fn named_bandwidth(text: Option<&str>, check: &Checker) -> Result<Vec<LinkRow>, ProfileError> {
    let number = text.and_then(|text| text.split_once("Gb/s"));
    let number = number.and_then(|(number, _)| number.trim().parse::<f64>().ok());
    let gigabits = number.filter(|gigabits| gigabits.is_finite() && *gigabits > 0.0);
    let allowed = "a bandwidth first, such as \"10 Gb/s\", or a table of links";
    check.require(gigabits.is_some(), "network", text, allowed)?;
    let row = |bytes: u32| LinkRow {
        bytes: u64::from(bytes),
        ms: LATENCY_MS + f64::from(bytes) * 8.0 / (gigabits.unwrap_or(1.0) * 1e9) * 1e3,
    };
    Ok(vec![row(1), row(1 << 30)])
}
