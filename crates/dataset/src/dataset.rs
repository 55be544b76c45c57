//! An open dataset: the tokens of each sample.

use crate::error::DataError;
use crate::index::{self, Documents, Index};
use crate::order::Permutation;
use crate::sidecar::{Sidecar, with_suffix};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Pieces of a dataset without a description that go into its fingerprint, evenly spaced: all of it may be terabytes, and every worker reads
/// them when it starts. Other data of the same size has other pieces.
const PIECES: u64 = 64;
/// Bytes of such a piece: what a disk reads at once.
const PIECE_BYTES: u64 = 4096;

/// The index, the builder's description and the file of the tokens, checked against each other.
pub(crate) fn open(prefix: &Path) -> Result<(Index, Option<Sidecar>, File), DataError> {
    let (bin, idx, json) = (
        with_suffix(prefix, "bin"),
        with_suffix(prefix, "idx"),
        with_suffix(prefix, "json"),
    );
    let file = File::open(&bin).map_err(DataError::io("open", &bin))?;
    let length = file.metadata().map_err(DataError::io("read", &bin))?.len();
    let index = index::read(&idx, &bin, length)?;
    let sidecar = Sidecar::read(&json)?;
    if let Some(s) = sidecar.as_ref().filter(|s| s.tokens != index.tokens) {
        let allowed = format!("{}, as the index says", index.tokens);
        return Err(DataError::malformed(&json, "tokens", s.tokens, allowed));
    }
    Ok((index, sidecar, file))
}

/// A digest of the sizes and of pieces of the tokens, in a time that does not grow with them.
fn fingerprint_of(file: &File, path: &Path, index: &Index) -> Result<String, DataError> {
    let Index {
        tokens,
        sequences,
        documents,
        token_type,
    } = *index;
    let width = token_type.width() as u64;
    let mut digest = Sha256::new();
    digest.update(
        [tokens, sequences, documents, width]
            .map(u64::to_le_bytes)
            .concat(),
    );
    let length = tokens.saturating_mul(width);
    let last = length.saturating_sub(PIECE_BYTES);
    let mut piece = vec![0; usize::try_from(length.min(PIECE_BYTES)).unwrap_or(0)];
    let spaced = (0..PIECES).map(|i| u128::from(last) * u128::from(i) / u128::from(PIECES - 1));
    let mut starts: Vec<u64> = spaced.filter_map(|at| u64::try_from(at).ok()).collect();
    starts.dedup();
    for start in starts {
        file.read_exact_at(&mut piece, start)
            .map_err(DataError::io("read", path))?;
        digest.update(&piece);
    }
    Ok(hex::encode(digest.finalize()))
}

/// An open dataset. A sample is a window of `sequence_length` tokens of the concatenated stream and the token after it;
/// windows do not overlap but for that token. The last windows are held out.
pub struct TokenDataset {
    path: PathBuf,
    file: File,
    index: Index,
    documents: Documents,
    sidecar: Option<Sidecar>,
    fingerprint: String,
    sequence_length: u32,
    training: u64,
    held_out: u64,
    seed: u64,
}

impl TokenDataset {
    /// Opens `<prefix>.bin` and `.idx`. `validation_fraction` (0 to 0.5) of the windows, rounded up, are held out.
    ///
    /// # Errors
    /// A file is missing, truncated, or too short for one training sample.
    pub fn open(
        prefix: &Path,
        sequence_length: u32,
        validation_fraction: f64,
        seed: u64,
    ) -> Result<TokenDataset, DataError> {
        let data = TokenDataset::with_held_out(prefix, sequence_length, validation_fraction, seed)?;
        if data.training == 0 {
            return Err(data.too_small(data.held_out + 1));
        }
        Ok(data)
    }

    /// Opens a dataset all of whose windows are held out.
    ///
    /// # Errors
    /// A file is missing, truncated, or too short for one sample.
    pub fn open_held_out(prefix: &Path, sequence_length: u32) -> Result<TokenDataset, DataError> {
        let data = TokenDataset::with_held_out(prefix, sequence_length, 0.0, 0)?;
        if data.training == 0 {
            return Err(data.too_small(1));
        }
        Ok(TokenDataset {
            training: 0,
            held_out: data.training,
            ..data
        })
    }

    fn too_small(&self, windows: u64) -> DataError {
        DataError::TooSmall {
            path: self.path.clone(),
            tokens: self.index.tokens,
            needed: windows * u64::from(self.sequence_length.max(1)) + 1,
            sequence_length: self.sequence_length,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share"
    )]
    fn with_held_out(
        prefix: &Path,
        sequence_length: u32,
        validation_fraction: f64,
        seed: u64,
    ) -> Result<TokenDataset, DataError> {
        let (index, sidecar, file) = open(prefix)?;
        let path = with_suffix(prefix, "bin");
        let length = u64::from(sequence_length.max(1));
        let windows = index.tokens.saturating_sub(1) / length;
        let held_out = (windows as f64 * validation_fraction.clamp(0.0, 0.5)).ceil() as u64;
        let training = windows.saturating_sub(held_out);
        let fingerprint = match &sidecar {
            Some(sidecar) => sidecar.sha256.clone(),
            None => fingerprint_of(&file, &path, &index)?,
        };
        Ok(TokenDataset {
            documents: Documents::open(&with_suffix(prefix, "idx"), index)?,
            path,
            file,
            index,
            sidecar,
            fingerprint,
            sequence_length,
            training,
            held_out,
            seed,
        })
    }

    /// Checks that all token ids are below the model's vocabulary size, if the dataset has a description.
    ///
    /// # Errors
    /// The dataset has more different tokens than the model has rows.
    pub fn check_vocabulary(&self, model: u32) -> Result<(), DataError> {
        match &self.sidecar {
            Some(s) if s.vocabulary > model => Err(DataError::Vocabulary {
                path: self.path.clone(),
                dataset: s.vocabulary,
                model,
            }),
            _ => Ok(()),
        }
    }

    /// Number of different tokens, if the dataset has a description.
    #[must_use]
    pub fn vocabulary(&self) -> Option<u32> {
        self.sidecar.as_ref().map(|s| s.vocabulary)
    }

    /// Samples of one pass over the training data.
    #[must_use]
    pub fn training_len(&self) -> u64 {
        self.training
    }

    /// Samples held out.
    #[must_use]
    pub fn held_out_len(&self) -> u64 {
        self.held_out
    }

    /// Identity of the content: the builder's digest of the tokens; without a description, a digest of the sizes and of pieces of the tokens.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    /// Reads the tokens of a training sample into `tokens`: `sequence_length + 1` ids. Every index is valid: after the last sample
    /// the next pass over the data begins, in another order.
    ///
    /// # Errors
    /// The file cannot be read, or `tokens` is of another length.
    pub fn train(&self, index: u64, tokens: &mut [i64]) -> Result<(), DataError> {
        self.window(self.training_window(index)?, tokens)
    }

    /// The positions of the same tokens within their documents: 0 at the sample's first token and at each document's first one, then one more with
    /// each token.
    ///
    /// # Errors
    /// As for [`TokenDataset::train`].
    pub fn train_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), DataError> {
        self.window_positions(self.training_window(index)?, positions)
    }

    /// The window of a training sample.
    fn training_window(&self, index: u64) -> Result<u64, DataError> {
        if self.training == 0 {
            return Err(DataError::Argument {
                what: "training sample",
                value: index.to_string(),
                allowed: "none: the whole dataset is held out".to_owned(),
            });
        }
        let (pass, within) = (index / self.training, index % self.training);
        Ok(Permutation::new(self.training, self.seed, pass).at(within))
    }

    /// The tokens of a held-out sample, in the order of the text.
    ///
    /// # Errors
    /// As for [`TokenDataset::train`], or there is no such sample.
    pub fn held_out(&self, index: u64, tokens: &mut [i64]) -> Result<(), DataError> {
        self.window(self.held_out_window(index)?, tokens)
    }

    /// The positions of the same tokens, as [`TokenDataset::train_positions`].
    ///
    /// # Errors
    /// As for [`TokenDataset::held_out`].
    pub fn held_out_positions(&self, index: u64, positions: &mut [i64]) -> Result<(), DataError> {
        self.window_positions(self.held_out_window(index)?, positions)
    }

    fn held_out_window(&self, index: u64) -> Result<u64, DataError> {
        if index >= self.held_out {
            let allowed = format!("below {}", self.held_out);
            return Err(DataError::Argument {
                what: "held-out sample",
                value: index.to_string(),
                allowed,
            });
        }
        Ok(self.training + index)
    }

    fn window_positions(&self, window: u64, positions: &mut [i64]) -> Result<(), DataError> {
        self.check_length(positions)?;
        let first = window * u64::from(self.sequence_length);
        self.documents.positions(first, positions)
    }

    fn check_length(&self, buffer: &[i64]) -> Result<(), DataError> {
        let needed = self.sequence_length as usize + 1;
        match buffer.len() == needed {
            true => Ok(()),
            false => Err(DataError::Argument {
                what: "length of the sample's buffer",
                value: buffer.len().to_string(),
                allowed: needed.to_string(),
            }),
        }
    }

    fn window(&self, window: u64, tokens: &mut [i64]) -> Result<(), DataError> {
        self.check_length(tokens)?;
        let needed = tokens.len();
        let width = self.index.token_type.width();
        let mut bytes = vec![0; needed * width];
        let offset = window * u64::from(self.sequence_length) * width as u64;
        self.file
            .read_exact_at(&mut bytes, offset)
            .map_err(DataError::io("read", &self.path))?;
        self.index.token_type.decode(&bytes, tokens);
        Ok(())
    }
}

#[cfg(test)]
#[cfg(feature = "build")]
mod tests {
    use super::*;
    use crate::build::{Build, build};
    use crate::tokenizer::Tokenizer;
    use std::collections::BTreeSet;

    fn dataset(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("text.txt");
        std::fs::write(&input, text).unwrap();
        let output = folder.path().join("data.v1");
        let request = Build::new(vec![input], output.clone(), Tokenizer::Byte);
        let built = build(&request, &mut |_| ()).unwrap();
        assert_eq!(built[0].text_bytes, text.len() as u64);
        assert_eq!(built[0].sidecar.tokens, text.len() as u64 + 1);
        assert!(
            matches!(build(&request, &mut |_| ()), Err(DataError::Exists(_))),
            "nothing is overwritten"
        );
        (folder, output)
    }

    #[test]
    fn a_pass_visits_each_window_once_and_the_held_out_ones_never() {
        let text: String = (0..640u32)
            .map(|i| char::from(b'a' + u8::try_from(i / 16 % 26).unwrap()))
            .collect();
        let (_folder, prefix) = dataset(&text);
        let data = TokenDataset::open(&prefix, 16, 0.1, 3).unwrap();
        assert_eq!((data.training_len(), data.held_out_len()), (36, 4));
        let read = |i| {
            let mut tokens = [0; 17];
            data.train(i, &mut tokens).unwrap();
            tokens.to_vec()
        };
        for pass in 0..3 {
            let seen: BTreeSet<Vec<i64>> = (0..36).map(|i| read(pass * 36 + i)).collect();
            let all: BTreeSet<Vec<i64>> = (0..36usize)
                .map(|w| {
                    text.as_bytes()[w * 16..w * 16 + 17]
                        .iter()
                        .map(|b| i64::from(*b))
                        .collect()
                })
                .collect();
            assert_eq!(seen, all, "pass {pass}");
        }
        let orders: Vec<Vec<Vec<i64>>> = (0..2)
            .map(|p| (0..36).map(|i| read(p * 36 + i)).collect())
            .collect();
        assert_ne!(orders[0], orders[1], "each pass has its own order");
        let mut last = [0; 17];
        data.held_out(3, &mut last).unwrap();
        assert_eq!(last[16], 256, "the last window ends with the end of the document");
        assert!(data.held_out(4, &mut last).is_err());
    }

    #[test]
    fn a_dataset_without_a_description_is_known_by_its_content() {
        let fingerprint = |text: &str| {
            let (_folder, prefix) = dataset(text);
            std::fs::remove_file(with_suffix(&prefix, "json")).unwrap();
            let opened = || TokenDataset::open(&prefix, 16, 0.1, 3).unwrap().fingerprint();
            assert_eq!(opened(), opened());
            opened()
        };
        // As short as one piece, and as long as many.
        for words in [40, 60_000] {
            let text = "word ".repeat(words);
            let own = fingerprint(&text);
            assert_eq!(own, fingerprint(&text));
            for other in [
                "Word ".repeat(words),
                format!("{}wort ", "word ".repeat(words - 1)),
            ] {
                assert_ne!(own, fingerprint(&other), "of the same size");
            }
            assert_ne!(own, fingerprint(&"word ".repeat(words + 1)));
        }
    }

    #[test]
    fn damaged_and_unfit_datasets_are_refused_by_name() {
        let (_folder, prefix) = dataset(&"word ".repeat(100));
        let data = TokenDataset::open(&prefix, 16, 0.0, 3).unwrap();
        assert!(data.check_vocabulary(257).is_ok());
        let wrong = data.check_vocabulary(256).unwrap_err().to_string();
        assert!(
            wrong.contains("vocabulary 257") && wrong.contains("256"),
            "{wrong}"
        );
        let small = TokenDataset::open(&prefix, 600, 0.0, 3)
            .err()
            .unwrap()
            .to_string();
        assert!(small.contains("501 tokens"), "{small}");
        let bin = with_suffix(&prefix, "bin");
        let whole = std::fs::read(&bin).unwrap();
        std::fs::write(&bin, &whole[..whole.len() - 2]).unwrap();
        let cut = crate::info(&prefix).unwrap_err().to_string();
        assert!(cut.contains("data.v1.bin") && cut.contains("cut short"), "{cut}");
        let missing = crate::info(Path::new("/nonexistent/x")).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent/x.bin"), "{missing}");
    }
}
