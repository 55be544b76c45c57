//! An open dataset: the tokens of each sample.

use crate::error::DataError;
use crate::files::{DataFile, Files};
use crate::index::{self, Documents, Index, SparseIndex};
use crate::order::Permutation;
use crate::sample_shape::{SampleData, SampleShape, check_records};
use crate::sidecar::{Sidecar, WITHOUT_SUFFIX, has_suffix, with_suffix};
use sha2::{Digest, Sha256};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Number of pieces of a dataset without a description that go into its fingerprint, evenly spaced: the whole may be terabytes, and every
/// worker reads the pieces when it starts. Different data of the same size differ in some piece.
const PIECES: u64 = 64;
/// Bytes of such a piece: what a disk reads at once.
const PIECE_BYTES: u64 = 4096;

/// The files of a dataset, checked against each other.
pub(crate) struct Opened {
    pub(crate) index: Index,
    pub(crate) idx: DataFile,
    pub(crate) sparse: SparseIndex,
    pub(crate) bin: DataFile,
    pub(crate) sidecar: Option<Sidecar>,
}

/// Opens the index, the builder's description and the token file.
pub(crate) fn open(files: &Files, prefix: &Path) -> Result<Opened, DataError> {
    let [bin_path, idx_path, json] = ["bin", "idx", "json"].map(|extension| with_suffix(prefix, extension));
    let bin = files.open(&bin_path).map_err(|error| match error {
        DataError::Io { ref source, .. } if source.kind() == ErrorKind::NotFound && has_suffix(prefix) => {
            DataError::Argument {
                what: "dataset",
                value: prefix.display().to_string(),
                allowed: WITHOUT_SUFFIX.to_owned(),
            }
        }
        error => error,
    })?;
    let length = bin.len().map_err(DataError::io("read", &bin_path))?;
    let idx = files.open(&idx_path)?;
    let mut sparse = SparseIndex::default();
    let index = index::read((&idx, &idx_path), &bin_path, length, &mut sparse)?;
    let sidecar = Sidecar::read(files, &json)?;
    if let Some(s) = sidecar.as_ref().filter(|s| s.tokens != index.tokens) {
        let allowed = format!("{}, as the index says", index.tokens);
        return Err(DataError::malformed(&json, "tokens", s.tokens, allowed));
    }
    Ok(Opened {
        index,
        idx,
        sparse,
        bin,
        sidecar,
    })
}

/// A digest of the sizes and of pieces of the tokens, in a time that does not grow with their number.
fn fingerprint_of(bin: &DataFile, path: &Path, index: &Index) -> Result<String, DataError> {
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
    for start in &starts {
        bin.prefetch(*start..start.saturating_add(PIECE_BYTES));
    }
    for start in starts {
        bin.read_exact_at(&mut piece, start)
            .map_err(DataError::io("read", path))?;
        digest.update(&piece);
    }
    Ok(hex::encode(digest.finalize()))
}

/// An open dataset. A sample is a window of a fixed number of tokens of the concatenated stream and the token after it; windows overlap
/// only in that token. The last windows are held out. If each document is a sample, it is its own window.
pub struct TokenDataset {
    path: PathBuf,
    bin: DataFile,
    index: Index,
    documents: Documents,
    sidecar: Option<Sidecar>,
    fingerprint: String,
    shape: SampleShape,
    training: u64,
    held_out: u64,
    seed: u64,
    /// The limit below which all ids that are read have to be, once it is known, if the dataset has no description that guarantees it.
    below: OnceLock<u32>,
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
        let files = Files::default();
        let shape = SampleShape::windows(sequence_length);
        TokenDataset::open_in(&files, prefix, shape, (validation_fraction, seed))
    }

    /// The same with the files that several datasets share.
    pub(crate) fn open_in(
        files: &Files,
        prefix: &Path,
        shape: SampleShape,
        (validation_fraction, seed): (f64, u64),
    ) -> Result<TokenDataset, DataError> {
        let data = TokenDataset::with_held_out(files, prefix, shape, (validation_fraction, seed))?;
        if data.training == 0 {
            return Err(data.too_small(data.held_out + 1));
        }
        Ok(data)
    }

    /// Opens a dataset all of whose windows are held out.
    ///
    /// # Errors
    /// A file is missing, truncated, or too short for one sample.
    pub(crate) fn open_held_out(
        files: &Files,
        prefix: &Path,
        shape: SampleShape,
    ) -> Result<TokenDataset, DataError> {
        let data = TokenDataset::with_held_out(files, prefix, shape, (0.0, 0))?;
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
            needed: windows * u64::from(self.shape.length.max(1)) + u64::from(!self.shape.records),
            sequence_length: self.shape.length,
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share"
    )]
    fn with_held_out(
        files: &Files,
        prefix: &Path,
        shape: SampleShape,
        (validation_fraction, seed): (f64, u64),
    ) -> Result<TokenDataset, DataError> {
        let Opened {
            index,
            idx,
            sparse,
            bin,
            sidecar,
        } = open(files, prefix)?;
        let path = with_suffix(prefix, "bin");
        let windows = shape.count(index.tokens);
        let held_out = (windows as f64 * validation_fraction.clamp(0.0, 0.5)).ceil() as u64;
        let training = windows.saturating_sub(held_out);
        let fingerprint = match &sidecar {
            Some(sidecar) => sidecar.sha256.clone(),
            None => fingerprint_of(&bin, &path, &index)?,
        };
        let documents = Documents::new((idx, with_suffix(prefix, "idx")), index, sparse);
        if shape.records {
            check_records(&documents, &path, index, shape.length)?;
        }
        Ok(TokenDataset {
            documents,
            path,
            bin,
            index,
            sidecar,
            fingerprint,
            shape,
            training,
            held_out,
            seed,
            below: OnceLock::new(),
        })
    }

    /// Checks that all token ids are below the model's vocabulary size. If the dataset has no description, such as one made by Megatron,
    /// the ids of each sample are checked when it is read.
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
            Some(_) => Ok(()),
            None => {
                // If several models are given, the first one counts; a process has only one.
                let _ = self.below.set(model);
                Ok(())
            }
        }
    }

    /// The builder's description, if there is one.
    pub(crate) fn description(&self) -> Option<&Sidecar> {
        self.sidecar.as_ref()
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

    /// Identity of the content: the builder's digest of the tokens, or, without a description, a digest of the sizes and of some pieces.
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

    /// Announces that a part of a training sample will be read soon ([`DataFile::prefetch`]).
    pub(crate) fn prefetch_train(&self, index: u64, what: SampleData) {
        if let Ok(window) = self.training_window(index) {
            self.prefetch(window, what);
        }
    }

    /// The same for a held-out sample.
    pub(crate) fn prefetch_held_out(&self, index: u64, what: SampleData) {
        if let Ok(window) = self.held_out_window(index) {
            self.prefetch(window, what);
        }
    }

    fn prefetch(&self, window: u64, what: SampleData) {
        let (length, width) = (u64::from(self.shape.length), self.index.token_type.width() as u64);
        let first = window * length;
        if what == SampleData::Positions {
            return self.documents.prefetch(first, length + 1);
        }
        let end = first + length + u64::from(!self.shape.records);
        self.bin.prefetch(first * width..end * width);
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
        let first = window * u64::from(self.shape.length);
        self.documents.positions(first, positions)
    }

    fn check_length(&self, buffer: &[i64]) -> Result<(), DataError> {
        let needed = self.shape.length as usize + 1;
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
        let width = self.index.token_type.width();
        let (of_sample, after) = tokens.split_at_mut(self.shape.length as usize);
        let tokens = match self.shape.records {
            true => {
                after.fill(0);
                of_sample
            }
            false => tokens,
        };
        let mut bytes = vec![0; tokens.len() * width];
        let offset = window * u64::from(self.shape.length) * width as u64;
        self.bin
            .read_exact_at(&mut bytes, offset)
            .map_err(DataError::io("read", &self.path))?;
        self.index.token_type.decode(&bytes, tokens);
        let Some(below) = self.below.get() else {
            return Ok(());
        };
        let is_unknown = |token: &i64| !(0..i64::from(*below)).contains(token);
        match tokens.iter().position(is_unknown) {
            None => Ok(()),
            Some(at) => Err(DataError::Token {
                path: self.path.clone(),
                position: window * u64::from(self.shape.length) + at as u64,
                token: tokens[at],
                model: *below,
            }),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "build")]
mod tests;
