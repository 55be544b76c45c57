//! Limits on the values in a profile, and the table of links that may accompany it.

use super::error::{Checker, ProfileError};
use super::{LinkRow, Profile, SegmentProfile, VERSION};
use crate::csv_rows;
use serde::Deserialize;

/// Bytes and parameters above this are typing errors.
pub(super) const MOST: u64 = 1 << 50;

/// Refuses values of this profile that are not excluded by types.
pub(super) fn validate(profile: &Profile, check: &Checker) -> Result<(), ProfileError> {
    check.count("version", profile.version, VERSION, VERSION)?;
    check.count("elementBytes", profile.element_bytes, 1, 16)?;
    if let Some(bytes) = profile.parameter_bytes {
        check.count("parameterBytes.resident", bytes.resident, 1, 64)?;
        check.count("parameterBytes.moved", bytes.moved, 1, 64)?;
        check.count("parameterBytes.gradient", bytes.gradient, 1, 16)?;
    }
    if let Some(batch) = profile.global_batch_size {
        check.count("globalBatchSize", batch, 1, MOST)?;
    }
    check.count("tiedParameters", profile.tied_parameters, 0, MOST)?;
    let none: [u8; 0] = [];
    let allowed = "a list of at least one entry";
    check.require(!profile.segments.is_empty(), "segments", none, allowed)?;
    for (i, segment) in profile.segments.iter().enumerate() {
        validate_segment(segment, &format!("segments[{i}]"), check)?;
    }
    validate_sums(&profile.segments, check)?;
    for (i, link) in profile.links.iter().enumerate() {
        check.count(&format!("links[{i}].bytes"), link.bytes, 1, MOST)?;
        check.positive(&format!("links[{i}].ms"), link.ms)?;
    }
    check.ascending("links", profile.links.iter().map(|l| l.bytes))?;
    for (i, ring) in profile.rings.iter().enumerate() {
        check.count(&format!("rings[{i}].holders"), ring.holders.into(), 2, 1 << 20)?;
        check.count(&format!("rings[{i}].bytes"), ring.bytes, 1, MOST)?;
        check.positive(&format!("rings[{i}].ms"), ring.ms)?;
    }
    if !profile.rings.is_empty() {
        check.ascending("rings", profile.rings.iter().map(|r| (r.holders, r.bytes)))?;
    }
    if let Some(host) = &profile.host {
        check.count("host.cores", host.cores.into(), 1, 1 << 16)?;
        check.count("host.threads", host.threads.into(), 1, 1 << 16)?;
        check.require(!host.slowdown.is_empty(), "host.slowdown", none, allowed)?;
        for (i, factor) in host.slowdown.iter().enumerate() {
            check.positive(&format!("host.slowdown[{i}]"), *factor)?;
        }
    }
    if let Some(calibration) = profile.calibration {
        check.positive("calibration.compute", calibration.compute)?;
        check.positive("calibration.transfer", calibration.transfer)?;
    }
    Ok(())
}

/// Refuses amounts of all segments together that are typing errors: they are added up, and multiplied by samples.
fn validate_sums(segments: &[SegmentProfile], check: &Checker) -> Result<(), ProfileError> {
    type Amount = (&'static str, fn(&SegmentProfile) -> u64);
    const AMOUNTS: [Amount; 3] = [
        ("parameters", |s| s.parameters),
        ("inputBytes", |s| s.input_bytes),
        ("savedBytes", |s| s.saved_bytes),
    ];
    for (name, amount) in AMOUNTS {
        let sum = segments.iter().map(amount).fold(0, u64::saturating_add);
        check.count(&format!("the sum of all {name} of segments"), sum, 0, MOST)?;
    }
    Ok(())
}

fn validate_segment(segment: &SegmentProfile, at: &str, check: &Checker) -> Result<(), ProfileError> {
    check.count(&format!("{at}.parameters"), segment.parameters, 0, MOST)?;
    check.count(&format!("{at}.inputBytes"), segment.input_bytes, 0, MOST)?;
    check.count(&format!("{at}.savedBytes"), segment.saved_bytes, 0, MOST)?;
    check.time(&format!("{at}.optimizerMs"), segment.optimizer_ms)?;
    check.count(
        &format!("{at}.stateBytes"),
        segment.state_bytes.unwrap_or(0),
        0,
        MOST,
    )?;
    check.count(
        &format!("{at}.workingBytes"),
        segment.working_bytes.unwrap_or(0),
        0,
        MOST,
    )?;
    let chunked = segment.chunked.unwrap_or_default();
    check.count(&format!("{at}.chunked.bytes"), chunked.bytes, 0, MOST)?;
    check.count(&format!("{at}.chunked.bytesMax"), chunked.bytes_max, 0, MOST)?;
    for (j, row) in segment.rows.iter().enumerate() {
        let field = |name: &str| format!("{at}.rows[{j}].{name}");
        check.count(&field("microBatchSize"), row.micro_batch_size.into(), 1, 1 << 20)?;
        check.time(&field("forwardMs"), row.forward_ms)?;
        check.time(&field("backwardMs"), row.backward_ms)?;
        check.time(&field("recomputeMs"), row.recompute_ms.unwrap_or(0.0))?;
        check.time(&field("forwardSpreadMs"), row.forward_spread_ms.unwrap_or(0.0))?;
        check.time(&field("backwardSpreadMs"), row.backward_spread_ms.unwrap_or(0.0))?;
    }
    let sizes = segment.rows.iter().map(|r| r.micro_batch_size);
    check.ascending(&format!("{at}.rows"), sizes)
}

/// A row of a table of links.
#[derive(Deserialize)]
struct LinkCells {
    bytes: u64,
    us: f64,
}

/// A table `bytes,us`: times of messages between two workers, smaller messages first.
pub(super) fn link_table(file: &str, text: &str) -> Result<Vec<LinkRow>, ProfileError> {
    let refuse = |field: String, found: &str, allowed: &str| ProfileError::Field {
        file: file.to_owned(),
        field,
        found: format!("{found:?}"),
        allowed: allowed.to_owned(),
    };
    let header = text.lines().next().unwrap_or_default().trim();
    if header != "bytes,us" {
        return Err(refuse("line 1".into(), header, "the header bytes,us"));
    }
    let rows = csv_rows::read::<LinkCells>(text).map_err(|error| {
        let allowed = match error.column.as_deref() {
            Some("bytes") => "a whole number",
            Some(_) => "a time above 0",
            None => "two columns",
        };
        let column = error.column.unwrap_or_else(|| "us".into());
        refuse(format!("line {}, {column}", error.line), &error.found, allowed)
    })?;
    let mut links: Vec<LinkRow> = Vec::new();
    for row in &rows {
        let at = |column: &str| format!("line {}, {column}", row.line);
        let LinkCells { bytes, us } = row.values;
        let before = links.last().map_or(0, |link| link.bytes);
        if !(before + 1..=MOST).contains(&bytes) {
            let allowed = "a whole number above the line before";
            return Err(refuse(at("bytes"), row.cell("bytes"), allowed));
        }
        if !(us.is_finite() && us > 0.0) {
            return Err(refuse(at("us"), row.cell("us"), "a time above 0"));
        }
        links.push(LinkRow { bytes, ms: us / 1e3 });
    }
    if links.is_empty() {
        return Err(refuse("line 2".into(), "", "at least one row"));
    }
    Ok(links)
}
