//! The strict reader: every value knows its file and field.

use super::{LinkRow, Profile, ProfileRow, RingRow, SegmentProfile, Source, VERSION};
use crate::cost::{Calibration, Host, Runtime, SegmentKind};
use serde_json::Value;

/// Why a profile, or a table that goes with it, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Not JSON (NaN and Infinity are not).
    #[error("{file}: line {line}, column {column}: not JSON: {message}")]
    Json {
        /// Which file.
        file: String,
        /// Counts from 1.
        line: usize,
        /// Counts from 1.
        column: usize,
        /// What the JSON reader says.
        message: String,
    },
    /// A field is missing, unknown or has a value that is not allowed.
    #[error("{file}: {field} is {found}, allowed is {allowed}")]
    Field {
        /// Which file.
        file: String,
        /// Which field (`segments[3].rows[0].forwardMs`, or `line 7, us`).
        field: String,
        /// What stands there.
        found: String,
        /// What may stand there.
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

/// A value, or its absence, at its place in a file.
pub(super) struct At<'a> {
    file: &'a str,
    path: String,
    value: Option<&'a Value>,
}

const TIME: &str = "a time of at least 0";

impl<'a> At<'a> {
    pub(super) fn root(file: &'a str, value: &'a Value) -> At<'a> {
        At {
            file,
            path: String::new(),
            value: Some(value),
        }
    }

    pub(super) fn refuse<T>(&self, allowed: &str) -> Result<T, ProfileError> {
        Err(ProfileError::Field {
            file: self.file.to_owned(),
            field: if self.path.is_empty() {
                "the document".into()
            } else {
                self.path.clone()
            },
            found: match self.value {
                None => "missing".into(),
                Some(Value::Array(_)) => "a list".into(),
                Some(Value::Object(_)) => "a mapping".into(),
                Some(value) => value.to_string(),
            },
            allowed: allowed.to_owned(),
        })
    }

    pub(super) fn at(&self, name: &str) -> At<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        At {
            file: self.file,
            path: format!("{}{dot}{name}", self.path),
            value: self.value.and_then(|v| v.get(name)).filter(|v| !v.is_null()),
        }
    }

    pub(super) fn is_object_at(&self, name: &str) -> bool {
        self.at(name).value.is_some_and(Value::is_object)
    }

    pub(super) fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&At<'a>) -> Result<T, ProfileError>,
    ) -> Result<Option<T>, ProfileError> {
        let at = self.at(name);
        at.value.is_some().then(|| read(&at)).transpose()
    }

    /// A mapping with no other fields than these.
    fn only(&self, names: &[&str]) -> Result<(), ProfileError> {
        let Some(Value::Object(map)) = self.value else {
            return self.refuse("a mapping");
        };
        match map.keys().find(|key| !names.contains(&key.as_str())) {
            Some(key) => self
                .at(key)
                .refuse(&format!("nothing; known are {}", names.join(", "))),
            None => Ok(()),
        }
    }

    pub(super) fn text(&self) -> Result<String, ProfileError> {
        match self.value.and_then(Value::as_str) {
            Some(text) => Ok(text.to_owned()),
            None => self.refuse("a text"),
        }
    }

    fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, ProfileError> {
        let text = self.value.and_then(Value::as_str);
        match words.iter().find(|(word, _)| Some(*word) == text) {
            Some((_, value)) => Ok(*value),
            None => self.refuse(
                &words
                    .iter()
                    .map(|(word, _)| *word)
                    .collect::<Vec<_>>()
                    .join(" or "),
            ),
        }
    }

    pub(super) fn ms(&self) -> Result<f64, ProfileError> {
        match self.value.and_then(Value::as_f64) {
            Some(ms) if ms.is_finite() && ms >= 0.0 => Ok(ms),
            _ => self.refuse(TIME),
        }
    }

    pub(super) fn positive(&self) -> Result<f64, ProfileError> {
        match self.value.and_then(Value::as_f64) {
            Some(number) if number.is_finite() && number > 0.0 => Ok(number),
            _ => self.refuse("a number above 0"),
        }
    }

    pub(super) fn count(&self, least: u64, most: u64) -> Result<u64, ProfileError> {
        match self.value.and_then(Value::as_u64) {
            Some(count) if (least..=most).contains(&count) => Ok(count),
            _ => self.refuse(&format!("a whole number from {least} to {most}")),
        }
    }

    fn list<T>(&self, read: impl Fn(&At<'a>) -> Result<T, ProfileError>) -> Result<Vec<T>, ProfileError> {
        let Some(Value::Array(values)) = self.value.filter(|v| v.as_array().is_some_and(|l| !l.is_empty()))
        else {
            return self.refuse("a list of at least one entry");
        };
        let entry = |(i, value)| {
            read(&At {
                file: self.file,
                path: format!("{}[{i}]", self.path),
                value: Some(value),
            })
        };
        values.iter().enumerate().map(entry).collect()
    }
}

/// Bytes and parameters beyond this are slips.
pub(super) const MOST: u64 = 1 << 50;

pub(super) fn read(root: &At, links: Option<Vec<LinkRow>>) -> Result<Profile, ProfileError> {
    root.only(&[
        "version",
        "units",
        "model",
        "device",
        "source",
        "runtime",
        "elementBytes",
        "globalBatchSize",
        "tiedParameters",
        "segments",
        "links",
        "rings",
        "host",
        "measured",
        "calibration",
    ])?;
    Ok(Profile {
        version: root.at("version").count(VERSION, VERSION)?,
        model: root.at("model").text()?,
        device: root.at("device").text()?,
        source: root
            .at("source")
            .word(&[("measured", Source::Measured), ("estimated", Source::Estimated)])?,
        runtime: root.at("runtime").word(&[
            ("overlapped", Runtime::Overlapped),
            ("rendezvous", Runtime::Rendezvous),
        ])?,
        runtime_is_known: true,
        element_bytes: root.at("elementBytes").count(1, 16)?,
        global_batch_size: root.optional("globalBatchSize", |at| at.count(1, MOST))?,
        tied_parameters: root.at("tiedParameters").count(0, MOST)?,
        segments: root.at("segments").list(segment)?,
        links: match links {
            Some(links) => links,
            None => ascending(&root.at("links"), root.at("links").list(link)?, |l| l.bytes)?,
        },
        rings: root
            .optional("rings", |at| {
                ascending(at, at.list(ring)?, |r| u64::from(r.holders) << 51 | r.bytes)
            })?
            .unwrap_or_default(),
        host: root.optional("host", host)?,
        measured: root.optional("measured", At::text)?,
        calibration: root.optional("calibration", |at| {
            at.only(&["compute", "transfer"])?;
            Ok(Calibration {
                compute: at.at("compute").positive()?,
                transfer: at.at("transfer").positive()?,
            })
        })?,
    })
}

fn ascending<T>(at: &At, rows: Vec<T>, key: impl Fn(&T) -> u64) -> Result<Vec<T>, ProfileError> {
    if rows.windows(2).all(|w| key(&w[0]) < key(&w[1])) {
        Ok(rows)
    } else {
        at.refuse("a list in ascending order of size, each size once")
    }
}

const KINDS: [(&str, SegmentKind); 5] = [
    ("embedding", SegmentKind::Embedding),
    ("attention", SegmentKind::Attention),
    ("mlp", SegmentKind::Mlp),
    ("block", SegmentKind::Block),
    ("head", SegmentKind::Head),
];

fn segment(at: &At) -> Result<SegmentProfile, ProfileError> {
    at.only(&[
        "name",
        "kind",
        "parameters",
        "inputBytes",
        "savedBytes",
        "optimizerMs",
        "stateBytes",
        "workingBytes",
        "rows",
    ])?;
    let rows = at.at("rows").list(|row| {
        row.only(&[
            "microBatchSize",
            "forwardMs",
            "backwardMs",
            "recomputeMs",
            "forwardSpreadMs",
            "backwardSpreadMs",
        ])?;
        Ok(ProfileRow {
            micro_batch_size: u32::try_from(row.at("microBatchSize").count(1, 1 << 20)?).unwrap_or(u32::MAX),
            forward_ms: row.at("forwardMs").ms()?,
            backward_ms: row.at("backwardMs").ms()?,
            recompute_ms: row.optional("recomputeMs", At::ms)?,
            forward_spread_ms: row.optional("forwardSpreadMs", At::ms)?,
            backward_spread_ms: row.optional("backwardSpreadMs", At::ms)?,
        })
    })?;
    Ok(SegmentProfile {
        name: at.at("name").text()?,
        kind: at.optional("kind", |at| at.word(&KINDS))?.unwrap_or_default(),
        parameters: at.at("parameters").count(0, MOST)?,
        input_bytes: at.at("inputBytes").count(0, MOST)?,
        saved_bytes: at.at("savedBytes").count(0, MOST)?,
        optimizer_ms: at.at("optimizerMs").ms()?,
        state_bytes: at.optional("stateBytes", |at| at.count(0, MOST))?,
        working_bytes: at.optional("workingBytes", |at| at.count(0, MOST))?,
        rows: ascending(&at.at("rows"), rows, |r| u64::from(r.micro_batch_size))?,
    })
}

fn small(at: &At, least: u64, most: u64) -> Result<u32, ProfileError> {
    Ok(u32::try_from(at.count(least, most)?).unwrap_or(u32::MAX))
}

fn ring(at: &At) -> Result<RingRow, ProfileError> {
    at.only(&["holders", "bytes", "ms"])?;
    Ok(RingRow {
        holders: small(&at.at("holders"), 2, 1 << 20)?,
        bytes: at.at("bytes").count(1, MOST)?,
        ms: at.at("ms").positive()?,
    })
}

fn host(at: &At) -> Result<Host, ProfileError> {
    at.only(&["cores", "threads", "slowdown"])?;
    Ok(Host {
        cores: small(&at.at("cores"), 1, 1 << 16)?,
        threads: small(&at.at("threads"), 1, 1 << 16)?,
        slowdown: at.at("slowdown").list(At::positive)?,
    })
}

fn link(at: &At) -> Result<LinkRow, ProfileError> {
    at.only(&["bytes", "ms"])?;
    Ok(LinkRow {
        bytes: at.at("bytes").count(1, MOST)?,
        ms: at.at("ms").positive()?,
    })
}

/// A table `bytes,us`: times of messages between two workers.
pub(super) fn link_table(file: &str, text: &str) -> Result<Vec<LinkRow>, ProfileError> {
    let refuse = |field: String, found: &str, allowed: &str| ProfileError::Field {
        file: file.to_owned(),
        field,
        found: format!("{found:?}"),
        allowed: allowed.to_owned(),
    };
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line.trim());
    if header != "bytes,us" {
        return Err(refuse("line 1".into(), header, "the header bytes,us"));
    }
    let mut rows: Vec<LinkRow> = Vec::new();
    for (i, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let at = |field: &str| format!("line {}, {field}", i + 1);
        let Some((bytes, us)) = line.trim().split_once(',') else {
            return Err(refuse(at("us"), line, "two columns"));
        };
        let after = rows.last().map_or(0, |row| row.bytes);
        let bytes = bytes.parse().ok().filter(|b| (after + 1..=MOST).contains(b));
        let bytes = bytes.ok_or_else(|| refuse(at("bytes"), line, "a whole number above the line before"))?;
        let us = us.parse().ok().filter(|us: &f64| us.is_finite() && *us > 0.0);
        let us = us.ok_or_else(|| refuse(at("us"), line, "a time above 0"))?;
        rows.push(LinkRow { bytes, ms: us / 1e3 });
    }
    if rows.is_empty() {
        return Err(refuse("line 2".into(), "", "at least one row"));
    }
    Ok(rows)
}
