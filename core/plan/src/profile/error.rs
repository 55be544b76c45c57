//! Errors in a profile, by file and field.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

/// Why a profile, or a table that goes with it, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The text is not JSON (JSON has no NaN and no Infinity).
    #[error("{file}: line {line}, column {column}: not JSON: {message}")]
    Json {
        /// Name of the file.
        file: String,
        /// Line number, from 1 on.
        line: usize,
        /// Column number, from 1 on.
        column: usize,
        /// What the JSON reader says.
        message: String,
    },
    /// A field is missing, unknown or has a value that is not allowed.
    #[error("{file}: {field} is {found}, allowed is {allowed}")]
    Field {
        /// Name of the file.
        file: String,
        /// Path of the field (`segments[3].rows[0].forwardMs`, or `line 7, us`).
        field: String,
        /// The value found.
        found: String,
        /// The values that are allowed.
        allowed: String,
    },
}

pub(super) fn parse(file: &str, text: &str) -> Result<Value, ProfileError> {
    serde_json::from_str(text).map_err(|e| ProfileError::Json {
        file: file.to_owned(),
        line: e.line(),
        column: e.column(),
        message: e.to_string(),
    })
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "a mapping".into(),
        value => value.to_string(),
    }
}

/// Reads a document, strictly.
///
/// # Errors
/// The first field that is missing, unknown or of another type.
pub(super) fn deserialize<T: DeserializeOwned>(file: &str, value: &Value) -> Result<T, ProfileError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let message = error.inner().to_string();
        let quoted = |prefix: &str| Some(message.strip_prefix(prefix)?.split('`').next()?.to_owned());
        let (missing, unknown) = (quoted("missing field `"), quoted("unknown field `"));
        let expected = message
            .split_once(", expected ")
            .map_or("", |(_, expected)| expected);
        let mut field = error.path().to_string();
        // A missing or unknown field is reported at the mapping to which it belongs.
        if let Some(name) = missing.as_ref().or(unknown.as_ref())
            && !ends_with(error.path(), name)
        {
            field = if field == "." {
                name.clone()
            } else {
                format!("{field}.{name}")
            };
        }
        let at = at(value, error.path());
        let (found, allowed) = match (missing, unknown) {
            (Some(_), _) => ("missing".to_owned(), "a value".to_owned()),
            (_, Some(name)) => {
                let value = at.map(|v| v.get(&name).unwrap_or(v));
                let known = expected.trim_start_matches("one of ").replace('`', "");
                (
                    value.map_or_else(|| "there".to_owned(), shown),
                    format!("nothing; known are {known}"),
                )
            }
            _ => (at.map_or_else(|| "missing".to_owned(), shown), in_words(expected)),
        };
        ProfileError::Field {
            file: file.to_owned(),
            field: if field == "." {
                "the document".into()
            } else {
                field
            },
            found,
            allowed,
        }
    })
}

fn ends_with(path: &Path, name: &str) -> bool {
    matches!(path.iter().next_back(), Some(Segment::Map { key }) if key == name)
}

/// The value at a path.
fn at<'v>(value: &'v Value, path: &Path) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Map { key } => value.get(key),
        Segment::Seq { index } => value.get(*index),
        Segment::Enum { .. } | Segment::Unknown => Some(value),
    })
}

/// What serde expects, in words.
fn in_words(expected: &str) -> String {
    match expected {
        "f64" => "a number".into(),
        "u32" | "u64" => "a whole number of at least 0".into(),
        "a string" | "string or map" => "a text".into(),
        "a sequence" => "a list".into(),
        other if other.starts_with("struct ") => "a mapping".into(),
        other => other.trim_start_matches("one of ").replace('`', ""),
    }
}

/// Refuses values of a file that are not excluded by types.
pub(super) struct Checker<'a> {
    pub(super) file: &'a str,
}

impl Checker<'_> {
    pub(super) fn require(
        &self,
        holds: bool,
        field: &str,
        found: impl Serialize,
        allowed: &str,
    ) -> Result<(), ProfileError> {
        if holds {
            return Ok(());
        }
        Err(ProfileError::Field {
            file: self.file.to_owned(),
            field: field.to_owned(),
            found: serde_json::to_value(found).map_or_else(|_| "not a number".to_owned(), |v| shown(&v)),
            allowed: allowed.to_owned(),
        })
    }

    pub(super) fn time(&self, field: &str, ms: f64) -> Result<(), ProfileError> {
        self.require(ms.is_finite() && ms >= 0.0, field, ms, "a time of at least 0")
    }

    pub(super) fn positive(&self, field: &str, number: f64) -> Result<(), ProfileError> {
        let holds = number.is_finite() && number > 0.0;
        self.require(holds, field, number, "a number above 0")
    }

    pub(super) fn count(&self, field: &str, count: u64, least: u64, most: u64) -> Result<(), ProfileError> {
        let allowed = format!("a whole number from {least} to {most}");
        self.require((least..=most).contains(&count), field, count, &allowed)
    }

    /// Checks that there is at least one entry and that each key is greater than the previous one.
    pub(super) fn ascending<K: PartialOrd>(
        &self,
        field: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<(), ProfileError> {
        let keys: Vec<K> = keys.into_iter().collect();
        let none: [u8; 0] = [];
        self.require(!keys.is_empty(), field, none, "a list of at least one entry")?;
        let allowed = "a list in ascending order of size, each size once";
        self.require(keys.windows(2).all(|w| w[0] < w[1]), field, none, allowed)
    }
}
