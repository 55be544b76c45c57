//! Builds an indexed dataset from text files. Memory does not grow with the text.

use crate::error::DataError;
use crate::index::{IndexBuilder, TokenType};
use crate::sidecar::{Sidecar, with_suffix};
use crate::text::Pieces;
use crate::tokenizer::{Encoder, Tokenizer};
use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// What to build.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Build {
    /// Text files; `.gz` files are decompressed. Each file is one document.
    pub inputs: Vec<PathBuf>,
    /// Path of the dataset, without `.bin` or `.idx`.
    pub output: PathBuf,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Whether an existing dataset is replaced.
    pub overwrite: bool,
}

/// What was built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Bytes of text, after decompression.
    pub text_bytes: u64,
    /// The description that was written with the dataset.
    pub sidecar: Sidecar,
}

/// Builds a dataset. The files appear under their names only when they are complete, the index last.
///
/// # Errors
/// An input cannot be read or tokenized, an output exists, or a write fails. Existing files are then unchanged.
pub fn build(request: &Build) -> Result<Summary, DataError> {
    if request.inputs.is_empty() {
        let (value, allowed) = ("none".to_owned(), "at least one text file".to_owned());
        return Err(DataError::Argument {
            what: "inputs",
            value,
            allowed,
        });
    }
    let outputs = ["bin", "json", "idx"].map(|extension| with_suffix(&request.output, extension));
    if let Some(exists) = outputs.iter().find(|path| !request.overwrite && path.exists()) {
        return Err(DataError::Exists(exists.clone()));
    }
    let partial = outputs.clone().map(|path| with_suffix(&path, "partial"));
    if let Some(folder) = request.output.parent() {
        std::fs::create_dir_all(folder).map_err(DataError::io("create", folder))?;
    }
    let built = write_all(request, &partial);
    if built.is_err() {
        for path in &partial {
            // The file may not exist yet.
            let _ = std::fs::remove_file(path);
        }
    }
    let summary = built?;
    for (from, to) in partial.iter().zip(&outputs) {
        std::fs::rename(from, to).map_err(DataError::io("rename", from))?;
    }
    Ok(summary)
}

fn write_all(request: &Build, [bin, json, idx]: &[PathBuf; 3]) -> Result<Summary, DataError> {
    let token_type = TokenType::for_vocabulary(request.tokenizer.vocabulary());
    let create = |path: &Path| File::create(path).map_err(DataError::io("create", path));
    let mut writer = Writer {
        path: bin,
        out: BufWriter::new(create(bin)?),
        digest: Sha256::new(),
        index: IndexBuilder::default(),
        token_type,
    };
    let encoder = request.tokenizer.encoder()?;
    let mut text_bytes = 0;
    for input in &request.inputs {
        text_bytes += writer.document(input, &encoder, request.tokenizer.end_of_document())?;
    }
    writer.out.flush().map_err(DataError::io("write", bin))?;
    writer
        .index
        .write(create(idx)?, token_type)
        .map_err(DataError::io("write", idx))?;
    let (tokens, _, documents) = writer.index.totals();
    let sidecar = Sidecar {
        tokenizer: request.tokenizer.name().to_owned(),
        vocabulary: request.tokenizer.vocabulary(),
        end_of_document: request.tokenizer.end_of_document(),
        tokens,
        documents,
        sha256: hex::encode(writer.digest.finalize()),
    };
    let text = serde_json::to_string_pretty(&sidecar)
        .map_err(|e| DataError::malformed(json, "description", e, "a description that JSON can hold"))?;
    std::fs::write(json, text + "\n").map_err(DataError::io("write", json))?;
    Ok(Summary { text_bytes, sidecar })
}

struct Writer<'a> {
    path: &'a Path,
    out: BufWriter<File>,
    digest: Sha256,
    index: IndexBuilder,
    token_type: TokenType,
}

impl Writer<'_> {
    /// Adds a file as one document. Returns its bytes of text.
    fn document(&mut self, input: &Path, encoder: &Encoder, end: u32) -> Result<u64, DataError> {
        let file = BufReader::new(File::open(input).map_err(DataError::io("open", input))?);
        let text: Box<dyn Read> = match input.extension() {
            Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
            _ => Box::new(file),
        };
        let mut pieces = Pieces::new(text);
        let mut read = 0u64;
        while let Some(piece) = pieces.next().map_err(DataError::io("read", input))? {
            let tokens = encoder.encode(&piece).map_err(|offset| {
                DataError::malformed(
                    input,
                    "byte",
                    read + offset as u64,
                    "UTF-8 text for this tokenizer",
                )
            })?;
            read += piece.len() as u64;
            self.sequence(&tokens)?;
        }
        self.sequence(&[end])?;
        self.index.end_document();
        Ok(read)
    }

    fn sequence(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        let mut bytes = Vec::with_capacity(tokens.len() * self.token_type.width());
        for token in tokens {
            self.token_type.encode(*token, &mut bytes);
        }
        self.digest.update(&bytes);
        self.out
            .write_all(&bytes)
            .map_err(DataError::io("write", self.path))?;
        // A piece is at most 16 MiB of text, so it has fewer than 2^31 tokens.
        self.index
            .push_sequence(i32::try_from(tokens.len()).unwrap_or(i32::MAX));
        Ok(())
    }
}
