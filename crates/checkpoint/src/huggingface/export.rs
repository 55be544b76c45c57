//! Export: turns units' shards into the safetensors files of a folder, with the tensors of one file in memory at a time.

use super::HuggingFaceError;
use crate::shard::Shard;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, View, serialize, serialize_to_file};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use varuna_model::{Family, Parameter, Published, Transformer};
use varuna_plan::Unit;

/// The format in which the elements of a file are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Elements {
    /// Single precision, as they were trained.
    #[default]
    Fp32,
    /// bfloat16: rounded to the upper half of their bits.
    Bf16,
}

impl Elements {
    fn dtype(self) -> Dtype {
        match self {
            Elements::Fp32 => Dtype::F32,
            Elements::Bf16 => Dtype::BF16,
        }
    }

    /// Bytes of one element.
    fn bytes(self) -> usize {
        match self {
            Elements::Fp32 => 4,
            Elements::Bf16 => 2,
        }
    }

    /// Name of the format in `config.json`.
    #[must_use]
    pub fn published(self) -> &'static str {
        match self {
            Elements::Fp32 => "float32",
            Elements::Bf16 => "bfloat16",
        }
    }

    fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Elements::Fp32 => bytemuck::cast_slice(values).to_vec(),
            Elements::Bf16 => values.iter().flat_map(|v| rounded(*v).to_le_bytes()).collect(),
        }
    }
}

/// The nearest bfloat16; ties to even.
fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    let upper = |bits: u32| u16::try_from(bits >> 16).unwrap_or(u16::MAX);
    if value.is_nan() {
        // Rounding could turn a NaN into an infinity.
        return upper(bits) | 0x0040;
    }
    let odd = (bits >> 16) & 1;
    upper(bits.wrapping_add(0x7fff + odd))
}

/// A tensor as it is written.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Tensor {
    shape: Vec<usize>,
    dtype: Dtype,
    bytes: Vec<u8>,
}

impl View for Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// A file of which all tensors are there. It is not made as a whole: it may have as many bytes as the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportedFile {
    /// Name of the file in the folder.
    pub name: String,
    tensors: Vec<(String, Tensor)>,
}

impl ExportedFile {
    /// The content of the file.
    ///
    /// # Errors
    /// The library cannot make it.
    pub fn content(self) -> Result<Vec<u8>, HuggingFaceError> {
        Ok(serialize(self.tensors, Some(about()))?)
    }

    /// Writes the file into a folder, one tensor after the other.
    ///
    /// # Errors
    /// The library cannot make it, or the file cannot be written.
    pub fn write(self, folder: &Path) -> Result<(), HuggingFaceError> {
        let path = folder.join(self.name);
        match serialize_to_file(self.tensors, Some(about()), &path) {
            Err(SafeTensorError::IoError(source)) => Err(HuggingFaceError::Write { path, source }),
            written => Ok(written?),
        }
    }
}

/// What a file says of itself: `transformers` requires the name of the framework that the tensors are for.
fn about() -> HashMap<String, String> {
    HashMap::from([("format".to_owned(), "pt".to_owned())])
}

/// An export in progress. It takes the units' shards in the order of the units.
pub struct Export<'a> {
    model: &'a Transformer,
    family: Family,
    elements: Elements,
    /// Number of tensors of each incomplete file, the next file first.
    left: VecDeque<usize>,
    files: usize,
    pending: Vec<(String, Tensor)>,
    /// The file of each tensor.
    places: serde_json::Map<String, Value>,
    bytes: u64,
}

impl<'a> Export<'a> {
    /// Begins an export into files of at most `most` bytes of tensors each, except for a tensor that is larger by itself.
    ///
    /// # Errors
    /// The model has no published format.
    pub fn new(
        model: &'a Transformer,
        elements: Elements,
        most: u64,
    ) -> Result<Export<'a>, HuggingFaceError> {
        let family = Family::of(model)?;
        let sizes = sizes(model, family, elements);
        let left = counts(&sizes, most);
        Ok(Export {
            model,
            family,
            elements,
            files: left.len(),
            left,
            pending: Vec::new(),
            places: serde_json::Map::new(),
            bytes: sizes.iter().sum(),
        })
    }

    /// Adds the next unit. Returns the files that it completes.
    pub fn add(&mut self, unit: Unit, shard: &Shard) -> Vec<ExportedFile> {
        let mut complete = Vec::new();
        for (index, parameter) in self.model.parameters(unit).iter().enumerate() {
            let mut rest = shard.values(index, 0);
            for part in self.family.tensors(self.model, unit, parameter) {
                let shape = shape_of(&part, parameter);
                let elements = shape.iter().product::<usize>().min(rest.len());
                let (values, others) = rest.split_at(elements);
                rest = others;
                if values.is_empty() {
                    continue;
                }
                let tensor = self.tensor(&part, values, shape);
                self.pending.push((part.name, tensor));
                if self.left.front() == Some(&self.pending.len()) {
                    complete.push(self.finish());
                }
            }
        }
        complete
    }

    fn tensor(&self, part: &Published, values: &[f32], shape: Vec<usize>) -> Tensor {
        let (bytes, shape) = match part.transposed {
            true => {
                let (values, shape) = super::transposed(values, &shape);
                (self.elements.encode(&values), shape)
            }
            false => (self.elements.encode(values), shape),
        };
        Tensor {
            shape,
            dtype: self.elements.dtype(),
            bytes,
        }
    }

    /// Puts the waiting tensors into the next file.
    fn finish(&mut self) -> ExportedFile {
        let number = self.files - self.left.len() + 1;
        self.left.pop_front();
        let name = match self.files {
            1 => super::WHOLE.to_owned(),
            files => format!("model-{number:05}-of-{files:05}.safetensors"),
        };
        let tensors = std::mem::take(&mut self.pending);
        for (tensor, _) in &tensors {
            self.places.insert(tensor.clone(), name.clone().into());
        }
        ExportedFile { name, tensors }
    }

    /// The index of the files (`model.safetensors.index.json`), if there are several.
    #[must_use]
    pub fn index(self) -> Option<Value> {
        let index = json!({ "metadata": { "total_size": self.bytes }, "weight_map": self.places });
        (self.files > 1).then_some(index)
    }
}

/// An export of a user's own model into one file. Parameters keep the names of that model, as `load_state_dict` expects them.
pub struct OwnExport {
    elements: Elements,
    tensors: Vec<(String, Tensor)>,
}

impl OwnExport {
    /// An export without tensors so far.
    #[must_use]
    pub fn new(elements: Elements) -> OwnExport {
        OwnExport {
            elements,
            tensors: Vec::new(),
        }
    }

    /// Adds the parameters of a unit.
    pub fn add(&mut self, shard: &Shard) {
        for (index, tensor) in shard.tensors.iter().enumerate() {
            let tensor = (
                tensor.name.clone(),
                Tensor {
                    shape: tensor.shape.clone(),
                    dtype: self.elements.dtype(),
                    bytes: self.elements.encode(shard.values(index, 0)),
                },
            );
            self.tensors.push(tensor);
        }
    }

    /// The file.
    #[must_use]
    pub fn finish(self) -> ExportedFile {
        ExportedFile {
            name: super::WHOLE.to_owned(),
            tensors: self.tensors,
        }
    }
}

/// The shape of some rows of a parameter, as we have them.
pub(super) fn shape_of(part: &Published, parameter: &Parameter) -> Vec<usize> {
    let mut shape = parameter.shape.clone();
    if let Some(rows) = shape.first_mut() {
        *rows = part.rows;
    }
    shape
}

/// Bytes of all tensors, in the order in which they come.
fn sizes(model: &Transformer, family: Family, elements: Elements) -> Vec<u64> {
    let mut sizes = Vec::new();
    for unit in model.layout().all_units() {
        for parameter in model.parameters(unit) {
            let parts = family.tensors(model, unit, &parameter);
            let counts = parts
                .iter()
                .map(|part| shape_of(part, &parameter).iter().product());
            sizes.extend(
                counts
                    .filter(|n: &usize| *n > 0)
                    .map(|n| (n * elements.bytes()) as u64),
            );
        }
    }
    sizes
}

/// Number of tensors in each file: as many as fit, at least one.
fn counts(sizes: &[u64], most: u64) -> VecDeque<usize> {
    let mut counts = VecDeque::new();
    let mut bytes = 0u64;
    for size in sizes {
        bytes = bytes.saturating_add(*size);
        match counts.back_mut() {
            Some(count) if bytes <= most => *count += 1,
            _ => {
                counts.push_back(1);
                bytes = *size;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_as_many_tensors_as_fit_and_at_least_one() {
        assert_eq!(counts(&[4, 4, 4, 4, 4], 8), [2, 2, 1]);
        assert_eq!(counts(&[9, 1, 1, 9, 1], 8), [1, 2, 1, 1]);
        assert_eq!(counts(&[1, 2, 3], u64::MAX), [3]);
        assert_eq!(counts(&[], 8), [0usize; 0]);
    }

    #[test]
    fn sixteen_bits_round_to_nearest_even() {
        for (bits, expected) in [
            (0x3f80_0000u32, 0x3f80u16),
            (0x3f80_7fff, 0x3f80),
            (0x3f80_8000, 0x3f80),
            (0x3f80_8001, 0x3f81),
            (0x3f81_8000, 0x3f82),
            (0xbf81_8000, 0xbf82),
            (0x7f7f_ffff, 0x7f80),
            (0x7f80_0000, 0x7f80),
            (0x0000_8001, 0x0001),
        ] {
            assert_eq!(rounded(f32::from_bits(bits)), expected, "{bits:#x}");
        }
        let nan = rounded(f32::from_bits(0x7f80_0001));
        assert!(f32::from_bits(u32::from(nan) << 16).is_nan());
    }
}
