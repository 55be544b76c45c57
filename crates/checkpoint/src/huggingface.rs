//! Checkpoints as Hugging Face GPT-2 folders and back: names, transposed matrices, `config.json`. Pure.
//!
//! The published GPT-2 keeps the weights of its linear layers as (inputs, outputs); ours are (outputs, inputs).

use crate::shard::{Shard, ShardTensor};
use safetensors::tensor::{Dtype, SafeTensors, View, serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use varuna_api::model::Part;
use varuna_api::{Model, parameters};
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
    /// The configuration is not a GPT-2's that can be trained here.
    #[error("config.json: {field}: {found} — {allowed}")]
    Config {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The file is no safetensors.
    #[error("model.safetensors: {0}")]
    File(#[from] safetensors::SafeTensorError),
}

/// The parameter's name in a `GPT2LMHeadModel`.
fn published_name(model: &Model, unit: Unit, name: &str) -> String {
    if name == "lm_head.weight" {
        return name.to_owned();
    }
    match model.part(unit.0) {
        Part::Attention(layer) | Part::Mlp(layer) => format!("transformer.h.{layer}.{name}"),
        Part::Embedding | Part::Head => format!("transformer.{name}"),
    }
}

fn is_transposed(name: &str) -> bool {
    name.starts_with("attn.c_") || name.starts_with("mlp.c_")
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

/// `config.json` of a model.
#[must_use]
pub fn config(model: &Model) -> Value {
    let last = model.vocabulary_size.saturating_sub(1);
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": model.layers,
        "n_embd": model.hidden_size,
        "n_head": model.heads,
        "n_positions": model.sequence_length,
        "n_ctx": model.sequence_length,
        "vocab_size": model.vocabulary_size,
        "bos_token_id": last.min(50256),
        "eos_token_id": last.min(50256),
        "tie_word_embeddings": model.tied_head,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "embd_pdrop": model.dropout,
        "resid_pdrop": model.dropout,
        "attn_pdrop": 0.0,
        "scale_attn_weights": true,
        "torch_dtype": "float32",
    })
}

/// `model.safetensors` of all units' shards.
///
/// # Errors
/// The library cannot write it.
pub fn export(model: &Model, shards: &[(Unit, Shard)]) -> Result<Vec<u8>, HuggingFaceError> {
    let mut tensors = Vec::new();
    for (unit, shard) in shards {
        for tensor in shard.tensors.iter().filter(|t| !t.parts[0].is_empty()) {
            let (values, shape) = if is_transposed(&tensor.name) {
                transposed(&tensor.parts[0], &tensor.shape)
            } else {
                (tensor.parts[0].clone(), tensor.shape.clone())
            };
            let name = published_name(model, *unit, &tensor.name);
            tensors.push((name, Values { shape, values }));
        }
    }
    // `transformers` asks which framework's tensors these are.
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok(serialize(tensors, Some(metadata))?)
}

/// The sizes that a folder's `config.json` gives.
///
/// # Errors
/// It is not a GPT-2 that can be trained here.
pub fn model(config: &Value) -> Result<Model, HuggingFaceError> {
    let wrong = |field, found: &Value, allowed| HuggingFaceError::Config {
        field,
        found: found.to_string(),
        allowed,
    };
    let kind = &config["model_type"];
    if kind != "gpt2" {
        return Err(wrong("model_type", kind, "gpt2"));
    }
    let activation = &config["activation_function"];
    if !activation.is_null() && activation != "gelu_new" {
        return Err(wrong("activation_function", activation, "gelu_new"));
    }
    let size = |field: &'static str| {
        let value = &config[field];
        let size = value
            .as_u64()
            .and_then(|v| u32::try_from(v).ok())
            .filter(|v| *v > 0);
        size.ok_or_else(|| wrong(field, value, "a number from 1"))
    };
    Ok(Model {
        layers: size("n_layer")?,
        hidden_size: size("n_embd")?,
        heads: size("n_head")?,
        sequence_length: size("n_positions")?,
        vocabulary_size: size("vocab_size")?,
        // The library's default.
        tied_head: config["tie_word_embeddings"].as_bool().unwrap_or(true),
        dropout: 0.0,
    })
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
        let list = parameters::of_unit(model, unit);
        let read = list.iter().map(|p| {
            let shape: Vec<usize> = p.shape.iter().map(|s| usize::try_from(*s).unwrap_or(0)).collect();
            let values = if p.elements() == 0 {
                Vec::new()
            } else {
                one(
                    &tensors,
                    &published_name(model, unit, p.name),
                    &shape,
                    is_transposed(p.name),
                )?
            };
            let zeros = vec![0.0; values.len()];
            Ok(ShardTensor {
                name: p.name.to_owned(),
                shape,
                parts: [values, zeros.clone(), zeros],
            })
        });
        let shard = Shard {
            id,
            unit: crate::unit_name(layout, unit),
            adam_steps: 0,
            tensors: read.collect::<Result<_, HuggingFaceError>>()?,
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

    #[test]
    fn a_model_survives_the_way_out_and_back() {
        for tied_head in [true, false] {
            let sizes = Model {
                layers: 2,
                hidden_size: 4,
                heads: 2,
                sequence_length: 3,
                vocabulary_size: 5,
                tied_head,
                dropout: 0.0,
            };
            let mut next = 0.0f32;
            let mut shards = Vec::new();
            for unit in sizes.layout().all_units() {
                let tensors = parameters::of_unit(&sizes, unit).into_iter().map(|p| {
                    let values: Vec<f32> = (0..p.elements())
                        .map(|_| {
                            next += 1.0;
                            next
                        })
                        .collect();
                    let zeros = vec![0.0; values.len()];
                    ShardTensor {
                        name: p.name.to_owned(),
                        shape: p.shape.iter().map(|s| usize::try_from(*s).unwrap()).collect(),
                        parts: [values, zeros.clone(), zeros],
                    }
                });
                let tensors = tensors.collect();
                let unit_name = crate::unit_name(sizes.layout(), unit);
                shards.push((
                    unit,
                    Shard {
                        id: StateId::INITIAL,
                        unit: unit_name,
                        adam_steps: 0,
                        tensors,
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
            assert_eq!(model(&config(&sizes)).unwrap(), sizes);
            assert_eq!(import(&sizes, StateId::INITIAL, &file).unwrap(), shards);
        }
    }

    #[test]
    fn what_is_no_gpt2_is_refused_by_field() {
        let error = model(&json!({"model_type": "llama"})).unwrap_err().to_string();
        assert_eq!(error, "config.json: model_type: \"llama\" — gpt2");
        let error = model(&json!({"model_type": "gpt2", "n_layer": 0}))
            .unwrap_err()
            .to_string();
        assert_eq!(error, "config.json: n_layer: 0 — a number from 1");
    }
}
