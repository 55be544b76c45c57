//! The messages of an event file that are needed for scalars: `event.proto` and `summary.proto` of TensorFlow.

use crate::record;
use prost::Message as _;

/// A value of one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scalar {
    /// Name of the series; TensorBoard groups names by the part before the first `/`.
    pub tag: &'static str,
    /// The value, which the file holds in single precision.
    pub value: f64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

#[derive(Clone, PartialEq, prost::Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    // Optional, because it is a member of a oneof in TensorFlow's message: a value of 0 must be written too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `SessionLog.SessionStatus.START`.
const START: i32 = 1;
/// The format's version; [`start`] is respected from this version on.
const VERSION: &str = "brain.Event:2";

fn event(time_ms: u64, step: u64, what: What) -> Vec<u8> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds since 1970 are below 2^52"
    )]
    let wall_time = time_ms as f64 / 1e3;
    let event = Event {
        wall_time,
        step: i64::try_from(step).unwrap_or(i64::MAX),
        what: Some(what),
    };
    record(&event.encode_to_vec())
}

/// The name of an event file that was begun at a time (milliseconds since 1970). TensorBoard reads files with `tfevents` in their names, in
/// the order of their names, which is that of time and number.
#[must_use]
pub fn file_name(time_ms: u64, number: u32) -> String {
    format!("events.out.tfevents.{:010}.{number:06}.varuna", time_ms / 1000)
}

/// The first record of a file.
#[must_use]
pub fn version(time_ms: u64) -> Vec<u8> {
    event(time_ms, 0, What::FileVersion(VERSION.to_owned()))
}

/// Marks that steps begin, or begin again, with this one: TensorBoard forgets this step and all later ones.
#[must_use]
pub fn start(time_ms: u64, step: u64) -> Vec<u8> {
    event(time_ms, step, What::SessionLog(SessionLog { status: START }))
}

/// The values of a step.
#[must_use]
pub fn scalars(time_ms: u64, step: u64, scalars: &[Scalar]) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "that is what the format holds")]
    let value = scalars.iter().map(|scalar| Value {
        tag: scalar.tag.to_owned(),
        simple_value: Some(scalar.value as f32),
    });
    let summary = Summary {
        value: value.collect(),
    };
    event(time_ms, step, What::Summary(summary))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of a record.
    fn message(record: &[u8]) -> &[u8] {
        &record[12..record.len() - 4]
    }

    #[test]
    fn messages_match_the_published_protobuf_files() {
        // 1.5 s; field 3: file_version.
        let expected = [&[0x09][..], &1.5f64.to_le_bytes(), &[0x1a, 13], b"brain.Event:2"].concat();
        assert_eq!(message(&version(1500)), expected);
        // Field 2: step 300; field 7: session_log with status 1.
        let expected = [
            &[0x09][..],
            &1.5f64.to_le_bytes(),
            &[0x10, 0xac, 0x02, 0x3a, 2, 0x08, 1],
        ]
        .concat();
        assert_eq!(message(&start(1500, 300)), expected);
        // Field 5: summary with one value, tag "a" and simple_value 0.
        let value = [&[0x0a, 1, b'a', 0x15][..], &0f32.to_le_bytes()].concat();
        let expected = [
            &[0x09][..],
            &1.5f64.to_le_bytes(),
            &[0x10, 7, 0x2a, 10, 0x0a, 8],
            &value,
        ]
        .concat();
        let zero = Scalar { tag: "a", value: 0.0 };
        assert_eq!(message(&scalars(1500, 7, &[zero])), expected);
    }

    #[test]
    fn names_are_in_the_order_of_time_and_of_number() {
        let names = [
            (999_999_999_000, 3),
            (1_795_344_944_287, 0),
            (1_795_344_944_999, 1),
            (1_795_344_945_000, 0),
        ];
        let names = names.map(|(time, number)| file_name(time, number));
        assert!(
            names.is_sorted() && names.iter().all(|name| name.contains("tfevents")),
            "{names:?}"
        );
    }
}
