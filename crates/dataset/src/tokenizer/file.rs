//! A tokenizer that comes as a `tokenizer.json`, with the other files of the Hugging Face libraries in the same folder.

use super::published;
use super::words::Words;
use crate::error::DataError;
use crate::files::Files;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::tokenizer::DecodeStream;
use tokenizers::{
    DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer,
};

/// The file that defines a tokenizer.
pub(super) const JSON: &str = "tokenizer.json";
/// The file that says which token ends a text.
pub(super) const CONFIG: &str = "tokenizer_config.json";
/// Other files of a tokenizer, which are copied with it if they exist.
const OTHERS: [&str; 6] = [
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];
/// Maximum bytes of a tokenizer's file: those of today's largest vocabularies have 35 MB.
const BYTES_MAX: u64 = 256 << 20;
/// Tokens that end a document in well-known tokenizers: GPT-2's and Qwen's, Llama 3's, Llama 2's and T5's, Gemma's, DeepSeek's.
const ENDS_OF_DOCUMENTS: [&str; 5] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
];

/// Which token ends a document.
pub(super) enum End<'a> {
    /// The token that the tokenizer's files name, or a well-known one.
    OfTokenizer,
    /// The token of this text.
    Text(&'a str),
    /// The token of this id.
    Id(u32),
}

/// A tokenizer of the Hugging Face libraries.
pub struct TokenizerFile {
    inner: Tokenizer,
    /// Set if a text's tokens are those of its words.
    words: Option<Words>,
    files: Vec<(String, Vec<u8>)>,
    sha256: String,
    vocabulary: u32,
    end: (String, u32),
    /// The token that begins a text, if its files name one.
    begin: Option<u32>,
}

impl fmt::Debug for TokenizerFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenizerFile {
            sha256,
            vocabulary,
            end,
            ..
        } = self;
        write!(
            f,
            "TokenizerFile {{ sha256: {sha256}, vocabulary: {vocabulary}, end: {end:?} }}"
        )
    }
}

impl TokenizerFile {
    pub(super) fn read(path: &Path, end: &End) -> Result<TokenizerFile, DataError> {
        let store = Files::default();
        let not_there = || std::io::Error::from(ErrorKind::NotFound);
        let json = bounded(&store, path)?;
        let json = json.ok_or_else(|| DataError::io("open", path)(not_there()))?;
        let mut inner = parse(&json, path)?;
        // A training set contains whole texts, neither truncated nor padded.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| bad(path, error))?;
        inner.set_encode_special_tokens(true);
        if let ModelWrapper::BPE(model) = inner.get_model()
            && let Some(dropout) = model.dropout.filter(|dropout| *dropout > 0.0)
        {
            let allowed = "none: the tokens of a text would be others each time";
            return Err(DataError::malformed(path, "model.dropout", dropout, allowed));
        }
        let greatest = inner.get_vocab(true).into_values().max();
        let vocabulary = greatest
            .and_then(|id| id.checked_add(1))
            .filter(|n| i32::try_from(*n).is_ok());
        let Some(vocabulary) = vocabulary else {
            let found = greatest.map_or("none".to_owned(), |id| id.to_string());
            return Err(DataError::malformed(
                path,
                "greatest token id",
                found,
                format!("below {}", i32::MAX),
            ));
        };
        let mut files = vec![(JSON.to_owned(), json)];
        for name in OTHERS {
            if let Some(content) = bounded(&store, &path.with_file_name(name))? {
                files.push((name.to_owned(), content));
            }
        }
        let sha256 = hex::encode(Sha256::digest(&files[0].1));
        let end = end_of_document(&inner, (&store, path), &files, end)?;
        let begin = named(&inner, &files, "bos_token").map(|(_, id)| id);
        // It tokenizes two short texts.
        let words = catch_unwind(AssertUnwindSafe(|| Words::of(&inner))).map_err(|_| failed(path))?;
        Ok(TokenizerFile {
            inner,
            words,
            files,
            sha256,
            vocabulary,
            end,
            begin,
        })
    }

    pub(super) fn vocabulary(&self) -> u32 {
        self.vocabulary
    }

    pub(super) fn end_of_document(&self) -> u32 {
        self.end.1
    }

    pub(super) fn begin_of_text(&self) -> Option<u32> {
        self.begin
    }

    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }

    pub(super) fn files(&self) -> &[(String, Vec<u8>)] {
        &self.files
    }

    /// Its files, and a description for the Hugging Face libraries if none of its files is one.
    pub(super) fn published(&self, longest: u32) -> Vec<(String, Vec<u8>)> {
        let mut files = self.files.clone();
        if !files.iter().any(|(name, _)| name == CONFIG) {
            // It is not known which token begins a text.
            let config = published::tokenizer_config(None, &self.end.0, longest);
            files.push((CONFIG.to_owned(), config.to_string().into_bytes()));
        }
        files
    }

    /// A decoder for tokens that come one by one; control tokens have no text.
    pub(super) fn decoder(&self) -> FileDecoder<'_> {
        FileDecoder(self.inner.decode_stream(true))
    }

    /// The tokens of a text, including those that the tokenizer adds around each text, such as one that begins it.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let by_words = self
            .words
            .as_ref()
            .and_then(|words| words.encode(&self.inner, text));
        let ids = match by_words {
            Some(ids) => ids,
            None => {
                let encoded = self.inner.encode_fast(text, true).map_err(|e| e.to_string())?;
                encoded.get_ids().to_vec()
            }
        };
        self.within_vocabulary(ids)
    }

    /// The same for a text that may spell control tokens. A token that the tokenizer adds before each text is not added to a text that
    /// begins with it.
    pub(super) fn encode_with_control(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut inner = self.inner.clone();
        inner.set_encode_special_tokens(false);
        let encode = |around: bool| -> Result<Vec<u32>, String> {
            let encoded = inner.encode_fast(text, around).map_err(|e| e.to_string())?;
            Ok(encoded.get_ids().to_vec())
        };
        let (whole, bare) = (encode(true)?, encode(false)?);
        let before = match bare.is_empty() {
            true => 0,
            false => whole
                .windows(bare.len())
                .rposition(|part| part == bare)
                .unwrap_or(0),
        };
        self.within_vocabulary(match bare.starts_with(&whole[..before]) {
            true => whole[before..].to_vec(),
            false => whole,
        })
    }

    /// The first control token that a text spells.
    pub(super) fn control_token_in(&self, text: &str) -> Option<String> {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        let control = added
            .values()
            .filter(|token| token.special && !token.content.is_empty());
        let found = control.filter_map(|token| Some((text.find(token.content.as_str())?, token)));
        // Of two at the same position the longer one is used, as in the library.
        let first = found.min_by_key(|(at, token)| (*at, Reverse(token.content.len())));
        first.map(|(_, token)| token.content.clone())
    }

    fn within_vocabulary(&self, ids: Vec<u32>) -> Result<Vec<u32>, String> {
        // Tokens that are added around a text need not be in the vocabulary.
        match ids.iter().find(|id| **id >= self.vocabulary) {
            Some(id) => Err(format!(
                "token {id} is not in its vocabulary of {}",
                self.vocabulary
            )),
            None => Ok(ids),
        }
    }
}

/// Decodes tokens that come one by one.
pub(super) struct FileDecoder<'a>(
    DecodeStream<
        'a,
        ModelWrapper,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    >,
);

impl FileDecoder<'_> {
    pub(super) fn push(&mut self, token: u32) -> Vec<u8> {
        // An invalid token has no text.
        let text = self.0.step(token).ok().flatten();
        text.map_or(Vec::new(), String::into_bytes)
    }
}

/// Checks that a file is a `tokenizer.json`.
pub(super) fn check(path: &Path) -> Result<(), DataError> {
    let json = bounded(&Files::default(), path)?;
    let not_there = || DataError::io("open", path)(ErrorKind::NotFound.into());
    parse(&json.ok_or_else(not_there)?, path).map(|_| ())
}

/// Reads the content of a `tokenizer.json`.
fn parse(json: &[u8], path: &Path) -> Result<Tokenizer, DataError> {
    // The library panics on some malformed files.
    let read = catch_unwind(|| Tokenizer::from_bytes(json));
    read.map_err(|_| failed(path))?.map_err(|error| bad(path, error))
}

fn bad(path: &Path, error: impl ToString) -> DataError {
    DataError::malformed(path, "tokenizer", error, "what the Hugging Face libraries write")
}

fn failed(path: &Path) -> DataError {
    bad(path, "its reader has failed, as is said above")
}

fn bounded(store: &Files, path: &Path) -> Result<Option<Vec<u8>>, DataError> {
    if path.is_dir() {
        return Ok(None);
    }
    let file = match store.open(path) {
        Ok(file) => file,
        Err(DataError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.reader(0)
        .take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(DataError::io("read", path))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(DataError::malformed(
            path,
            "bytes",
            format!("more than {BYTES_MAX}"),
            format!("at most {BYTES_MAX}"),
        ));
    }
    Ok(Some(bytes))
}

/// The token that ends a document: its text and its id.
fn end_of_document(
    inner: &Tokenizer,
    (store, path): (&Files, &Path),
    files: &[(String, Vec<u8>)],
    end: &End,
) -> Result<(String, u32), DataError> {
    let known = |text: &str| Some((text.to_owned(), inner.token_to_id(text)?));
    let (found, value) = match end {
        End::Text(text) => (known(text), *text),
        End::Id(id) => (inner.id_to_token(*id).map(|text| (text, *id)), "of the dataset"),
        End::OfTokenizer => {
            let by_name = named(inner, files, "eos_token");
            let by_id = || {
                let config = bounded(store, &path.with_file_name("config.json")).ok()??;
                let id = eos_token_id(&config)?;
                Some((inner.id_to_token(id)?, id))
            };
            let usual = || ENDS_OF_DOCUMENTS.iter().find_map(|text| known(text));
            (by_name.or_else(by_id).or_else(usual), "not known")
        }
    };
    found.ok_or_else(|| {
        let allowed = "a token of the tokenizer; --end-of-document names it by its text";
        DataError::malformed(path, "end of document", value, allowed)
    })
}

/// A token that `tokenizer_config.json` names, as a text or as a mapping that contains it: its text and its id.
fn named(inner: &Tokenizer, files: &[(String, Vec<u8>)], field: &str) -> Option<(String, u32)> {
    let (_, config) = files.iter().find(|(name, _)| name == CONFIG)?;
    let config: Value = serde_json::from_slice(config).ok()?;
    let token = &config[field];
    let text = token.as_str().or_else(|| token["content"].as_str())?;
    Some((text.to_owned(), inner.token_to_id(text)?))
}

/// `eos_token_id` of a `config.json`: an id, or several, of which the first ends a document.
fn eos_token_id(config: &[u8]) -> Option<u32> {
    let config: Value = serde_json::from_slice(config).ok()?;
    let id = &config["eos_token_id"];
    let id = id.as_u64().or_else(|| id[0].as_u64())?;
    u32::try_from(id).ok()
}
