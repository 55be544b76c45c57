//! Errors of datasets.

use std::io;
use std::path::{Path, PathBuf};
use varuna_api::{Data, HeldOut};

/// Why a dataset could not be built, opened or read.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted: `read`, `write`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file exists and overwriting was not asked for.
    #[error("cannot write {}: it already exists; choose another name, or --overwrite", .0.display())]
    Exists(PathBuf),
    /// A build found no text.
    #[error("cannot build {}: 0 tokens in all inputs together — at least one text that is not empty", .0.display())]
    NoTokens(PathBuf),
    /// Another build writes the same dataset.
    #[error("cannot write {}: another build writes it now; wait for that one to end, or choose another name", .0.display())]
    Busy(PathBuf),
    /// A file is malformed.
    #[error("cannot read {}: {what}: {value} — {allowed}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The part of it.
        what: &'static str,
        /// The value that was found.
        value: String,
        /// Values that are allowed.
        allowed: String,
    },
    /// The caller has stopped the build.
    #[error("the build was stopped, and its files are removed")]
    Stopped,
    /// A thread that tokenizes has ended by a defect of its own.
    #[error("cannot tokenize {}: the tokenizer has failed, as is said above", .0.display())]
    Tokenizer(PathBuf),
    /// The dataset has too few tokens for a sample.
    #[error("cannot use {}: {tokens} tokens — at least {needed} for one training sample of {sequence_length} tokens and the held-out samples", path.display())]
    TooSmall {
        /// The `.bin` file.
        path: PathBuf,
        /// Tokens in the dataset.
        tokens: u64,
        /// Tokens that are needed.
        needed: u64,
        /// Tokens in a sample.
        sequence_length: u32,
    },
    /// The model has too few rows in its embedding table.
    #[error("cannot use {}: vocabulary {dataset} — at most the model's vocabularySize ({model})", path.display())]
    Vocabulary {
        /// The dataset's sidecar.
        path: PathBuf,
        /// The dataset's vocabulary.
        dataset: u32,
        /// The model's vocabulary.
        model: u32,
    },
    /// A token has no row in the model's embedding table.
    #[error("cannot use {}: token {token} at position {position} — 0 to {}: the model's vocabularySize is {model}", path.display(), model.saturating_sub(1))]
    Token {
        /// The `.bin` file.
        path: PathBuf,
        /// Tokens before it.
        position: u64,
        /// Id of the token.
        token: i64,
        /// The model's vocabulary.
        model: u32,
    },
    /// Documents that are samples each are not all as long as a sample.
    #[error("cannot use {}: document {document} begins at {begins} — at {}: each document is one sample of the model, of exactly {length} numbers", path.display(), document * length)]
    Record {
        /// The `.bin` file.
        path: PathBuf,
        /// The first document that was found at another place, or the number of documents: the end of the last one.
        document: u64,
        /// The beginning of the record.
        begins: String,
        /// Numbers in a sample.
        length: u64,
    },
    /// An argument of a call is out of range.
    #[error("{what}: {value} — {allowed}")]
    Argument {
        /// The name of the argument.
        what: &'static str,
        /// Value of the argument.
        value: String,
        /// Values that are allowed.
        allowed: String,
    },
}

impl DataError {
    /// The field of the job file that names the dataset of this error; `spec.data` if it is of none alone.
    #[must_use]
    pub fn field(&self, data: &Data) -> String {
        let held_out = match &data.held_out {
            HeldOut::Dataset(path) => Some(("spec.data.validationPath".to_owned(), path)),
            HeldOut::Fraction(_) => None,
        };
        let is_alone = data.train.len() == 1;
        let train = data.train.iter().enumerate().map(|(i, source)| match is_alone {
            true => ("spec.data.path".to_owned(), &source.path),
            false => (format!("spec.data.train.{i}.path"), &source.path),
        });
        let file = self.file().map(|path| path.to_string_lossy());
        let is_of = |prefix: &str| {
            let rest = file.as_ref().and_then(|file| file.strip_prefix(prefix));
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        // The name of one dataset may begin with that of another and a dot.
        let found = held_out
            .into_iter()
            .chain(train)
            .filter(|(_, prefix)| is_of(prefix));
        let longest = found.max_by_key(|(_, prefix)| prefix.len());
        longest.map_or_else(|| "spec.data".to_owned(), |(field, _)| field)
    }

    /// The file that the error is about.
    fn file(&self) -> Option<&Path> {
        match self {
            DataError::Io { path, .. }
            | DataError::Malformed { path, .. }
            | DataError::TooSmall { path, .. }
            | DataError::Vocabulary { path, .. }
            | DataError::Token { path, .. }
            | DataError::Record { path, .. } => Some(path),
            DataError::Exists(_)
            | DataError::Busy(_)
            | DataError::NoTokens(_)
            | DataError::Stopped
            | DataError::Tokenizer(_)
            | DataError::Argument { .. } => None,
        }
    }

    /// Adds the operation and the file to an I/O error.
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> DataError + 'a {
        move |source| DataError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// A malformed file.
    pub(crate) fn malformed(
        path: &Path,
        what: &'static str,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> DataError {
        DataError::Malformed {
            path: path.to_owned(),
            what,
            value: value.to_string(),
            allowed: allowed.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varuna_api::DataSource;

    #[test]
    fn an_error_of_a_dataset_names_its_field() {
        let data = |train: &[&str], held_out| Data {
            train: train
                .iter()
                .map(|path| DataSource {
                    path: (*path).to_owned(),
                    weight: 1.0,
                })
                .collect(),
            held_out,
        };
        let field = |file: &str, data: &Data| {
            let error = DataError::io("open", Path::new(file))(io::ErrorKind::NotFound.into());
            error.field(data)
        };
        let one = data(&["data/a"], HeldOut::Dataset("data/a.held".to_owned()));
        assert_eq!(field("data/a.bin", &one), "spec.data.path");
        assert_eq!(field("data/a.held.idx", &one), "spec.data.validationPath");
        assert_eq!(field("data/ab.bin", &one), "spec.data");
        let two = data(&["data/a", "data/b"], HeldOut::Fraction(0.1));
        assert_eq!(field("data/b.json", &two), "spec.data.train.1.path");
    }
}
