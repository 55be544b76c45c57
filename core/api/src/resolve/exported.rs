//! `spec.model.exported`: a model of the user's own.

use super::check::{Check, quoted};
use crate::limits;
use crate::manifest::{ExportedSampleSpec, ExportedSegmentSpec, ExportedSpec};
use std::ops::RangeInclusive;
use varuna_model::{Exported, ExportedSample, ExportedSegment};

const AT: &str = "spec.model.exported";
const DIGEST: &str = "64 hex digits in lower case, the SHA-256 of the folder's manifest.json";
const PARAMETERS_DIGEST: &str = "64 hex digits in lower case, as model.yaml has them";

pub(super) fn exported(check: &mut Check, written: ExportedSpec) -> Exported {
    let at = |field: &str| format!("{AT}.{field}");
    let sample = check.required(&at("sample"), written.sample, "a mapping with length and values");
    let shared = written.shared_parameters.unwrap_or(0);
    let exported = Exported {
        path: check.text(&at("path"), written.path, "the folder that varuna_export wrote"),
        digest: digest(check, &at("digest"), written.digest),
        sample: self::sample(check, &sample),
        plan_dependent: written.plan_dependent.unwrap_or(false),
        shared_parameters: check.within(&at("sharedParameters"), shared, limits::AMOUNT),
        segments: segments(check, written.segments),
    };
    sums(check, &exported.segments);
    let own = exported.segments.iter().map(|segment| segment.parameters);
    if exported.shared_parameters == 0 && !exported.segments.is_empty() && own.sum::<u64>() == 0 {
        let allowed = "a model with parameters: this one has nothing to train";
        check.0.push(&at("segments"), "no parameters", allowed);
    }
    exported
}

/// Amounts of all segments together are multiplied by bytes and samples.
fn sums(check: &mut Check, segments: &[ExportedSegment]) {
    type Amount = (&'static str, fn(&ExportedSegment) -> u64);
    const AMOUNTS: [Amount; 5] = [
        ("parameters", |s| s.parameters),
        ("forwardFlops", |s| s.forward_flops),
        ("backwardFlops", |s| s.backward_flops),
        ("savedElements", |s| s.saved_elements),
        ("workingElements", |s| s.working_elements),
    ];
    for (name, amount) in AMOUNTS {
        // No single one is more than 2^50, and there are at most 2^10.
        let sum: u64 = segments.iter().map(amount).sum();
        if !limits::AMOUNT.contains(&sum) {
            let allowed = format!("at most {} in all segments together", limits::AMOUNT.end());
            check
                .0
                .push(&format!("{AT}.segments"), format!("{name} {sum}"), allowed);
        }
    }
}

fn digest(check: &mut Check, at: &str, written: Option<String>) -> String {
    let digest = check.required(at, written, DIGEST);
    check_digest(check, at, &digest, DIGEST);
    digest
}

fn check_digest(check: &mut Check, at: &str, digest: &str, allowed: &str) {
    let is_hex = digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if !(is_hex && limits::DIGEST.contains(&digest.len())) {
        check.0.push(at, quoted(digest), allowed);
    }
}

fn sample(check: &mut Check, written: &ExportedSampleSpec) -> ExportedSample {
    let mut size = |field: &str, value: Option<u32>, range: RangeInclusive<u32>| {
        let at = format!("{AT}.sample.{field}");
        let value = check.required(&at, value, &format!("1 to {}", range.end()));
        check.within(&at, value, range)
    };
    ExportedSample {
        length: size("length", written.length, limits::WIDTH),
        values: size("values", written.values, limits::VOCABULARY),
        records: written.records.unwrap_or(false),
    }
}

fn segments(check: &mut Check, written: Option<Vec<ExportedSegmentSpec>>) -> Vec<ExportedSegment> {
    let at = format!("{AT}.segments");
    let max = limits::EXPORTED_SEGMENTS_MAX;
    let written = check.required(&at, written, "a list of mappings");
    if !(1..=max).contains(&written.len()) {
        let found = format!("{} segments", written.len());
        check.0.push(&at, found, format!("1 to {max}"));
    }
    let each = written.into_iter().take(max).enumerate();
    each.map(|(i, written)| segment(check, &format!("{at}.{i}"), written))
        .collect()
}

fn segment(check: &mut Check, at: &str, written: ExportedSegmentSpec) -> ExportedSegment {
    let at = |field: &str| format!("{at}.{field}");
    let mut amount = |field: &str, value: Option<u64>| {
        let allowed = format!("0 to {}", limits::AMOUNT.end());
        let value = check.required(&at(field), value, &allowed);
        check.within(&at(field), value, limits::AMOUNT)
    };
    let segment = ExportedSegment {
        name: String::new(),
        output: Vec::new(),
        parameters: amount("parameters", written.parameters),
        forward_flops: amount("forwardFlops", written.forward_flops),
        backward_flops: amount("backwardFlops", written.backward_flops),
        saved_elements: amount("savedElements", written.saved_elements),
        working_elements: amount("workingElements", written.working_elements),
        parameters_digest: written.parameters_digest,
    };
    if let Some(digest) = &segment.parameters_digest {
        check_digest(check, &at("parametersDigest"), digest, PARAMETERS_DIGEST);
    }
    ExportedSegment {
        name: check.text(&at("name"), written.name, "its name in the user's model"),
        output: output(check, &at("output"), written.output),
        ..segment
    }
}

fn output(check: &mut Check, at: &str, written: Option<Vec<u32>>) -> Vec<u32> {
    let max = limits::OUTPUT_DIMENSIONS_MAX;
    let allowed = format!("a list of 1 to {max} sizes");
    let sizes = check.required(at, written, &allowed);
    if !(1..=max).contains(&sizes.len()) {
        check.0.push(at, format!("{} sizes", sizes.len()), allowed);
    }
    let each = sizes.into_iter().take(max).enumerate();
    let sizes: Vec<u32> = each
        .map(|(i, size)| check.within(&format!("{at}.{i}"), size, limits::WIDTH))
        .collect();
    let elements = sizes
        .iter()
        .try_fold(1u64, |product, size| product.checked_mul((*size).into()));
    if elements.is_none_or(|elements| !limits::AMOUNT.contains(&elements)) {
        let allowed = format!("at most {} elements in all", limits::AMOUNT.end());
        check.0.push(at, format!("{sizes:?}"), allowed);
        return Vec::new();
    }
    sizes
}
