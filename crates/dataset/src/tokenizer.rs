//! Tokenizers.

mod published;

use crate::error::DataError;
use std::fmt;
use std::str::FromStr;
use tiktoken_rs::CoreBPE;

/// A tokenizer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tokenizer {
    /// One token for each byte, 0 to 255, and 256 as the end of a document: vocabulary 257. For small models and any bytes.
    Byte,
    /// GPT-2's byte-pair encoding (Radford et al. 2019): vocabulary 50,257, `<|endoftext|>` = 50,256. For UTF-8 text.
    Gpt2,
}

impl Tokenizer {
    /// Number of tokens.
    #[must_use]
    pub fn vocabulary(self) -> u32 {
        self.end_of_document() + 1
    }
    /// The token after each document.
    #[must_use]
    pub fn end_of_document(self) -> u32 {
        match self {
            Tokenizer::Byte => 256,
            Tokenizer::Gpt2 => 50_256,
        }
    }
    /// Its name on the command line and in the sidecar.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Tokenizer::Byte => "byte",
            Tokenizer::Gpt2 => "gpt2",
        }
    }
    /// The tokenizer that fits a model's vocabulary size: the tokenizer's own size, or up to the next multiple of 128 (models
    /// are padded for speed). None: no tokenizer fits.
    #[must_use]
    pub fn of_vocabulary(size: u32) -> Option<Tokenizer> {
        let padded = |t: &Tokenizer| (t.vocabulary()..=t.vocabulary().next_multiple_of(128)).contains(&size);
        [Tokenizer::Byte, Tokenizer::Gpt2].into_iter().find(padded)
    }
    /// The files that the Hugging Face libraries read: names and contents. `longest`: the model's sequence length.
    ///
    /// # Errors
    /// GPT-2's embedded table cannot be read.
    pub fn published(self, longest: u32) -> Result<[(&'static str, serde_json::Value); 2], DataError> {
        let tokens: Vec<Vec<u8>> = match self.encoder()? {
            Encoder::Byte => (0..=255).map(|byte| vec![byte]).collect(),
            Encoder::Gpt2(bpe) => (0..self.end_of_document())
                .map(|id| bpe.decode_bytes(&[id]).unwrap_or_default())
                .collect(),
        };
        Ok([
            ("tokenizer.json", published::tokenizer_json(&tokens)),
            ("tokenizer_config.json", published::tokenizer_config(longest)),
        ])
    }
    /// Makes an encoder. For GPT-2 this is slow: its table is built from data in the binary.
    ///
    /// # Errors
    /// GPT-2's embedded table cannot be read.
    pub fn encoder(self) -> Result<Encoder, DataError> {
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
        }
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Tokenizer {
    type Err = DataError;
    fn from_str(name: &str) -> Result<Tokenizer, DataError> {
        let known = [Tokenizer::Byte, Tokenizer::Gpt2]
            .into_iter()
            .find(|t| t.name() == name);
        known.ok_or_else(|| DataError::Argument {
            what: "tokenizer",
            value: name.to_owned(),
            allowed: "byte or gpt2".to_owned(),
        })
    }
}

/// A tokenizer with its table.
pub enum Encoder {
    /// Bytes need no table.
    Byte,
    /// GPT-2's.
    Gpt2(Box<CoreBPE>),
}

impl Encoder {
    /// The bytes of a token's text: none for the end of a document and for what is no token. A character may be spread over several tokens.
    #[must_use]
    pub fn decode(&self, token: u32) -> Vec<u8> {
        match self {
            Encoder::Byte => u8::try_from(token).map_or(Vec::new(), |byte| vec![byte]),
            Encoder::Gpt2(_) if token >= Tokenizer::Gpt2.end_of_document() => Vec::new(),
            Encoder::Gpt2(bpe) => bpe.decode_bytes(&[token]).unwrap_or_default(),
        }
    }

    /// The tokens of a piece of text.
    ///
    /// # Errors
    /// GPT-2 fails at bytes that are not UTF-8; the error is the offset of the first.
    pub fn encode(&self, piece: &[u8]) -> Result<Vec<u32>, usize> {
        match self {
            Encoder::Byte => Ok(piece.iter().map(|b| u32::from(*b)).collect()),
            // "Ordinary": text that spells <|endoftext|> stays text.
            Encoder::Gpt2(bpe) => match std::str::from_utf8(piece) {
                Ok(text) => Ok(bpe.encode_ordinary(text)),
                Err(error) => Err(error.valid_up_to()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tokenizer;

    #[test]
    fn gpt2_tokens_are_those_of_the_published_tokenizer() {
        let encoder = Tokenizer::Gpt2.encoder().unwrap();
        assert_eq!(encoder.encode(b"Hello world").unwrap(), [15496, 995]);
        assert_eq!(
            encoder.encode(b"In the beginning\n\n").unwrap(),
            [818, 262, 3726, 628]
        );
        assert!(
            encoder
                .encode(b"<|endoftext|>")
                .unwrap()
                .iter()
                .all(|t| *t < 50_256)
        );
        assert_eq!(encoder.encode(b"ok \xff"), Err(3));
        assert_eq!(Tokenizer::Gpt2.vocabulary(), 50_257);
    }

    #[test]
    fn tokens_are_decoded_to_the_text_they_came_from() {
        for tokenizer in [Tokenizer::Byte, Tokenizer::Gpt2] {
            let encoder = tokenizer.encoder().unwrap();
            let text = "In the beginning,\n\u{2014} \u{1F600} caf\u{e9}".as_bytes();
            let tokens = encoder.encode(text).unwrap();
            let decoded: Vec<u8> = tokens.iter().flat_map(|t| encoder.decode(*t)).collect();
            assert_eq!(decoded, text, "{tokenizer}");
            for none in [tokenizer.end_of_document(), tokenizer.vocabulary(), u32::MAX] {
                assert!(encoder.decode(none).is_empty(), "{tokenizer} {none}");
            }
        }
    }

    #[test]
    fn byte_tokens_are_the_bytes() {
        let encoder = Tokenizer::Byte.encoder().unwrap();
        assert_eq!(encoder.encode(&[0, 255, b'a']).unwrap(), [0, 255, 97]);
        assert_eq!(Tokenizer::Byte.vocabulary(), 257);
        assert!(
            "bytes"
                .parse::<Tokenizer>()
                .unwrap_err()
                .to_string()
                .contains("byte or gpt2")
        );
    }
}
