//! Tokenizes batches: pure, so that it can be done by any thread.

use super::input::{Batch, Content, Part, Place};
use super::split::Split;
use crate::error::DataError;
use crate::index::TokenType;
use crate::tokenizer::{Encoder, NoTokens};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// How texts become the bytes of a dataset.
pub(super) struct Encoding<'a> {
    pub(super) encoder: Encoder,
    /// The token after each document.
    pub(super) end: u32,
    pub(super) token_type: TokenType,
    /// The field of a JSON line that has the text.
    pub(super) field: &'a str,
    pub(super) split: Option<Split>,
}

/// A batch as it is written.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Encoded {
    /// The tokens of all parts.
    pub(super) bytes: Vec<u8>,
    pub(super) parts: Vec<EncodedPart>,
    pub(super) input_bytes: u64,
}

/// The outcome of a batch.
pub(super) struct Outcome {
    /// The errors of its lines that are not JSON, in order. These lines are skipped.
    pub(super) malformed: Vec<DataError>,
    /// The other lines; or the first other error, after those lines.
    pub(super) encoded: Result<Encoded, DataError>,
}

/// Part of a document, or all of it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct EncodedPart {
    /// The dataset that its document belongs to, if its document begins with it.
    pub(super) set: Option<usize>,
    pub(super) tokens: u64,
    pub(super) text_bytes: u64,
    pub(super) ends: bool,
}

impl Encoding<'_> {
    pub(super) fn encode(&self, batch: &Batch) -> Outcome {
        let mut malformed = Vec::new();
        let encoded = self.encode_parts(batch, &mut malformed);
        Outcome { malformed, encoded }
    }

    fn encode_parts(&self, batch: &Batch, malformed: &mut Vec<DataError>) -> Result<Encoded, DataError> {
        let mut encoded = Encoded {
            input_bytes: batch.input_bytes,
            ..Encoded::default()
        };
        for part in &batch.parts {
            let Some(text) = self.text(&batch.path, part, malformed)? else {
                continue;
            };
            let tokens = self.encoder.encode(&text);
            let mut tokens = tokens.map_err(|why| refused(&batch.path, part.place, why))?;
            // As with Megatron, a document without tokens has no end either.
            if part.ends && !(part.begins && tokens.is_empty()) {
                tokens.push(self.end);
            }
            for token in &tokens {
                self.token_type.encode(*token, &mut encoded.bytes);
            }
            encoded.parts.push(EncodedPart {
                set: part
                    .begins
                    .then(|| self.split.map_or(0, |split| split.set_of(&text))),
                tokens: tokens.len() as u64,
                text_bytes: text.len() as u64,
                ends: part.ends,
            });
        }
        Ok(encoded)
    }

    /// The text of a part; none of a line that is no JSON, whose error is added to the others.
    fn text<'t>(
        &self,
        path: &Path,
        part: &'t Part,
        malformed: &mut Vec<DataError>,
    ) -> Result<Option<Cow<'t, [u8]>>, DataError> {
        let line = match &part.content {
            Content::Text(text) => return Ok(Some(Cow::Borrowed(text))),
            Content::Line(line) => line,
        };
        let none = match field_of(line, self.field) {
            Ok(text) => return Ok(Some(Cow::Owned(text.into_bytes()))),
            Err(none) => none,
        };
        let (what, value) = part.place.value(0);
        let allowed = format!("a JSON object whose {} is a text", self.field);
        let error = DataError::malformed(path, what, format!("{value}: {}", none.why), allowed);
        if none.is_json {
            return Err(error);
        }
        malformed.push(error);
        Ok(None)
    }
}

fn refused(path: &Path, place: Place, why: NoTokens) -> DataError {
    let allowed = "UTF-8 text for this tokenizer";
    match why {
        NoTokens::NotUtf8(at) => {
            let (what, value) = place.value(at);
            DataError::malformed(path, what, value, allowed)
        }
        NoTokens::Refused(why) => {
            let (what, value) = place.value(0);
            DataError::malformed(
                path,
                what,
                format!("{value}: {why}"),
                "text that the tokenizer takes",
            )
        }
    }
}

/// Why a line has no text.
#[derive(Debug)]
struct NoText {
    why: String,
    /// Whether the line is JSON, but something else than was expected.
    is_json: bool,
}

/// The text of a field of a JSON object. The other fields are passed over.
fn field_of(line: &[u8], field: &str) -> Result<String, NoText> {
    let failed = |error: serde_json::Error| NoText {
        // The unexpected value may come before a part that is not JSON.
        is_json: error.is_data() && serde_json::from_slice::<IgnoredAny>(line).is_ok(),
        why: within_line(&error),
    };
    let mut json = serde_json::Deserializer::from_slice(line);
    let found = Field(field).deserialize(&mut json).map_err(failed)?;
    json.end().map_err(failed)?;
    found.ok_or_else(|| NoText {
        why: format!("no field {field}"),
        is_json: true,
    })
}

/// What is wrong within a line. The library counts lines too, and to it each is the first.
fn within_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&place) {
        Some(why) => format!("{why}, at column {}", error.column()),
        None => text,
    }
}

struct Field<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = Option<String>;
    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Option<String>, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let mut found = None;
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            if name == self.0 {
                found = Some(map.next_value::<String>()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::field_of;

    #[test]
    fn the_field_of_a_line_is_found_among_others() {
        let line = br#"{"id": [1, {"text": "no"}], "te\u0078t": "a\n\u00e9", "meta": {"text": "no"}} "#;
        assert_eq!(field_of(line, "text").unwrap(), "a\n\u{e9}");
        assert_eq!(field_of(br#"{"content": "x"}"#, "content").unwrap(), "x");
    }

    #[test]
    fn a_line_that_is_no_such_object_is_refused_with_the_reason() {
        for (line, why, is_json) in [
            (&b"{\"id\": 1}"[..], "no field text", true),
            (
                b"{\"text\": 5}",
                "invalid type: integer `5`, expected a string",
                true,
            ),
            (
                b"{\"text\": null}",
                "invalid type: null, expected a string, at column 13",
                true,
            ),
            (
                b"[\"text\"]",
                "invalid type: sequence, expected a JSON object",
                true,
            ),
            (b"{\"text\": \"a\"} x", "trailing characters", false),
            (b"{\"text\": \"a", "EOF while parsing", false),
            (b"{\"text\": \"\xff\"}", "invalid unicode", false),
            (b"{\"text\": \"\\udc00\"}", "lone leading surrogate", false),
            (b"{\"loss\": NaN, \"text\": \"a\"}", "expected value", false),
            (b"{\"text\": 5, \"loss\": NaN}", "invalid type: integer", false),
        ] {
            let found = field_of(line, "text").unwrap_err();
            assert!(found.why.contains(why), "{found:?}");
            assert_eq!(found.is_json, is_json, "{found:?}");
        }
        // Other fields are not read.
        let other = br#"{"name": "\ud800", "text": "a"}"#;
        assert_eq!(field_of(other, "text").unwrap(), "a");
    }
}
