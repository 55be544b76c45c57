//! Converts checkpoints to the safetensors files of a Hugging Face folder and back. [`varuna_model::Family`] decides on names, which rows
//! they hold, which matrices are transposed, and `config.json`. Files are read only through [`Content`], and written only by [`ExportedFile`].

mod content;
mod export;
mod import;
mod job_model;

pub use content::{Content, LocalFile};
pub use export::{Elements, Export, ExportedFile, OwnExport};
pub use import::Import;
pub use job_model::job_model;

use crate::shard::Shard;
use std::path::PathBuf;
use varuna_model::{ConfigError, Transformer};
use varuna_plan::{StateId, Unit};

/// The file name of a model in one file.
pub const WHOLE: &str = "model.safetensors";
/// The index of a model in several files.
pub const INDEX: &str = "model.safetensors.index.json";

/// Why a folder or a model cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum HuggingFaceError {
    /// The tensors are not those of the model.
    #[error("tensor {name}: {why}")]
    Tensor {
        /// Name of the tensor in the folder's file.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The files have tensors that the model does not have: another model, or another size of it.
    #[error(
        "{count} of its tensors are not of the model that config.json describes, such as {first}: allowed are the model's own, and what the library \
         stores beside them (masks, position ids, rotary frequencies, a tied head, heads for other tasks)"
    )]
    NotOfModel {
        /// Number of such tensors.
        count: usize,
        /// Name of the first one.
        first: String,
    },
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is no safetensors.
    #[error("safetensors: {0}")]
    File(#[from] safetensors::SafeTensorError),
    /// A file of this machine is no safetensors, or not all of one.
    #[error("{} is no whole safetensors file: {source}", path.display())]
    NamedFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: safetensors::SafeTensorError,
    },
    /// The model has no published format.
    #[error(transparent)]
    Family(#[from] ConfigError),
    /// The index of a folder with several files is invalid.
    #[error(
        "model.safetensors.index.json: weight_map: {0} — a mapping of the names of tensors to at most {FILES_MAX} files of this folder"
    )]
    Index(String),
}

/// Maximum number of files of a model: ten times that of the largest published ones.
const FILES_MAX: usize = 2000;

/// The files that an index (`model.safetensors.index.json`) names, each once.
///
/// # Errors
/// The index names no file, too many files, or one outside the folder.
pub fn files_of_index(index: &serde_json::Value) -> Result<Vec<String>, HuggingFaceError> {
    let map = index["weight_map"].as_object();
    let map = map.ok_or_else(|| HuggingFaceError::Index(index["weight_map"].to_string()))?;
    let mut files = std::collections::BTreeSet::new();
    for file in map.values() {
        let name = file
            .as_str()
            .filter(|name| !name.contains(['/', '\\']) && name.ends_with(".safetensors"));
        let name = name.ok_or_else(|| HuggingFaceError::Index(file.to_string()))?;
        files.insert(name.to_owned());
    }
    if files.is_empty() || files.len() > FILES_MAX {
        return Err(HuggingFaceError::Index(format!("{} files", files.len())));
    }
    Ok(files.into_iter().collect())
}

/// Transposes a matrix. A vector is unchanged.
fn transposed(values: &[f32], shape: &[usize]) -> (Vec<f32>, Vec<usize>) {
    let &[rows, columns] = shape else {
        return (values.to_vec(), shape.to_vec());
    };
    let mut out = Vec::with_capacity(values.len());
    for column in 0..columns {
        out.extend((0..rows).map(|row| values[row * columns + column]));
    }
    (out, vec![columns, rows])
}

/// `model.safetensors` of all units' shards, in single precision.
///
/// # Errors
/// The model has no published format, or the library cannot write it.
pub fn export(model: &Transformer, shards: &[(Unit, Shard)]) -> Result<Vec<u8>, HuggingFaceError> {
    let mut export = Export::new(model, Elements::Fp32, u64::MAX)?;
    let mut content = Vec::new();
    for (unit, shard) in shards {
        for file in export.add(*unit, shard) {
            content = file.content()?;
        }
    }
    Ok(content)
}

/// All units' shards at `id`, with fresh optimizer state, from the content of the folder's safetensors files. All shards are in memory at
/// once; [`Import`] makes them one by one.
///
/// # Errors
/// As those of [`Import::new`].
pub fn import(
    model: &Transformer,
    id: StateId,
    files: &[&[u8]],
) -> Result<Vec<(Unit, Shard)>, HuggingFaceError> {
    let import = Import::new(model, files.to_vec())?;
    import.shards(id).collect()
}

#[cfg(test)]
mod tests;
