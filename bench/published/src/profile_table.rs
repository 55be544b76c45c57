//! The compact profiles of published tables (one embedding, one block that repeats, one head) as profiles of this project.

use serde::Deserialize;
use serde_json::json;
use std::fmt::Debug;
use varuna_plan::Runtime;
use varuna_plan::cost::SegmentKind;
use varuna_plan::profile::{LinkRow, Profile, ProfileError, ProfileRow, SegmentProfile, Source, VERSION};

/// Such tables do not say how wide a number is on the wire; half precision is the rule there (calibration tries 4 bytes too).
const ELEMENT_BYTES: u64 = 2;
/// Latency of a message between two virtual machines where only the bandwidth is named, milliseconds.
const LATENCY_MS: f64 = 0.14;

/// The file. What is not read may stand in it.
#[derive(Deserialize)]
struct Table {
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

/// A published table that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileTableError {
    /// The text is not JSON, or a field is missing or of another type.
    #[error("{file}: {source}")]
    Json {
        /// Name of the file.
        file: String,
        /// What is wrong, and where.
        source: serde_path_to_error::Error<serde_json::Error>,
    },
    /// A value that no profile may have, or a table of links that cannot be used.
    #[error(transparent)]
    Value(#[from] ProfileError),
}

/// Reads a compact profile. `links` is the name and the text of a table `bytes,us`, without which the bandwidth counts that the
/// file names.
///
/// # Errors
/// The first thing that is wrong, with the file and the field.
pub fn read_profile(
    file: &str,
    text: &str,
    links: Option<(&str, &str)>,
) -> Result<Profile, ProfileTableError> {
    let wrong = |source| ProfileTableError::Json {
        file: file.to_owned(),
        source,
    };
    let mut reader = serde_json::Deserializer::from_str(text);
    let table: Table = serde_path_to_error::deserialize(&mut reader).map_err(wrong)?;
    table.validate(file)?;
    let named = match links {
        // Reading the profile puts the table in their place.
        Some(_) => Vec::new(),
        None => named_bandwidth(file, table.network.as_deref())?,
    };
    // Times and links are judged as those of any profile.
    let profile = json!(table.profile(named)).to_string();
    Ok(Profile::read(file, &profile, links)?)
}

impl Table {
    /// Refuses what no profile of this project would show: other units, and sizes that are slips.
    fn validate(&self, file: &str) -> Result<(), ProfileError> {
        for (field, count, most) in [
            ("model.layers", self.model.layers, 10_000),
            ("model.hidden", self.model.hidden, 1 << 24),
            ("model.sequence_length", self.model.sequence_length, 1 << 24),
            ("micro_batch_size", self.micro_batch_size, 1 << 20),
        ] {
            let allowed = format!("a whole number from 1 to {most}");
            require((1..=most).contains(&count), file, field, &count, &allowed)?;
        }
        let units = &self.units;
        for (field, unit, allowed) in [
            ("units.forward", &units.forward, "ms"),
            ("units.backward", &units.backward, "ms"),
            ("units.optimizer", &units.optimizer, "ms"),
            ("units.activations", &units.activations, "bytes"),
        ] {
            require(unit == allowed, file, field, unit, &format!("{allowed:?}"))?;
        }
        Ok(())
    }

    /// The profile that the table amounts to, with these links.
    fn profile(self, links: Vec<LinkRow>) -> Profile {
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
            chunked: None,
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
        Profile {
            version: VERSION,
            model: self.model.family.unwrap_or_else(|| "gpt".into()),
            device: self.device,
            source: Source::Measured,
            runtime: Runtime::Rendezvous,
            element_bytes: ELEMENT_BYTES,
            parameter_bytes: None,
            global_batch_size: self.global_batch_size,
            tied_parameters,
            segments,
            links,
            rings: Vec::new(),
            host: None,
            measured: None,
            calibration: None,
        }
    }
}

/// `10 Gb/s ...` as links.
fn named_bandwidth(file: &str, text: Option<&str>) -> Result<Vec<LinkRow>, ProfileError> {
    let number = text.and_then(|text| text.split_once("Gb/s"));
    let number = number.and_then(|(number, _)| number.trim().parse::<f64>().ok());
    let gigabits = number.filter(|gigabits| gigabits.is_finite() && *gigabits > 0.0);
    let allowed = "a bandwidth first, such as \"10 Gb/s\", or a table of links";
    require(gigabits.is_some(), file, "network", &text, allowed)?;
    let row = |bytes: u32| LinkRow {
        bytes: u64::from(bytes),
        ms: LATENCY_MS + f64::from(bytes) * 8.0 / (gigabits.unwrap_or(1.0) * 1e9) * 1e3,
    };
    Ok(vec![row(1), row(1 << 30)])
}

fn require(
    holds: bool,
    file: &str,
    field: &str,
    found: &impl Debug,
    allowed: &str,
) -> Result<(), ProfileError> {
    if holds {
        return Ok(());
    }
    Err(ProfileError::Field {
        file: file.to_owned(),
        field: field.to_owned(),
        found: format!("{found:?}"),
        allowed: allowed.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: &str = r#"{"model": {"layers": 2, "hidden": 8, "sequence_length": 4}, "device": "d", "micro_batch_size": 1,
    "global_batch_size": 16, "network": "10 Gb/s between nodes",
    "units": {"forward": "ms", "backward": "ms", "optimizer": "ms", "activations": "bytes", "parameters": "count"},
    "segments": {"embedding": {"forward": 1, "backward": 2, "optimizer": 3, "activations": 10, "parameters": 50},
                 "block": {"forward": 4, "backward": 5, "optimizer": 6, "activations": 20, "parameters": 60},
                 "head": {"forward": 7, "backward": 8, "optimizer": 9, "activations": 30, "parameters": 55}}}"#;

    #[test]
    fn a_published_table_repeats_its_block_and_ties_its_ends() {
        let profile = read_profile("t.json", PUBLISHED, None).unwrap();
        assert_eq!(profile.segments.len(), 4);
        assert_eq!((profile.tied_parameters, profile.segments[0].parameters), (50, 0));
        assert_eq!(profile.segments[3].parameters, 5);
        let costs = profile.costs();
        assert!((costs.device.bytes_per_s / 1.25e9 - 1.0).abs() < 1e-3);
        assert!((costs.device.latency_ms - 0.14).abs() < 1e-3);
        let links = Some(("l.csv", "bytes,us\n1,50\n1000000,1000\n"));
        let profile = read_profile("t.json", PUBLISHED, links).unwrap();
        assert!((profile.costs().device.bytes_per_s / 1e9 - 1.0).abs() < 1e-9);
        for (wrong, place) in [
            ("\"ms\", \"backward\"", "\"us\", \"backward\""),
            ("\"forward\": 4", "\"forward\": -4"),
        ] {
            let text = PUBLISHED.replace(wrong, place);
            let why = read_profile("t.json", &text, None).unwrap_err().to_string();
            assert!(why.starts_with("t.json: ") && why.contains("forward"), "{why}");
        }
    }

    /// The file with which the tests of the core and of the command make plans. `VARUNA_UPDATE_GOLDEN=1` writes it again.
    #[test]
    fn the_profile_of_the_v100s_is_made_of_the_published_table() {
        let table = include_str!("../../data/measured/gpt-1.5b-v100-published.json");
        let links = include_str!("../../data/measured/p2p-10gbps.csv");
        let profile = read_profile("table", table, Some(("links", links))).unwrap();
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../data/measured/gpt-1.5b-v100-profile.json"
        );
        if std::env::var_os("VARUNA_UPDATE_GOLDEN").is_some() {
            let text = serde_json::to_string_pretty(&profile).unwrap() + "\n";
            std::fs::write(path, text).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap();
        assert_eq!(Profile::read("profile", &kept, None).unwrap(), profile);
    }
}
