//! Fuzzing of everything that parses what it did not write. A target takes bytes; whatever they are, it must not panic, must not
//! take much more memory than their length ([`run`]), and must end. Where it takes them, what it has read is written and read
//! again.
//!
//! `cargo test -p varuna-fuzz` replays the corpus and a fixed number of mutated inputs; `make fuzz` explores for a minute a target.
//! There is no instrumentation, which needs a nightly compiler: inputs whose *answer* is new (another error, another amount of
//! memory) are kept and mutated further. This crate must never be used by a crate that ships.

pub mod corpus;
pub mod explore;
mod mutate;
mod pool;
pub mod run;
mod targets;

pub use targets::TARGETS;

use std::sync::Mutex;

/// Memory is counted for the process as a whole: held while inputs are run.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What inputs look like, so that mutations can keep some of their structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Numbers and lengths.
    Bytes,
    /// Lines with numbers and words.
    Text,
    /// One JSON document.
    Json,
    /// One protobuf message.
    Proto,
    /// A safetensors file: a header in JSON after its length, and data.
    Safetensors,
    /// So many inputs in one: the first ones in JSON or bytes, the last one in bytes or as a safetensors file.
    Parts(usize),
    /// Items of `targets::sequence`, each with a protobuf message or bytes.
    Sequence,
}

/// A parser, and what is done with what it has read.
pub struct Target {
    /// Its name, and that of its folder in the corpus.
    pub name: &'static str,
    /// What is parsed, for people.
    pub what: &'static str,
    /// Of its inputs.
    pub form: Form,
    /// Words that its inputs may hold.
    pub words: &'static [&'static str],
    /// Bytes of memory that it may take for the shortest input.
    pub memory: usize,
    /// Inputs that it takes, made by what writes them, each with a name.
    pub seeds: fn() -> Vec<(&'static str, Vec<u8>)>,
    /// What it said of an input that it took, or why it refused it. Panics where something is broken.
    pub run: fn(&[u8]) -> Result<String, String>,
}

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}
