//! Fuzzing of all code that parses data from outside. A target takes bytes. For any bytes it must not panic, must not use much more memory
//! than their length ([`run`]), and must end. If it accepts them, the value that was read is written and read again.
//!
//! `cargo test -p varuna-fuzz` replays the corpus and a fixed number of mutated inputs; `make fuzz` explores each target for a minute.
//! There is no instrumentation, which would need a nightly compiler. Instead, inputs with a new *answer* (another error, another amount of
//! memory) are kept and mutated further. Crates that are shipped must never use this crate.

pub mod corpus;
pub mod explore;
mod mutate;
mod pool;
pub mod run;
mod targets;

pub use targets::TARGETS;

use std::sync::Mutex;

/// Held while inputs are run, because memory is counted for the whole process.
pub static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The form of inputs, so that mutations can keep some of their structure.
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
    /// This number of inputs in one: the first ones in JSON or bytes, the last one in bytes or as a safetensors file.
    Parts(usize),
    /// Items of `targets::sequence`, each with a protobuf message or bytes.
    Sequence,
}

/// A parser, and the code that uses what it has read.
pub struct Target {
    /// Name of the target and of its folder in the corpus.
    pub name: &'static str,
    /// Description of what is parsed.
    pub what: &'static str,
    /// Form of its inputs.
    pub form: Form,
    /// Words that its inputs may contain.
    pub words: &'static [&'static str],
    /// Bytes of memory that it may use for the shortest input.
    pub memory: usize,
    /// Inputs that it accepts, each with a name. They are made by the code that writes this format.
    pub seeds: fn() -> Vec<(&'static str, Vec<u8>)>,
    /// Runs an input. Returns a description of an accepted input, or the reason why it is refused. Panics if there is a defect.
    pub run: fn(&[u8]) -> Result<String, String>,
}

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}
