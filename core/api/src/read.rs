//! From text to a manifest: reports syntax errors, unknown fields and wrong types, all of them at once.
//!
//! A deserialiser stops at the first error. Here each refused field is noted and removed from the document, and the rest is tried again.
//! This ends because every field of the manifest is optional.

use crate::error::Found;
use crate::manifest::VarunaJob;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// The name for the file as a whole.
const TOP: &str = "job file";
/// Paths of the lists of a job file, outside the pod templates, without the indices of the lists that contain them. Network rules belong to
/// Kubernetes, as templates do.
const LISTS: &[&str] = &[
    "spec.disruption.nodeSignals",
    "spec.network.extraIngress",
    "spec.network.extraEgress",
    "spec.training.optimizer.weightDecayOn",
    "spec.model.exported.segments.output",
];
/// The list of kinds of workers, which may have templates.
const GROUPS: &str = "spec.workerGroups";
/// The lists whose items are mappings of this format.
const MAPPINGS: &[&str] = &[GROUPS, "spec.data.train", "spec.model.exported.segments"];
/// Maximum number of values that aliases expand to, all together: many times those of a long pod template.
const ALIASED_MAX: usize = 10_000;
/// Maximum bytes in all values, including those that aliases expand to: an API server accepts objects of 1.5 MiB.
const TEXT_BYTES_MAX: usize = 3 << 19;
/// Maximum number of errors that are shown: more would not help, and each costs another try.
const ERRORS_MAX: usize = 100;

/// How to treat fields that this build does not know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownFields {
    /// They are errors, because most likely they are misspelt.
    Refused,
    /// They are ignored, because another release knows them.
    LeftOut,
}

/// Reads the text as far as it can be read; none if it is not a job file at all.
pub(crate) fn manifest(text: &str, unknown_fields: UnknownFields, found: &mut Found) -> Option<VarunaJob> {
    let mut document: Value = match serde_saphyr::from_str_with_options(text, limits()) {
        Ok(document) => document,
        Err(error) => {
            // The first line has the place and the error; the rest shows the text around it.
            let message = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
            let line = message.lines().next().unwrap_or_default();
            found.push(TOP, line.trim_start_matches("error: "), "one YAML document");
            return None;
        }
    };
    if !document.is_object() {
        found.push(
            TOP,
            shown(&document),
            "a mapping with apiVersion, kind, metadata and spec",
        );
        return None;
    }
    if unknown_fields == UnknownFields::LeftOut {
        leave_unknown_out(&mut document, found);
    }
    refuse_odd_values(&mut document, "", found);
    for _ in 0..ERRORS_MAX {
        let error = match serde_path_to_error::deserialize::<_, VarunaJob>(&document) {
            Ok(manifest) => return Some(manifest),
            Err(error) => error,
        };
        let message = error.inner().to_string();
        let (keys, is_unknown) = place(&error);
        let Some(refused) = take(&mut document, &keys) else {
            found.push(TOP, message, "the fields of a VarunaJob");
            return None;
        };
        let value = if is_unknown {
            "unknown field".to_owned()
        } else {
            shown(&refused)
        };
        found.push(&keys.join("."), value, allowed(&message));
    }
    None
}

/// Where an error is, and whether it is an unknown field.
fn place(error: &serde_path_to_error::Error<serde_json::Error>) -> (Vec<String>, bool) {
    let message = error.inner().to_string();
    let mut keys = keys(error.path());
    // An unknown field is reported at the mapping that contains it, or at itself, depending on the kind of mapping.
    let unknown = message
        .strip_prefix("unknown field `")
        .and_then(|m| m.split('`').next());
    if let Some(field) = unknown
        && keys.last().is_none_or(|last| last != field)
    {
        keys.push(field.to_owned());
    }
    (keys, unknown.is_some())
}

/// Removes unknown fields from a document, whatever they contain. Other errors stay in it.
fn leave_unknown_out(document: &mut Value, found: &mut Found) {
    let mut rest = document.clone();
    for _ in 0..ERRORS_MAX {
        let Err(error) = serde_path_to_error::deserialize::<_, VarunaJob>(&rest) else {
            return;
        };
        let (keys, is_unknown) = place(&error);
        if take(&mut rest, &keys).is_none() {
            return;
        }
        if is_unknown {
            take(document, &keys);
        }
    }
    let many = format!("more than {ERRORS_MAX} unknown or wrong fields");
    found.push(TOP, many, "the fields of a VarunaJob");
}

/// Limits for the parser: a line of text may expand to a million values if aliases name lists of aliases.
fn limits() -> serde_saphyr::Options {
    serde_saphyr::options! {
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIASED_MAX },
        budget: serde_saphyr::budget! {
            max_recorded_anchor_events: ALIASED_MAX,
            max_total_scalar_bytes: TEXT_BYTES_MAX,
        },
    }
}

/// Pod templates.
const TEMPLATES: &[&str] = &["spec.workers.template", "spec.coordinator.template"];

fn is_template(path: &str) -> bool {
    let of_group = path.strip_prefix(GROUPS).and_then(|rest| rest.rsplit_once('.'));
    // The path after the list is `.0.template`; deeper paths are not templates.
    TEMPLATES.contains(&path)
        || of_group.is_some_and(|(item, field)| field == "template" && item.matches('.').count() == 1)
}

fn is_list(path: &str) -> bool {
    let named = path.split('.').filter(|key| key.parse::<usize>().is_err());
    LISTS.contains(&named.collect::<Vec<_>>().join(".").as_str())
}

/// Refuses values that serde would accept: an empty field (`steps:`) or a number that JSON does not have (`.nan`) is not an omitted field,
/// and serde would take a list in place of a mapping for the mapping's fields in order.
fn refuse_odd_values(value: &mut Value, path: &str, found: &mut Found) {
    let Value::Object(map) = value else { return };
    map.retain(|key, value| {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match value {
            Value::Null => found.push(&path, "empty", "a value, or leave the field out"),
            Value::Array(items) if MAPPINGS.contains(&path.as_str()) => {
                for (i, item) in items.iter_mut().enumerate() {
                    let path = format!("{path}.{i}");
                    if item.is_array() {
                        found.push(&path, "a list", "a mapping");
                    }
                    refuse_odd_values(item, &path, found);
                }
                return true;
            }
            Value::Array(_) if !is_list(&path) => found.push(&path, "a list", "a single value or a mapping"),
            // Templates belong to Kubernetes.
            _ if is_template(&path) => return true,
            _ => {
                refuse_odd_values(value, &path, found);
                return true;
            }
        }
        false
    });
}

fn keys(path: &Path) -> Vec<String> {
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Map { key } => Some(key.clone()),
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Enum { .. } | Segment::Unknown => None,
        })
        .collect()
}

/// Removes the value at the path from the document; none if there is no such value.
fn take(document: &mut Value, keys: &[String]) -> Option<Value> {
    let (last, above) = keys.split_last()?;
    let mut at = document;
    for key in above {
        at = match at {
            Value::Object(map) => map.get_mut(key)?,
            Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    match at {
        Value::Object(map) => map.remove(last),
        Value::Array(items) => {
            let index = last.parse::<usize>().ok()?;
            (index < items.len()).then(|| items.remove(index))
        }
        _ => None,
    }
}

/// A value in the short form in which errors show it.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "a mapping".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Null => "empty".to_owned(),
        scalar => {
            let text = scalar.to_string();
            if text.chars().count() > 80 {
                text.chars().take(77).chain("...".chars()).collect()
            } else {
                text
            }
        }
    }
}

/// What is allowed in a field, in the terms of users, from serde's message. The resolver says the range of a number.
fn allowed(message: &str) -> String {
    let expected = message
        .split_once("expected ")
        .map_or(message, |(_, expected)| expected);
    match expected {
        "u32" | "u64" => "a whole number that is not negative".to_owned(),
        "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a map" => "a mapping".to_owned(),
        "a sequence" => "a list".to_owned(),
        _ if expected.starts_with("struct ") => "a mapping".to_owned(),
        _ => expected.to_owned(),
    }
}
