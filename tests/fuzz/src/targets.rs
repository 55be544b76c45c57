//! The targets: each parser with its seeds, and the code that uses what it has read.

mod checkpoint;
mod conversation;
mod data_plane;
mod dataset;
mod documents;
mod machines;
mod messages;
mod plans;
mod recording;
pub(crate) mod sequence;
mod shared;
mod tables;
mod texts;

use crate::Target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use varuna_plan::state::Chain;
use varuna_plan::{Generation, StateId, Step};

/// Memory of a target that only parses: a few buffers.
const LITTLE: usize = 4 << 20;
/// Memory of a target that makes plans, or opens a store.
const MORE: usize = 16 << 20;

/// Named inputs.
type Seeds = Vec<(&'static str, Vec<u8>)>;

/// All targets.
pub static TARGETS: &[Target] = &[
    texts::JOB,
    dataset::INDEX,
    dataset::TEXT,
    dataset::LINES,
    dataset::PARQUET,
    dataset::TOKENIZER,
    checkpoint::MANIFEST,
    checkpoint::SHARD,
    checkpoint::LISTING,
    checkpoint::HUGGING_FACE,
    data_plane::HELLO,
    data_plane::FRAMES,
    messages::UP,
    messages::DOWN,
    messages::STATUS,
    recording::COORDINATOR,
    recording::MEMBER,
    documents::PLAN,
    documents::RECORD,
    documents::STORED_RECORD,
    documents::RUN_FOLDER,
    documents::PARTS,
    shared::RUN,
    tables::TRACE,
    tables::PROFILE,
    tables::LINKS,
];

/// The state in the seeds.
const ID: StateId = StateId {
    run_gen: Generation(2),
    step: Step(5),
    chain: Chain(7),
};

fn text(input: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(input).map_err(|e| e.to_string())
}

/// Writes a value and reads it again: nothing may be lost. The texts are compared, because some numbers are not equal to themselves.
fn round_trip<T: Serialize + DeserializeOwned>(value: &T) {
    let written = serde_json::to_string(value).expect("what was read can be written");
    let read: T = serde_json::from_str(&written).expect("what was written can be read");
    let again = serde_json::to_string(&read).expect("what was read can be written");
    assert_eq!(again, written, "what is written is read as something else");
}

/// Joins several inputs into one. Each except the last follows its length in two bytes.
pub(crate) fn join(parts: &[&[u8]]) -> Vec<u8> {
    let mut joined = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        if i + 1 < parts.len() {
            joined.extend(u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes());
        }
        joined.extend(*part);
    }
    joined
}

/// Takes a part that [`join`] has put before the last one; a length may be too large.
pub(crate) fn take_part<'a>(input: &mut &'a [u8]) -> &'a [u8] {
    let length = input.split_off(..2.min(input.len())).unwrap_or_default();
    let length = length.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    input.split_off(..length.min(input.len())).unwrap_or_default()
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("a seed can be written")
}
