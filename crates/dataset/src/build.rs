//! Builds indexed datasets from files of texts. Memory does not grow with the size of the text, and the bytes are the same for every number
//! of threads.

mod batches;
mod encode;
mod input;
mod output;
mod parquet;
mod pipeline;
mod read;
mod skipped;
mod split;
#[cfg(test)]
mod tests;

pub use input::Format;
pub use skipped::Skipped;
pub use split::Split;

use crate::error::DataError;
use crate::files::scheme;
use crate::sidecar::{Sidecar, WITHOUT_SUFFIX, has_suffix};
use crate::tokenizer::Tokenizer;
use encode::Encoding;
use input::Input;
use output::Outputs;
use skipped::Skips;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// A request to build a dataset.
#[derive(Clone, Debug)]
pub struct Build {
    /// Files of texts, in the order in which their documents are written. Texts and JSON lines that end in `.gz` are decompressed.
    pub inputs: Vec<PathBuf>,
    /// Format of the files; none = their names decide.
    pub format: Option<Format>,
    /// Field of a JSON line, or column of a Parquet file, that contains the text.
    pub field: String,
    /// Path of the dataset, without `.bin` or `.idx`.
    pub output: PathBuf,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// How documents are divided into three datasets; none = a single dataset.
    pub split: Option<Split>,
    /// Threads that tokenize, at least 1.
    pub threads: usize,
    /// Maximum number of lines, over all inputs, that are skipped because they are not JSON. One more ends the build.
    pub skip_malformed: u64,
    /// Whether an existing dataset is replaced.
    pub overwrite: bool,
}

impl Build {
    /// A build of one dataset from texts, with the format given by each file's name, in one thread.
    #[must_use]
    pub fn new(inputs: Vec<PathBuf>, output: PathBuf, tokenizer: Tokenizer) -> Build {
        Build {
            inputs,
            format: None,
            field: "text".to_owned(),
            output,
            tokenizer,
            split: None,
            threads: 1,
            skip_malformed: 0,
            overwrite: false,
        }
    }
}

/// A dataset that was built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Built {
    /// Path of the dataset, without `.bin` or `.idx`.
    pub path: PathBuf,
    /// Bytes of its text, after decompression and without other fields.
    pub text_bytes: u64,
    /// What was skipped in all inputs together, even if they became several datasets.
    pub skipped: Skipped,
    /// The description that was written with it.
    pub sidecar: Sidecar,
}

/// Builds one dataset, or those of a split. The files appear under their names only when all are complete, each index after its tokens.
/// `progress` is called with the number of input bytes that were processed since the last call.
///
/// # Errors
/// An input cannot be read or tokenized, there is no token in all of them together, an output exists, either is no path of this machine, or a
/// write fails. Existing files are then unchanged, except if a complete file cannot be renamed: then the dataset that was to be replaced has no
/// index any more.
pub fn build(request: &Build, progress: &mut dyn FnMut(u64)) -> Result<Vec<Built>, DataError> {
    build_while(request, &mut |bytes| {
        progress(bytes);
        ControlFlow::Continue(())
    })
}

/// Like [`build`], but `progress` may stop the build: then its files are removed. It is asked once more, about no bytes, when all is read.
///
/// # Errors
/// As [`build`], or the build was stopped.
pub fn build_while(
    request: &Build,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Vec<Built>, DataError> {
    check(request)?;
    let inputs = request.inputs.iter();
    let inputs: Result<Vec<Input>, _> = inputs.map(|path| Input::of(path, request.format)).collect();
    let inputs = inputs?;
    let encoding = Encoding {
        encoder: request.tokenizer.encoder()?,
        end: request.tokenizer.end_of_document(),
        token_type: output::token_type(&request.tokenizer),
        field: &request.field,
        split: request.split,
    };
    let mut outputs = Outputs::create(request)?;
    let mut skips = Skips::new(request.skip_malformed);
    pipeline::run(&inputs, &encoding, request.threads, |outcome| {
        skips.add(outcome.malformed)?;
        let encoded = outcome.encoded?;
        if progress(encoded.input_bytes).is_break() {
            return Err(DataError::Stopped);
        }
        outputs.write(encoded)
    })?;
    // What stopped the build may have ended the program that writes an input too: what was read is then not all of it, and no batch need follow.
    if progress(0).is_break() {
        return Err(DataError::Stopped);
    }
    if !outputs.has_tokens() {
        return Err(DataError::NoTokens(request.output.clone()));
    }
    let skipped = skips.skipped();
    let mut built = outputs.complete(&request.tokenizer)?;
    for dataset in &mut built {
        dataset.skipped = skipped.clone();
    }
    Ok(built)
}

/// Checks what can be checked before anything is read.
fn check(request: &Build) -> Result<(), DataError> {
    let refused = |what, value: &str, allowed: &str| DataError::Argument {
        what,
        value: value.to_owned(),
        allowed: allowed.to_owned(),
    };
    if request.inputs.is_empty() {
        return Err(refused("inputs", "none", "at least one file of texts"));
    }
    if request.threads == 0 {
        return Err(refused("threads", "0", "at least 1"));
    }
    let output = request.output.to_string_lossy();
    // No job could name the dataset, or its files would be hidden.
    if has_suffix(&request.output) {
        return Err(refused("output", &output, WITHOUT_SUFFIX));
    }
    if matches!(output.rsplit('/').next(), None | Some("" | "." | "..")) {
        let allowed = "a path that ends with the name of the dataset, such as data/web";
        return Err(refused("output", &output, allowed));
    }
    // As a path it would be a folder of this name, and nothing would reach the store.
    if scheme(&request.output).is_some() {
        return Err(refused(
            "output",
            &output,
            "a path of this machine: a dataset is built on a disk; its files .bin, .idx and .json are then copied to a bucket with the cloud's own tool",
        ));
    }
    if let Some(input) = request.inputs.iter().find(|path| scheme(path).is_some()) {
        return Err(refused(
            "input",
            &input.to_string_lossy(),
            "a path of this machine: texts are read from a disk, onto which the cloud's own tool copies them",
        ));
    }
    Ok(())
}
