//! Tokenizers.

mod file;
mod published;
mod words;

use crate::error::DataError;
use crate::files::Files;
use crate::sidecar::{Sidecar, with_suffix};
use file::{End, FileDecoder, TokenizerFile};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tiktoken_rs::CoreBPE;
use varuna_api::Data;

/// A text that different tokenizers take apart differently: words, a number, spaces, line breaks, and characters of several bytes.
const PROBE: &str = "In the beginning, 1 Kings 17:24 said  it:\n\n\u{2014} caf\u{e9} \u{1F600}";

/// A tokenizer.
#[derive(Clone, Debug)]
pub enum Tokenizer {
    /// One token for each byte, 0 to 255, and 256 as the end of a document: vocabulary 257. For small models and any bytes.
    Byte,
    /// GPT-2's byte-pair encoding (Radford et al. 2019): vocabulary 50,257, `<|endoftext|>` = 50,256. For UTF-8 text.
    Gpt2,
    /// Any tokenizer of the Hugging Face libraries, from its `tokenizer.json`. For UTF-8 text.
    File(Arc<TokenizerFile>),
}

impl Tokenizer {
    /// The tokenizer given by a name (`byte`, `gpt2`), by the path of a `tokenizer.json` or of a folder that has one, or by the path of a
    /// dataset without `.bin`. `end_of_document`: the text of the token after each document, if it is not the tokenizer's own.
    ///
    /// # Errors
    /// There is no such tokenizer, it cannot be read, or no token is known to end a document.
    pub fn open(tokenizer: &str, end_of_document: Option<&str>) -> Result<Tokenizer, DataError> {
        let named = [Tokenizer::Byte, Tokenizer::Gpt2]
            .into_iter()
            .find(|t| t.name() == tokenizer);
        if let Some(named) = named {
            let Some(text) = end_of_document else {
                return Ok(named);
            };
            return Err(DataError::Argument {
                what: "end of document",
                value: text.to_owned(),
                allowed: format!("none with the tokenizer {named}, which has its own"),
            });
        }
        let path = Path::new(tokenizer);
        let end = end_of_document.map_or(End::OfTokenizer, End::Text);
        if path.is_dir() {
            return Tokenizer::of_file(&path.join(file::JSON), &end);
        }
        if path.is_file() {
            return Tokenizer::of_file(path, &end);
        }
        let description = with_suffix(path, "json");
        let Some(sidecar) = Sidecar::read(&Files::default(), &description)? else {
            return Err(DataError::Argument {
                what: "tokenizer",
                value: tokenizer.to_owned(),
                allowed:
                    "byte, gpt2, or the path of a tokenizer.json, of a folder that has one, or of a dataset"
                        .to_owned(),
            });
        };
        Tokenizer::of_dataset(&description, &sidecar, end_of_document)
    }

    /// Checks that a file is a `tokenizer.json`, whatever token ends its documents.
    ///
    /// # Errors
    /// The file cannot be read, or is none.
    pub fn check_file(path: &Path) -> Result<(), DataError> {
        file::check(path)
    }

    /// The tokenizer with which a job's datasets were built. None if a dataset has no description, or if they were built with different
    /// tokenizers.
    ///
    /// # Errors
    /// A description, or a file of the tokenizer, cannot be read.
    pub fn of_data(data: &Data) -> Result<Option<Tokenizer>, DataError> {
        let files = Files::default();
        let mut found: Option<(PathBuf, Sidecar)> = None;
        for source in &data.train {
            let description = with_suffix(Path::new(&source.path), "json");
            let Some(sidecar) = Sidecar::read(&files, &description)? else {
                return Ok(None);
            };
            match &found {
                Some((_, first)) if !first.has_tokenizer_of(&sidecar) => return Ok(None),
                Some(_) => {}
                None => found = Some((description, sidecar)),
            }
        }
        let read =
            |(description, sidecar): (PathBuf, Sidecar)| Tokenizer::of_dataset(&description, &sidecar, None);
        found.map(read).transpose()
    }

    fn of_file(path: &Path, end: &End) -> Result<Tokenizer, DataError> {
        Ok(Tokenizer::File(Arc::new(TokenizerFile::read(path, end)?)))
    }

    /// The tokenizer that a dataset's description names.
    fn of_dataset(description: &Path, sidecar: &Sidecar, end: Option<&str>) -> Result<Tokenizer, DataError> {
        let Some(folder) = &sidecar.tokenizer_files else {
            return match sidecar.tokenizer.as_str() {
                name @ ("byte" | "gpt2") => Tokenizer::open(name, end),
                other => Err(DataError::malformed(
                    description,
                    "tokenizer",
                    other,
                    "byte, gpt2, or one with tokenizerFiles",
                )),
            };
        };
        // Another path would lead out of the dataset's folder, or from a store to this machine's disk.
        if Path::new(folder).file_name() != Some(OsStr::new(folder)) {
            let allowed = "the name of a folder beside it";
            return Err(DataError::malformed(
                description,
                "tokenizerFiles",
                folder,
                allowed,
            ));
        }
        let path = description.with_file_name(folder).join(file::JSON);
        let end = end.map_or(End::Id(sidecar.end_of_document), End::Text);
        let found = TokenizerFile::read(&path, &end)?;
        if sidecar
            .tokenizer_sha256
            .as_deref()
            .is_some_and(|sha256| sha256 != found.sha256())
        {
            let allowed = format!("that of the description {}", description.display());
            return Err(DataError::malformed(&path, "SHA-256", found.sha256(), allowed));
        }
        Ok(Tokenizer::File(Arc::new(found)))
    }

    /// Number of tokens: all ids are below it.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        match self {
            Tokenizer::Byte => 257,
            Tokenizer::Gpt2 => 50_257,
            Tokenizer::File(file) => file.vocabulary(),
        }
    }
    /// The token after each document.
    #[must_use]
    pub fn end_of_document(&self) -> u32 {
        match self {
            Tokenizer::Byte => 256,
            Tokenizer::Gpt2 => 50_256,
            Tokenizer::File(file) => file.end_of_document(),
        }
    }
    /// The token that begins a text, if known. GPT-2's is the one that ends the document before.
    #[must_use]
    pub fn begin_of_text(&self) -> Option<u32> {
        match self {
            Tokenizer::Byte | Tokenizer::Gpt2 => Some(self.end_of_document()),
            Tokenizer::File(file) => file.begin_of_text(),
        }
    }
    /// Whether it came from a `tokenizer.json` of this content.
    #[must_use]
    pub fn was_made_from(&self, json: &[u8]) -> bool {
        let mut files = self.files().iter();
        files.any(|(name, content)| name == file::JSON && content == json)
    }
    /// Whether a dataset, whose description has no digest of a tokenizer's file, has the tokens that this tokenizer makes of its texts, as far as
    /// is known.
    ///
    /// # Errors
    /// GPT-2's embedded table cannot be read.
    pub fn made(&self, dataset: &Sidecar) -> Result<bool, DataError> {
        let named = match dataset.tokenizer.as_str() {
            "byte" => Tokenizer::Byte,
            "gpt2" => Tokenizer::Gpt2,
            // One that came as a file, of which nobody knows which it is.
            _ => return Ok(true),
        };
        // Those that are part of this program are also published as files, which other programs write differently.
        Ok(self.encoder()?.encode(PROBE.as_bytes()) == named.encoder()?.encode(PROBE.as_bytes()))
    }
    /// Its name in the sidecar. For the first two it is also their name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Tokenizer::Byte => "byte",
            Tokenizer::Gpt2 => "gpt2",
            Tokenizer::File(_) => file::JSON,
        }
    }

    /// SHA-256 of its `tokenizer.json` in hex, if it came as a file.
    #[cfg(feature = "build")]
    pub(crate) fn sha256(&self) -> Option<&str> {
        match self {
            Tokenizer::Byte | Tokenizer::Gpt2 => None,
            Tokenizer::File(file) => Some(file.sha256()),
        }
    }

    /// The files that it came from, by name; empty for tokenizers that are part of this program.
    pub(crate) fn files(&self) -> &[(String, Vec<u8>)] {
        match self {
            Tokenizer::Byte | Tokenizer::Gpt2 => &[],
            Tokenizer::File(file) => file.files(),
        }
    }
    /// The tokenizer that fits a model's vocabulary size: the tokenizer's own size, or up to the next multiple of 128 (models
    /// are padded for speed). None: no tokenizer that is part of this program fits.
    #[must_use]
    pub fn of_vocabulary(size: u32) -> Option<Tokenizer> {
        let padded = |t: &Tokenizer| (t.vocabulary()..=t.vocabulary().next_multiple_of(128)).contains(&size);
        [Tokenizer::Byte, Tokenizer::Gpt2].into_iter().find(padded)
    }
    /// The files that the Hugging Face libraries read: names and contents. `longest`: the model's sequence length.
    ///
    /// # Errors
    /// GPT-2's embedded table cannot be read.
    pub fn published(&self, longest: u32) -> Result<Vec<(String, Vec<u8>)>, DataError> {
        let tokens: Vec<Vec<u8>> = match self.encoder()? {
            Encoder::Byte => (0..=255).map(|byte| vec![byte]).collect(),
            Encoder::Gpt2(bpe) => (0..self.end_of_document())
                .map(|id| bpe.decode_bytes(&[id]).unwrap_or_default())
                .collect(),
            Encoder::File(file) => return Ok(file.published(longest)),
        };
        let config = published::tokenizer_config(Some(published::END), published::END, longest);
        Ok(vec![
            (
                file::JSON.to_owned(),
                published::tokenizer_json(&tokens).to_string().into_bytes(),
            ),
            (file::CONFIG.to_owned(), config.to_string().into_bytes()),
        ])
    }
    /// The files that are stored with a model's checkpoints for a tokenizer that came as a file: its files, and a `config.json` that says
    /// which token ended the documents the model was trained on. None for tokenizers that are part of this program.
    #[must_use]
    pub fn kept_with_model(&self) -> Option<Vec<(String, Vec<u8>)>> {
        let Tokenizer::File(file) = self else {
            return None;
        };
        let mut config = serde_json::json!({ "eos_token_id": file.end_of_document() });
        if let Some(begin) = file.begin_of_text() {
            config["bos_token_id"] = begin.into();
        }
        let config = ("config.json".to_owned(), config.to_string().into_bytes());
        Some(file.files().iter().cloned().chain([config]).collect())
    }
    /// Makes an encoder. For GPT-2 this is slow: its table is built from data in the binary.
    ///
    /// # Errors
    /// GPT-2's embedded table cannot be read.
    pub fn encoder(&self) -> Result<Encoder, DataError> {
        match self {
            Tokenizer::Byte => Ok(Encoder::Byte),
            Tokenizer::Gpt2 => match tiktoken_rs::r50k_base() {
                Ok(bpe) => Ok(Encoder::Gpt2(Box::new(bpe))),
                Err(error) => Err(DataError::Argument {
                    what: "tokenizer gpt2",
                    value: error.to_string(),
                    allowed: "the embedded table".to_owned(),
                }),
            },
            Tokenizer::File(file) => Ok(Encoder::File(file.clone())),
        }
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tokenizer with its table. Threads share it.
pub enum Encoder {
    /// Bytes need no table.
    Byte,
    /// GPT-2's.
    /// GPT-2's.
    Gpt2(Box<CoreBPE>),
    /// One that came as a file.
    File(Arc<TokenizerFile>),
}

/// Decodes tokens that come one by one.
pub struct Decoder<'a>(Parts<'a>);

enum Parts<'a> {
    Byte,
    Gpt2(&'a CoreBPE),
    File(Box<FileDecoder<'a>>),
}

impl Decoder<'_> {
    /// The bytes that the next token adds to the text: none for the end of a document or for an invalid token. A character may be spread
    /// over several tokens; a tokenizer that came as a file returns its bytes with the last of them.
    pub fn push(&mut self, token: u32) -> Vec<u8> {
        match &mut self.0 {
            Parts::Byte => u8::try_from(token).map_or(Vec::new(), |byte| vec![byte]),
            Parts::Gpt2(_) if token >= Tokenizer::Gpt2.end_of_document() => Vec::new(),
            Parts::Gpt2(bpe) => bpe.decode_bytes(&[token]).unwrap_or_default(),
            Parts::File(file) => file.push(token),
        }
    }
}

/// Why a text has no tokens.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoTokens {
    /// The text is not UTF-8, from this byte on.
    #[error("it is no UTF-8 at byte {0}")]
    NotUtf8(usize),
    /// The tokenizer refuses it, for this reason.
    #[error("{0}")]
    Refused(String),
}

impl Encoder {
    /// Whether only a whole document gives the right tokens. With other tokenizers, a document's tokens are those of its pieces.
    #[cfg(feature = "build")]
    pub(crate) fn takes_whole_documents(&self) -> bool {
        matches!(self, Encoder::File(_))
    }

    /// A decoder for tokens that come one by one.
    #[must_use]
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder(match self {
            Encoder::Byte => Parts::Byte,
            Encoder::Gpt2(bpe) => Parts::Gpt2(bpe),
            Encoder::File(file) => Parts::File(Box::new(file.decoder())),
        })
    }

    /// A decoder for tokens that follow these, whose text is not returned again. A tokenizer of pieces omits the space before the first
    /// word of a text, so it has to know that there are words before.
    #[must_use]
    pub fn decoder_after(&self, tokens: &[u32]) -> Decoder<'_> {
        let mut decoder = self.decoder();
        for token in tokens {
            decoder.push(*token);
        }
        decoder
    }

    /// The tokens of a text in which control tokens are not recognised: a text that spells `<|endoftext|>` stays text.
    ///
    /// # Errors
    /// The text is not UTF-8, or the tokenizer refuses it.
    pub fn encode(&self, text: &[u8]) -> Result<Vec<u32>, NoTokens> {
        match self {
            Encoder::Byte => Ok(text.iter().map(|b| u32::from(*b)).collect()),
            Encoder::Gpt2(bpe) => Ok(bpe.encode_ordinary(utf8(text)?)),
            Encoder::File(file) => file.encode(utf8(text)?).map_err(NoTokens::Refused),
        }
    }

    /// The tokens of a text in which control tokens may be spelled, such as `<|im_start|>`. The byte tokenizer has none.
    ///
    /// # Errors
    /// The text is not UTF-8, or the tokenizer refuses it.
    pub fn encode_with_control(&self, text: &[u8]) -> Result<Vec<u32>, NoTokens> {
        match self {
            Encoder::Byte => self.encode(text),
            Encoder::Gpt2(bpe) => Ok(bpe.encode_with_special_tokens(utf8(text)?)),
            Encoder::File(file) => file.encode_with_control(utf8(text)?).map_err(NoTokens::Refused),
        }
    }

    /// The first control token that a text spells, if any.
    #[must_use]
    pub fn control_token_in(&self, text: &[u8]) -> Option<String> {
        let text = utf8(text).ok()?;
        match self {
            Encoder::Byte => None,
            Encoder::Gpt2(_) => text.contains(published::END).then(|| published::END.to_owned()),
            Encoder::File(file) => file.control_token_in(text),
        }
    }
}

fn utf8(text: &[u8]) -> Result<&str, NoTokens> {
    std::str::from_utf8(text).map_err(|error| NoTokens::NotUtf8(error.valid_up_to()))
}

#[cfg(test)]
mod tests;
