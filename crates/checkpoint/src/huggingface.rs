//! Checkpoints as the `model.safetensors` of a Hugging Face GPT-2 folder and back. Pure; names, which matrices are transposed and
//! `config.json` are [`varuna_model::gpt2`]'s.

use crate::shard::{Shard, ShardTensor};
use safetensors::tensor::{Dtype, SafeTensors, View, serialize};
use std::borrow::Cow;
use varuna_model::{Model, gpt2};
use varuna_plan::{StateId, Unit};

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
    /// The file is no safetensors.
    #[error("model.safetensors: {0}")]
    File(#[from] safetensors::SafeTensorError),
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

struct Values {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl View for Values {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(bytemuck::cast_slice(&self.values))
    }
    fn data_len(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

/// `model.safetensors` of all units' shards.
///
/// # Errors
/// The library cannot write it.
pub fn export(model: &Model, shards: &[(Unit, Shard)]) -> Result<Vec<u8>, HuggingFaceError> {
    let mut tensors = Vec::new();
    for (unit, shard) in shards {
        for (index, tensor) in shard.tensors.iter().enumerate() {
            let values = shard.values(index, 0);
            if values.is_empty() {
                continue;
            }
            let (values, shape) = if gpt2::is_published_transposed(&tensor.name) {
                transposed(values, &tensor.shape)
            } else {
                (values.to_vec(), tensor.shape.clone())
            };
            let name = gpt2::published_name(model, *unit, &tensor.name);
            tensors.push((name, Values { shape, values }));
        }
    }
    // `transformers` asks which framework's tensors these are.
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok(serialize(tensors, Some(metadata))?)
}

/// All units' shards at `id`, with fresh optimizer state, from the content of `model.safetensors`.
///
/// # Errors
/// A tensor is missing, of another shape, or not of type F32.
pub fn import(model: &Model, id: StateId, file: &[u8]) -> Result<Vec<(Unit, Shard)>, HuggingFaceError> {
    let tensors = SafeTensors::deserialize(file)?;
    let layout = model.layout();
    let mut shards = Vec::new();
    for unit in layout.all_units() {
        let mut data = Vec::new();
        let mut own = Vec::new();
        for p in model.parameters(unit) {
            if p.elements() > 0 {
                let name = gpt2::published_name(model, unit, p.name);
                let transpose = gpt2::is_published_transposed(p.name);
                data.extend(one(&tensors, &name, &p.shape, transpose)?);
            }
            own.push(ShardTensor {
                name: p.name.to_owned(),
                shape: p.shape,
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
            tensors: own,
            data,
        };
        shards.push((unit, shard));
    }
    Ok(shards)
}

/// One parameter in our shape. The oldest files have no `transformer.` before the names.
fn one(
    tensors: &SafeTensors,
    name: &str,
    shape: &[usize],
    transpose: bool,
) -> Result<Vec<f32>, HuggingFaceError> {
    let wrong = |why: String| HuggingFaceError::Tensor {
        name: name.to_owned(),
        why,
    };
    let short = name.strip_prefix("transformer.").unwrap_or(name);
    let found = tensors.tensor(name).or_else(|_| tensors.tensor(short));
    let view = found.map_err(|_| wrong("it is missing".into()))?;
    if view.dtype() != Dtype::F32 {
        return Err(wrong(format!("it is {:?}, F32 is needed", view.dtype())));
    }
    let mut theirs = shape.to_vec();
    if transpose {
        theirs.reverse();
    }
    if view.shape() != theirs {
        return Err(wrong(format!(
            "its shape is {:?}, the model needs {theirs:?}",
            view.shape()
        )));
    }
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(view.data());
    Ok(if transpose {
        transposed(&values, &theirs).0
    } else {
        values
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// SHA-256 of the file of a small model with a tied and an untied head.
    const DIGESTS: [(bool, &str); 2] = [
        (
            true,
            "8609cff8119810079dc02a7ad1290e7041f503585080cb22ece6a1d68cda900c",
        ),
        (
            false,
            "e09acbab9b4d388ffbed4dfba62e7f50a45f5f90cd785ad50fcd20d0cd8eab19",
        ),
    ];

    #[test]
    fn a_model_survives_the_way_out_and_back() {
        for (tied_head, digest) in DIGESTS {
            let sizes = Model {
                layers: 2,
                hidden_size: 4,
                heads: 2,
                sequence_length: 3,
                vocabulary_size: 5,
                tied_head,
                ..gpt2::SMALL
            };
            let mut next = 0.0f32;
            let mut shards = Vec::new();
            for unit in sizes.layout().all_units() {
                let mut data = Vec::new();
                let mut tensors = Vec::new();
                for p in sizes.parameters(unit) {
                    for _ in 0..p.elements() {
                        next += 1.0;
                        data.push(next);
                    }
                    tensors.push(ShardTensor {
                        name: p.name.to_owned(),
                        shape: p.shape,
                    });
                }
                data.resize(3 * data.len(), 0.0);
                let unit_name = crate::unit_name(sizes.layout(), unit);
                shards.push((
                    unit,
                    Shard {
                        id: StateId::INITIAL,
                        unit: unit_name,
                        adam_steps: 0,
                        loss_scale: None,
                        failed_in_a_row: 0,
                        tensors,
                        data,
                    },
                ));
            }
            let file = export(&sizes, &shards).unwrap();
            let read = SafeTensors::deserialize(&file).unwrap();
            assert_eq!(
                read.tensor("transformer.h.1.attn.c_attn.weight").unwrap().shape(),
                [4, 12]
            );
            assert_eq!(
                read.tensor("transformer.h.1.mlp.c_proj.weight").unwrap().shape(),
                [16, 4]
            );
            assert_eq!(read.tensor("lm_head.weight").is_ok(), !tied_head);
            assert_eq!(
                format!("{:x}", Sha256::digest(&file)),
                digest,
                "every byte of the file"
            );
            assert_eq!(import(&sizes, StateId::INITIAL, &file).unwrap(), shards);
        }
    }
}
