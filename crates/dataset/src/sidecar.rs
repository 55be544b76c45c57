//! `<prefix>.json`: what the builder knows about a dataset and the Megatron format cannot hold.

use crate::error::DataError;
use crate::files::Files;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use varuna_api::sha256;

/// Maximum bytes of a description: it has some names and numbers. Beside a dataset of another tool, a file of this name may hold the texts that
/// it was built from.
const BYTES_MAX: u64 = 1 << 20;

/// A description of a dataset, next to its `.bin` and `.idx`. Datasets made by other tools have none.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Name of the tokenizer: `byte`, `gpt2`, or `tokenizer.json` for one that came as a file.
    pub tokenizer: String,
    /// Name of the folder with that tokenizer's files, beside this description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_files: Option<String>,
    /// SHA-256 of that tokenizer's `tokenizer.json`, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer_sha256: Option<String>,
    /// Number of different tokens. All token ids are below it.
    pub vocabulary: u32,
    /// Token id that ends every document.
    pub end_of_document: u32,
    /// Tokens in the dataset.
    pub tokens: u64,
    /// Documents in the dataset.
    pub documents: u64,
    /// SHA-256 of the `.bin` file, in hex.
    pub sha256: String,
}

impl Sidecar {
    /// Whether both datasets have the same tokens for the same texts.
    #[cfg(feature = "tokenize")]
    pub(crate) fn has_tokenizer_of(&self, other: &Sidecar) -> bool {
        let tokenizer = |of: &Sidecar| {
            (
                of.tokenizer.clone(),
                of.tokenizer_sha256.clone(),
                of.end_of_document,
            )
        };
        tokenizer(self) == tokenizer(other)
    }

    /// Whether the dataset was built with the tokenizer of this `tokenizer.json`. None: the description has no digest of one.
    #[must_use]
    pub fn is_of_tokenizer(&self, json: &[u8]) -> Option<bool> {
        let digest = self.tokenizer_sha256.as_ref()?;
        Some(*digest == sha256(json))
    }

    /// Reads `<prefix>.json`. None: there is no such file.
    pub(crate) fn read(files: &Files, path: &Path) -> Result<Option<Sidecar>, DataError> {
        let Some(text) = files.read_if_there(path, BYTES_MAX)? else {
            return Ok(None);
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| DataError::malformed(path, "description", error, "what the builder wrote"))
    }
}

/// What is allowed where a dataset is named by one of its files.
pub(crate) const WITHOUT_SUFFIX: &str = "the path without .bin or .idx: a dataset is both files";

/// Whether a path is that of a file of a dataset. Job files may not name one so.
pub(crate) fn has_suffix(path: &Path) -> bool {
    let name = path.to_string_lossy();
    name.ends_with(".bin") || name.ends_with(".idx")
}

/// `<prefix>.<extension>`. The prefix may contain dots.
pub(crate) fn with_suffix(prefix: &Path, extension: &str) -> PathBuf {
    let mut name = prefix.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    PathBuf::from(name)
}
