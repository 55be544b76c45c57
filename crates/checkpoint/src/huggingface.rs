//! Checkpoints as the safetensors files of a Hugging Face folder and back. Pure; names, which rows they hold, which matrices are
//! transposed and `config.json` are [`varuna_model::Family`]'s.

mod export;

pub use export::{Elements, Export, ExportedFile, OwnExport};

use crate::shard::{Shard, ShardTensor};
use safetensors::tensor::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use varuna_model::{ConfigError, Family, Published, Transformer};
use varuna_plan::{StateId, Unit};

/// The file of a model that is in one.
pub const WHOLE: &str = "model.safetensors";
/// The table of a model in several files.
pub const INDEX: &str = "model.safetensors.index.json";

/// What a folder cannot be turned into.
#[derive(Debug, thiserror::Error)]
pub enum HuggingFaceError {
    /// The tensors are not those of the model.
    #[error("tensor {name}: {why}")]
    Tensor {
        /// Its name in the folder's file.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file is no safetensors.
    #[error("safetensors: {0}")]
    File(#[from] safetensors::SafeTensorError),
    /// The model has no published format.
    #[error(transparent)]
    Family(#[from] ConfigError),
    /// The table of a folder of several files.
    #[error(
        "model.safetensors.index.json: weight_map: {0} — a mapping of the names of tensors to at most {FILES_MAX} files of this folder"
    )]
    Index(String),
}

/// Most files of a model: ten times those of the largest published ones.
const FILES_MAX: usize = 2000;

/// The files that an index (`model.safetensors.index.json`) names, each once.
///
/// # Errors
/// It names none, too many, or one elsewhere.
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

/// Rows become columns; a vector stays.
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
        for file in export.add(*unit, shard)? {
            content = file.content;
        }
    }
    Ok(content)
}

/// All units' shards at `id`, with fresh optimizer state, from the content of the folder's safetensors files.
///
/// # Errors
/// The model has no published format; or a tensor is missing, of another shape, or neither F32 nor BF16.
pub fn import(
    model: &Transformer,
    id: StateId,
    files: &[&[u8]],
) -> Result<Vec<(Unit, Shard)>, HuggingFaceError> {
    let family = Family::of(&model.features)?;
    let files: Result<Vec<_>, _> = files.iter().map(|file| SafeTensors::deserialize(file)).collect();
    let files = files?;
    let names = files
        .iter()
        .flat_map(|file| file.names().into_iter().map(move |name| (name, file)));
    let tensors: Tensors = names.collect();
    let layout = model.layout();
    let mut shards = Vec::new();
    for unit in layout.all_units() {
        let mut data = Vec::new();
        let mut own = Vec::new();
        for p in model.parameters(unit) {
            if p.elements() > 0 {
                for part in family.tensors(model, unit, &p) {
                    let mut shape = p.shape.clone();
                    shape[0] = part.rows;
                    data.extend(one(&tensors, &part, &shape)?);
                }
            }
            own.push(ShardTensor {
                name: p.name.clone().into_owned(),
                shape: p.shape,
                whole: None,
            });
        }
        // Moments that have seen no gradient.
        data.resize(3 * data.len(), 0.0);
        let shard = Shard {
            id,
            unit: crate::unit_name(layout, unit),
            adam_steps: 0,
            loss_scale: None,
            failed_in_a_row: 0,
            moments: varuna_plan::Moments::Adam,
            tensors: own,
            data,
        };
        shards.push((unit, shard));
    }
    Ok(shards)
}

/// Which file has a tensor of this name.
type Tensors<'a> = BTreeMap<&'a str, &'a SafeTensors<'a>>;

/// A tensor in our shape. The oldest files have no `transformer.` before the names of a GPT-2, and in those of a BERT weight and bias of a norm are called
/// `gamma` and `beta`.
fn one(tensors: &Tensors<'_>, part: &Published, shape: &[usize]) -> Result<Vec<f32>, HuggingFaceError> {
    let wrong = |why: String| HuggingFaceError::Tensor {
        name: part.name.clone(),
        why,
    };
    let named = |name: &str| tensors.get(name).and_then(|file| file.tensor(name).ok());
    let short = part.name.strip_prefix("transformer.").unwrap_or(&part.name);
    let of_norm = |kind: &str, old: &str| {
        let norm = part.name.strip_suffix(kind)?.strip_suffix("LayerNorm.")?;
        named(&format!("{norm}LayerNorm.{old}"))
    };
    let found = named(&part.name)
        .or_else(|| named(short))
        .or_else(|| of_norm("weight", "gamma"))
        .or_else(|| of_norm("bias", "beta"));
    let view = found.ok_or_else(|| wrong("it is missing".into()))?;
    let mut theirs = shape.to_vec();
    if part.transposed {
        theirs.reverse();
    }
    if view.shape() != theirs {
        return Err(wrong(format!(
            "its shape is {:?}, the model needs {theirs:?}",
            view.shape()
        )));
    }
    let values: Vec<f32> = match view.dtype() {
        Dtype::F32 => bytemuck::pod_collect_to_vec(view.data()),
        // The upper half of a number in single precision.
        Dtype::BF16 => {
            let halves = view.data().as_chunks::<2>().0.iter();
            halves
                .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16))
                .collect()
        }
        other => return Err(wrong(format!("it is {other:?}, F32 or BF16 is needed"))),
    };
    Ok(match part.transposed {
        true => transposed(&values, &theirs).0,
        false => values,
    })
}

#[cfg(test)]
mod tests;
